"""``trainscout tracking``: log what waits to be tracked, and look up what is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainscout.optimizer.tracking.runs import client_of, log_spooled, open_store, store_is_missing
from trainscout.optimizer.tracking.settings import TrackingSettings
from trainscout.optimizer.tracking.spool import SPOOL, read_spool
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.csv_files import csv_text
from trainscout.simulators.predictor.io.output import show_text
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.redaction import redacted_text, root_cause

if TYPE_CHECKING:
    from mlflow.entities import Run


def flush(arguments: Sequence[str]) -> int:
    """``trainscout tracking flush``."""
    parser = command_parser(
        "tracking flush",
        "Log every search and study below directories whose tracking store could not be reached "
        "when it ended, to that store or to another. Run again, it goes on with what is left.",
        "trainscout tracking flush outputs\n"
        "trainscout tracking flush outputs studies --uri sqlite:///mlflow.db",
        "0 done; 1 something still waits, or an internal failure; 2 wrong input",
    )
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--uri", help="log them here instead")
    options = parser.parse_args(arguments)
    uri: str | None = options.uri
    if uri is not None:
        TrackingSettings(uri=uri).check()
    for directory in options.directories:
        if not directory.is_dir():
            raise InputError("directory", directory, "is not a directory")
    failed = 0
    paths = sorted({path for directory in options.directories for path in directory.rglob(SPOOL)})
    for path in paths:
        try:
            waiting = read_spool(path)
        except (ValueError, OSError) as error:
            failed += 1
            print(f"warning: {error}", file=sys.stderr)
            continue
        try:
            target = uri or waiting.uri
            run_id = log_spooled(*open_store(target, waiting.experiment), path, again=True)
            print(f"Tracked: {path.parent} in {redacted_text(target)}, run {run_id}")
        except Exception as error:  # one search that cannot be logged must not stop the others
            failed += 1
            print(f"warning: {path} waits: {root_cause(error)}", file=sys.stderr)
    if not paths:
        print("No search waits to be tracked.")
    return FAILURE if failed else OK


def best(arguments: Sequence[str]) -> int:
    """``trainscout tracking best``."""
    parser = command_parser(
        "tracking best",
        "Show the best tracked recipe of each model on each cluster, by size and batch.",
        "trainscout tracking best\n"
        "trainscout tracking best --where \"tags.version = '0.1.0'\" --format csv",
        "0 done; 1 nothing was found, the store failed, or an internal failure; 2 wrong input",
    )
    parser.add_argument("--uri", default=TrackingSettings.uri, help="default: %(default)s")
    parser.add_argument(
        "--experiment", default=TrackingSettings.experiment, help="default: %(default)s"
    )
    parser.add_argument("--where", help="of these runs only: \"tags.version = '0.1.0'\"")
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args(arguments)
    settings = TrackingSettings(uri=options.uri, experiment=options.experiment)
    settings.check()
    try:
        rows = best_recipes(settings, options.where)
    except InputError:
        raise
    except Exception as error:  # whatever the store says
        print(f"error: {redacted_text(settings.uri)}: {root_cause(error)}", file=sys.stderr)
        return FAILURE
    if not rows:
        print("No recipe is tracked there.", file=sys.stderr)
        return FAILURE
    show_text(best_text(rows, options.format))
    return OK


# The best recipe of each search, and of each cell of a study; none that is being logged just now.
_FIRST = "tags.rank = '1' and attributes.status = 'FINISHED'"
_PAGE = 1000


@dataclass(frozen=True)
class BestRecipe:
    """A recipe, and the question that it answers better than any other tracked one: of the same
    model, cluster, GPU, size, batch and sequence length it has the most tokens/s.

    ``tracked`` is when its search or study ended, in UTC; ``version`` and ``commit`` are
    Trainscout's.
    """

    model: str
    cluster: str
    gpu: str
    num_gpus: int
    global_batch_size: int
    sequence_length: int
    recipe: str
    step_time_s: float
    mfu: float
    tokens_per_s_per_gpu: float
    needed_gib: float
    tracked: str
    version: str
    commit: str
    run_id: str


def best_recipes(settings: TrackingSettings, where: str | None = None) -> list[BestRecipe]:
    """One for each model, cluster, GPU, size, batch and sequence length, in their order.

    Args:
        settings: the store and its experiment.
        where: more conditions on runs, in MLflow's own filter syntax.

    Raises:
        InputError: when there is no such experiment, or MLflow does not take ``where``.
        Exception: whatever MLflow raises when its store fails.
    """
    best: dict[tuple[Any, ...], BestRecipe] = {}
    for run in _runs(settings, where):
        if "model" not in run.data.tags:  # of a script's search: nobody said what its model is
            continue
        found = _read(run)
        question = tuple(getattr(found, name) for name in _QUESTION)
        known = best.setdefault(question, found)
        best[question] = max(known, found, key=lambda each: each.tokens_per_s_per_gpu)
    return [best[question] for question in sorted(best)]


_QUESTION = ("model", "cluster", "gpu", "num_gpus", "global_batch_size", "sequence_length")


def _runs(settings: TrackingSettings, where: str | None) -> Iterator[Run]:
    from mlflow.exceptions import MlflowException

    if store_is_missing(settings.uri):
        raise InputError("--uri", settings.uri, "is not there", "the store of a search")
    client = client_of(settings.uri)
    experiment = client.get_experiment_by_name(settings.experiment)
    if experiment is None:
        names = [each.name for each in client.search_experiments()]
        raise InputError("--experiment", settings.experiment, "is not in the store", names)
    words = _FIRST if where is None else f"{_FIRST} and {where}"
    token = None
    while True:
        try:
            page = client.search_runs(
                [experiment.experiment_id], words, max_results=_PAGE, page_token=token
            )
        except MlflowException as error:
            if where is None or error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            problem = f"is no filter of MLflow's: {error.message}"
            raise InputError("--where", where, problem, "tags.version = '0.1.0'") from error
        yield from page
        token = page.token
        if not token:
            return


def _read(run: Run) -> BestRecipe:
    tags, metrics, params = run.data.tags, run.data.metrics, run.data.params
    same_names: dict[str, Any] = {
        **{name: tags[name] for name in ("model", "cluster", "gpu", "recipe")},
        **{name: int(params[name]) for name in _QUESTION[3:]},
        **{name: metrics[name] for name in ("step_time_s", "mfu", "tokens_per_s_per_gpu")},
    }
    return BestRecipe(
        **same_names,
        # What earlier versions tracked lacks the one, cells of a study the other.
        needed_gib=metrics.get("memory/needed_gib") or metrics["memory/peak_reserved_gib"],
        tracked=f"{datetime.fromtimestamp(run.info.end_time / 1000, UTC):%Y-%m-%d %H:%M}",
        version=tags.get("version", ""),
        commit=tags.get("mlflow.source.git.commit", ""),
        run_id=run.info.run_id,
    )


FORMATS = ("table", "json", "csv")


def best_text(rows: Sequence[BestRecipe], form: str) -> str:
    """The rows for people (``table``), or all of them for programs (``json``, ``csv``)."""
    if form == "json":
        return json.dumps([asdict(row) for row in rows], indent=1) + "\n"
    if form == "csv":
        return csv_text((each.name for each in fields(BestRecipe)), map(asdict, rows))
    cells = [
        (
            *("model", "cluster", "gpu", "GPUs", "batch", "tokens", "step, s", "MFU"),
            *("tokens/s/GPU", "GiB", "tracked (UTC)", "recipe"),
        )
    ]
    cells += [
        (
            *(row.model, row.cluster, row.gpu, f"{row.num_gpus:,}", f"{row.global_batch_size:,}"),
            f"{row.sequence_length:,}",
            *(f"{row.step_time_s:.4g}", f"{row.mfu:.1%}", f"{row.tokens_per_s_per_gpu:,.0f}"),
            *(f"{row.needed_gib:.1f}", row.tracked, row.recipe),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        # Words to the left, figures to the right.
        padded = [
            text.rjust(width) if 3 <= at < 10 else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip() + "\n")
    return "".join(lines)
