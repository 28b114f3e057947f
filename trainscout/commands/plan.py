"""Plan capacity, once or on a schedule: ``trainscout plan --help``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import RenderableType

from trainscout.commands.capacity_plan import CapacityPlan, build_capacity
from trainscout.commands.entry_point import run_command
from trainscout.optimizer.tracking.tracker import Tracker, record_or_warn
from trainscout.planning.answer import answer_cell
from trainscout.planning.changes import Change, changes
from trainscout.planning.lock import only_run
from trainscout.planning.outcome import StudyOutcome, run_study
from trainscout.planning.schedule import keep
from trainscout.planning.store import AnswerStore
from trainscout.planning.webhook import post
from trainscout.reports.capacity.files import (
    CELLS,
    STUDY,
    last_record,
    new_directory,
    save_run,
    study_texts,
)
from trainscout.reports.capacity.progress import study_view
from trainscout.reports.capacity.study_files import study_csv, study_json, study_record
from trainscout.reports.capacity.terminal_tables import format_answer, study_report
from trainscout.reports.capacity.tracked import study_runs
from trainscout.reports.nothing_found import why_no_recipe
from trainscout.reports.tracker_runs import git_commit
from trainscout.simulators.predictor.io.command_line import (
    CHANGED,
    INTERRUPTED,
    NOTHING_FITS,
    OK,
    STOPPING,
    unwritten,
)
from trainscout.simulators.predictor.io.output import show_text
from trainscout.simulators.predictor.io.terminal import as_text, console_for, show
from trainscout.simulators.predictor.question.redaction import redacted

# Groups that trainscout optimize has too, so that a cell can be searched alone.
_SEARCH_GROUPS = ("framework", "space", "search", "simulator", "network", "topology")


def plan(config: DictConfig) -> int:
    capacity = build_capacity(config)
    if capacity.schedule is not None:
        keep(capacity.schedule, run_once, announce)
        return INTERRUPTED
    directory = Path(HydraConfig.get().runtime.output_dir)
    with only_run(directory, capacity.wait_s):
        return run(capacity, directory, config)


def run(capacity: CapacityPlan, study_directory: Path, config: DictConfig) -> int:
    """One run of the study, whose directory is this process's alone."""
    started = datetime.now().astimezone()
    tracker = Tracker(capacity.tracking)
    settings: Any = redacted(OmegaConf.to_container(config, resolve=True))
    outcome = answer_study(capacity, study_directory)
    choices = HydraConfig.get().runtime.choices
    record = study_record(
        outcome,
        started=started.isoformat(timespec="seconds"),
        commit=git_commit(Path(__file__).parent),
        groups={group: choices[group] for group in _SEARCH_GROUPS},
    )
    before = last_record(study_directory, capacity.study.name)
    found = None if before is None else changes(before, record, capacity.change_threshold)
    directory = new_directory(study_directory, started)

    def report(verbosity: str) -> RenderableType:
        reliability = capacity.reliability
        return study_report(outcome, record, reliability, found, directory, verbosity=verbosity)

    texts = study_texts(
        outcome,
        record,
        capacity.reliability,
        found,
        report=as_text(report("verbose")),
        settings=OmegaConf.to_yaml(OmegaConf.create(settings)),
    )
    output = capacity.output
    if output.format == "table":
        show(report(output.verbosity))
    failure = None
    try:
        save_run(directory, record, texts)
    except OSError as error:  # a full disk: the answer is shown all the same
        failure = error
    if capacity.webhook is not None:
        notify(capacity.webhook, outcome, found, directory)
    files = [*texts, STUDY]
    tree = study_runs(
        outcome, record, settings=settings, found=found, directory=directory, files=files
    )
    tracked = None if failure is not None else record_or_warn(tracker, tree)
    if output.format == "json":
        show_text(study_json(outcome, record, found=found, directory=directory, tracked=tracked))
    elif output.format == "csv":
        show_text(study_csv(record))
    elif tracked is not None and output.verbosity != "quiet":
        show_text(f"Tracked: {tracked}\n")
    if failure is not None:
        return unwritten(failure)
    if found and capacity.fail_on_change:
        return CHANGED
    return OK if all(model.meets_all for model in outcome.models) else NOTHING_FITS


def answer_study(capacity: CapacityPlan, study_directory: Path) -> StudyOutcome:
    """Search or read back every cell, and show how far that is."""
    search, cells = capacity.settings, study_directory / CELLS
    with study_view(console_for(sys.stderr), capacity.output.verbosity) as view:
        try:
            return run_study(
                capacity.study,
                capacity.declarations,
                capacity.reliability,
                AnswerStore(cells, search),
                partial(answer_cell, settings=search, why_nothing=why_no_recipe),
                n_jobs=capacity.n_jobs,
                on_progress=view.show,
            )
        except KeyboardInterrupt:
            kept = f"interrupted: answered cells are kept in {cells}"
            print(f"{kept}, and the same command goes on", file=sys.stderr)
            raise


def notify(
    address: str, outcome: StudyOutcome, found: Sequence[Change] | None, directory: Path
) -> None:
    """Send the run's summary; a failure is a warning."""
    content: dict[str, Any] = {
        "study": outcome.study.name,
        "changed": bool(found),
        "changes": [change.to_json() for change in found or ()],
        "answers": [format_answer(model, outcome) for model in outcome.models],
        "record": str((directory / STUDY).absolute()),
    }
    problem = post(address, content)
    if problem is not None:
        print(f"warning: the webhook was not told ({problem})", file=sys.stderr)


def run_once() -> bool:
    """One scheduled run, in a process of its own: it starts from today's declarations, prices and
    code. Returns whether to go on."""
    ended = subprocess.run(
        [sys.executable, "-m", "trainscout", "plan", *once(sys.argv[1:])]
    ).returncode
    print(f"The run ended with exit code {ended}.", file=sys.stderr)
    return ended not in (INTERRUPTED, *(128 + each for each in STOPPING))


def once(arguments: Sequence[str]) -> list[str]:
    """This command without its schedule, wherever that comes from."""
    kept = [word for word in arguments if not re.match(r"\+{0,2}schedule=", word)]
    settings = (number for number, word in enumerate(kept) if re.match(r"[^-].*=", word))
    # Hydra wants all settings side by side.
    at = next(settings, len(kept))
    return [*kept[:at], "schedule=null", *kept[at:]]


def announce(due: datetime) -> None:
    print(f"Next run: {due:%Y-%m-%d %H:%M %Z}", file=sys.stderr)


main = partial(run_command, "plan", plan)
