"""A search over launches of a script: what people read, its files, and what is tracked."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.optimizer.executors.base import REFUSED
from trainscout.optimizer.tracking.metrics import best_so_far
from trainscout.optimizer.tracking.spool import Run, RunTree, make_run
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.files import LAUNCH, REPORT, TOP_RECIPES, TRIALS
from trainscout.reports.search_page.page import PAGE
from trainscout.reports.tracker_runs import code_tags
from trainscout.reports.trials import predicted
from trainscout.reports.wording import STOP_WORDS
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.output import fingerprint, json_text, write_texts
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.question.launch import Launch, ScriptQuestion, Start
from trainscout.simulators.virtual_cluster.emulation.launch.programs import (
    find_program,
    waits_for_program,
)

_GIB = 2**30
_INVALID = "invalid launch"
_SHOWN_INVALID = 3


def status_of(trial: Trial) -> str:
    """A trial's status; one that failed is a launch that cannot be."""
    return _INVALID if trial.status == "failed" else trial.status


def report(result: SearchResult, question: ScriptQuestion) -> RenderableType:
    """What a person reads of a search."""
    parts: list[RenderableType] = [
        Text(format_outcome(result, question)),
        *(Text(note) for note in result.notes),
        Text(),
    ]
    if result.best:
        parts += [
            _table(result),
            Text(),
            Text("The best:"),
            # On one line however narrow the terminal, so that it can be copied.
            Text(f"  {command_of(result.best[0])}", no_wrap=True, overflow="ignore"),
        ]
        parts += [Text(f"  assumed: {each}") for each in predicted(result.best[0]).assumptions]
    else:
        parts.append(Text(no_answer(result)))
    wrong = [trial for trial in result.trials if trial.status == "failed"]
    for trial in wrong[:_SHOWN_INVALID]:
        reason = (trial.reason or "").removeprefix(REFUSED)
        parts.append(Text(f"invalid: {format_knobs(trial)}: {reason}"))
    return Group(*parts)


def no_answer(result: SearchResult) -> str:
    """What a search without a best launch says."""
    if result.trials:
        return "No launch runs and fits in memory."
    return "No launch was run to its end."


def format_outcome(result: SearchResult, question: ScriptQuestion) -> str:
    """How many launches ended how, and why the search did."""
    statuses = f": {format_statuses(result.trials)}" if result.trials else ""
    resumed = " --resume goes on with it." if result.stopped == "interrupted" else ""
    return (
        f"{len(result.trials)} launches on {question.world_size} x {question.gpu.name} of "
        f"{question.cluster.name}{statuses}. Ended because {STOP_WORDS[result.stopped]}.{resumed}"
    )


def format_statuses(trials: Iterable[Trial]) -> str:
    """How many launches ended how."""
    counts = Counter(map(status_of, trials))
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _table(result: SearchResult) -> Table:
    table = plain_table(title="Best launches")
    works = result.objectives == ("tokens_per_s",)
    table.add_column("#", justify="right")
    for name in result.best[0].point:
        table.add_column(name, justify="right")
    for title in ("step", *(("work/s",) if works else ()), "HFU", "free GiB"):
        table.add_column(title, justify="right")
    for rank, trial in enumerate(result.best, start=1):
        found = predicted(trial)
        rate = (f"{found.tokens_per_s:,.0f}",) if works else ()
        table.add_row(
            str(rank),
            *map(str, trial.point.values()),
            f"{found.step_time_s * 1e3:,.1f} ms",
            *rate,
            f"{found.hfu:.1%}",
            f"{found.memory.headroom_bytes / _GIB:.1f}",
        )
    return table


def command_of(trial: Trial) -> str:
    """The launch as words of a shell, its environment first."""
    launch = cast(Launch, trial.recipe)
    variables = [f"{name}={shlex.quote(value)}" for name, value in launch.start.environment]
    return " ".join([*variables, *(shlex.quote(word) for word in launch.start.words)])


def to_json(result: SearchResult) -> str:
    """The best launches, best first, with their predictions."""
    best = [
        {
            "launch": _launch_dict(cast(Launch, trial.recipe)),
            "knobs": trial.point,
            "prediction": _prediction_dict(predicted(trial)),
        }
        for trial in result.best
    ]
    return json_text(best)


def _launch_dict(launch: Launch) -> dict[str, Any]:
    def plain(start: Start) -> dict[str, Any]:
        return asdict(start) | {"environment": dict(start.environment), "files": dict(start.files)}

    return plain(launch.start) | {"traced": [plain(start) for start in launch.traced]}


def _prediction_dict(prediction: Prediction) -> dict[str, Any]:
    """What is known of a launch: nobody said what its model is."""
    unknown = ("mfu", "mfu_causal", "cost_of_run_usd", "interval_s")
    return {name: value for name, value in prediction.to_dict().items() if name not in unknown}


def save_script_search(
    directory: Path, result: SearchResult, text: str, page: str, world_size: int, per_node: int
) -> list[Path]:
    """Write the search's files, each whole; where they are. ``text`` and ``page``: its report."""
    files = {REPORT: text, PAGE: page, TOP_RECIPES: to_json(result), TRIALS: _trials_csv(result)}
    if result.best:
        launch = cast(Launch, result.best[0].recipe)
        files[LAUNCH] = _start_script(launch, world_size, per_node)
        files |= {f"launch/{name}": content for name, content in launch.start.files}
    return write_texts(directory, files)


def _start_script(launch: Launch, world_size: int, per_node: int) -> str:
    """The best launch, a script under torchrun; nodes and rendezvous are the machine's to say."""
    lines = ["#!/usr/bin/env bash", "set -euo pipefail", 'cd "${WORK_DIR:-.}"']
    lines += [f"export {name}={shlex.quote(value)}" for name, value in launch.start.environment]
    words = []
    for word in launch.start.words:
        quoted = shlex.quote(word)
        for name, _ in launch.start.files:
            quoted = quoted.replace(f"{{{name}}}", f"'\"$HERE\"'/launch/{name}")
        words.append(quoted)
    if launch.start.files:
        lines.insert(2, 'HERE="$(cd "$(dirname "$0")" && pwd)"')
    if waits_for_program(launch.start.words):
        words[0] = _program(launch.start.words[0])
    else:
        nodes = -(-world_size // per_node)
        words = [f'torchrun --nnodes {nodes} --nproc-per-node {per_node} "$@"', *words]
    lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _program(file: str) -> str:
    """What starts it on another machine, too: one that the PATH has by its name."""
    path = Path(file)
    if path.is_absolute() and find_program(path.name) == file:
        return shlex.quote(path.name)
    if path.is_file() and not os.access(file, os.X_OK):
        return f"bash {shlex.quote(file)}"
    return shlex.quote(file if path.name != file or not path.is_file() else f"./{file}")


def _trials_csv(result: SearchResult) -> str:
    names = list(result.trials[0].point) if result.trials else []
    figures = ("step_time_s", "hfu", "tokens_per_s")
    memory = ("needed_bytes", "headroom_bytes")
    rows = []
    for trial in result.trials:
        row = {
            "number": trial.number,
            "status": status_of(trial),
            "rule": trial.rule,
            "reason": trial.reason,
            **trial.point,
            "duration_s": f"{trial.duration_s:.3f}",
            "command": command_of(trial),
        }
        if trial.prediction is not None:
            row |= {name: getattr(trial.prediction.memory, name) for name in memory}
            if trial.prediction.fits:
                row |= {name: getattr(trial.prediction, name) for name in figures}
        rows.append(row)
    before = ("number", "status", "rule", "reason")
    return csv_text([*before, *names, *figures, *memory, "duration_s", "command"], rows)


def tracked(
    result: SearchResult,
    question: ScriptQuestion,
    settings: Mapping[str, Any],
    directory: Path,
    files: Sequence[Path],
) -> RunTree:
    """What to track: the search, with its best launches as child runs."""
    ended_ms = int(time.time() * 1000)
    tags = {
        **code_tags("trainscout tune"),
        "cluster": question.cluster.name,
        "gpu": question.gpu.name,
        "stopped": result.stopped,
        "simulator": "script",
        "config_hash": fingerprint(settings),
    }
    counts = {f"trials/{status}": n for status, n in result.counts().items()}
    script = str(settings["script"])
    parent = make_run(
        f"{script} on {question.cluster.name}, {question.world_size} GPUs",
        ended_ms - int(result.wall_s * 1000),
        ended_ms,
        params={"num_gpus": question.world_size, **settings},
        metrics={**counts, "search/wall_s": result.wall_s, **_metrics(result.best[:1], "best/")},
        series=best_so_far(result),
        tags={**tags, "kind": "search", "status": "fits" if result.best else "nothing_fits"},
    )
    children: list[Run] = []
    for rank, trial in enumerate(result.best, start=1):
        children.append(
            make_run(
                f"#{rank} {format_knobs(trial)}",
                ended_ms - int(trial.duration_s * 1000),
                ended_ms,
                params={"num_gpus": question.world_size, **trial.point},
                metrics=_metrics([trial], ""),
                tags={**tags, "kind": "recipe", "status": "fits", "rank": rank},
            )
        )
    status = "KILLED" if result.stopped == "interrupted" else "FINISHED"
    return RunTree(parent, tuple(children), directory, tuple(files), status)


def _metrics(trials: Sequence[Trial], prefix: str) -> dict[str, float]:
    if not trials:
        return {}
    found = predicted(trials[0])
    metrics = {
        "step_time_s": found.step_time_s,
        "hfu": found.hfu,
        "memory/needed_gib": found.memory.needed_bytes / _GIB,
        "memory/headroom_gib": found.memory.headroom_bytes / _GIB,
        **{f"breakdown/{name}_s": value for name, value in found.breakdown_s.items()},
    }
    return {f"{prefix}{name}": value for name, value in metrics.items()}


def format_knobs(trial: Trial) -> str:
    """What a launch's knobs are set to."""
    return " ".join(f"{name}={value}" for name, value in trial.point.items())
