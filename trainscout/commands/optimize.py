"""Search for the best training recipe: ``trainscout optimize --help``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import RenderableType
from rich.text import Text

from trainscout.commands.assumed import assumed_fields
from trainscout.commands.entry_point import run_command
from trainscout.commands.hydra_setup import STORE
from trainscout.commands.search_plan import SearchPlan, build_plan
from trainscout.optimizer.study import run_search
from trainscout.optimizer.tracking.tracker import Tracker, record_or_warn
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.files import LAUNCH, save_search
from trainscout.reports.for_programs import search_csv, search_json
from trainscout.reports.launch.directory import launch_note, launches, write_launches
from trainscout.reports.nothing_found import (
    closest_misses,
    format_relief,
    memory_stood_in_the_way,
    why_nothing_fits,
)
from trainscout.reports.progress import progress_view
from trainscout.reports.search_page.page import write_search_page
from trainscout.reports.search_page.searched import Searched, launch_texts, search_request
from trainscout.reports.terminal_tables import search_report
from trainscout.reports.tracker_runs import search_record
from trainscout.reports.trials import decided_between, top_trials
from trainscout.reports.whole_network import with_network_note
from trainscout.simulators.predictor.io import command_line
from trainscout.simulators.predictor.io.output import show_text
from trainscout.simulators.predictor.io.terminal import as_text, console_for, show
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.redaction import redacted
from trainscout.simulators.virtual_cluster.traced.verification import Verification


def optimize(config: DictConfig) -> int:
    plan = build_plan(config)
    question, top_k, output = plan.question, plan.options.top_k, plan.output
    directory = Path(HydraConfig.get().runtime.output_dir)
    tracker = Tracker(plan.tracking)
    with progress_view(console_for(sys.stderr), question.job, output.verbosity) as view:
        result = run_search(
            plan,
            storage=plan.options.storage or str(directory / STORE),
            resume=plan.resume,
            join=plan.join,
            on_progress=view.show,
        )
    result = with_network_note(result, question, plan.spec)
    shown, compared = top_trials(result, top_k), decided_between(result)
    quiet = output.verbosity == "quiet"
    checks = verify_recipes(question, compared[: plan.verified], quiet=quiet)
    relief = look_for_relief(plan, result)
    best = question.job(shown[0].recipe) if shown and plan.launch.directory else None
    found = () if best is None else launches(best, plan.launch.framework)

    assumed = assumed_fields(config, question)

    def report(verbosity: str) -> RenderableType:
        verbose = verbosity == "verbose"
        note = launch_note(found, f"{plan.launch.directory}/", whole=verbose) if found else None
        return search_report(
            result,
            question.job,
            directory,
            checks,
            verbosity=verbosity,
            relief=relief,
            launch_files=note,
            assumed=assumed,
        )

    if output.format == "table":
        # Before anything is written: a full disk must not cost the answer.
        show(report(output.verbosity))
    failures = [] if result.unstored is None else [result.unstored]
    files: list[Path] = []
    with _kept(failures):
        text = as_text(report("verbose"))
        files += save_search(
            directory, result, shown, question.job, text, checks, plan.launch.directory
        )
    launching = [path for path in files if path.name == LAUNCH]
    if best is not None and plan.launch.directory is not None:
        with _kept(failures):
            written = write_launches(directory / plan.launch.directory, best, found)
            inside = [path for path in written if path.is_relative_to(directory)]
            launching += inside
            files += inside
    settings: Any = redacted(OmegaConf.to_container(config, resolve=True))
    searched = Searched(
        result,
        question,
        plan.spec,
        compared,
        search_request(redacted(_arguments()), settings, plan.seed, result),
        launch_texts(directory, launching),
        checks,
        relief,
    )
    with _kept(failures):
        files.append(write_search_page(directory, searched))
    record = search_record(
        result,
        question,
        settings=settings,
        group=_group(),
        directory=directory,
        files=files,
        checks=checks,
    )
    tracked = None
    with _kept(failures):
        tracked = record_or_warn(tracker, record)
    if output.format == "json":
        show_text(
            search_json(
                result,
                shown,
                question.job,
                directory=directory,
                files=files,
                tracked=tracked,
                relief=relief,
            )
        )
    elif output.format == "csv":
        show_text(search_csv(result, shown, question.job))
        if not shown:
            print(why_nothing_fits(result, question.job), *relief, sep="\n", file=sys.stderr)
    elif tracked is not None and not quiet:
        show(Text(f"Tracked: {tracked}", overflow="fold"))
    if failures:
        return command_line.unwritten(failures[0])
    if result.stopped == "interrupted":
        return command_line.INTERRUPTED
    return command_line.OK if result.best else command_line.NOTHING_FITS


@contextlib.contextmanager
def _kept(failures: list[OSError]) -> Iterator[None]:
    """Go on where something cannot be written, and remember why."""
    try:
        yield
    except OSError as error:
        failures.append(error)


def look_for_relief(plan: SearchPlan, result: SearchResult) -> list[str]:
    """Where memory left nothing: the nearest changes that make a recipe fit, in words."""
    if result.best or result.stopped == "interrupted" or not memory_stood_in_the_way(result):
        return []
    from trainscout.optimizer.would_fit import would_fit

    missed = closest_misses(result)
    if plan.output.verbosity != "quiet":
        print("nothing fits: looking for the nearest change that does", file=sys.stderr)
    try:
        closest = missed[0].recipe if missed else None
        return format_relief(would_fit(plan.question, plan.space, plan.spec, closest))
    except KeyboardInterrupt:
        # The search's results are shown all the same.
        print("not looked for further: interrupted", file=sys.stderr)
        return []


def verify_recipes(
    question: Question, trials: Sequence[Trial], *, quiet: bool
) -> list[Verification]:
    """Trace and replay whole ranks of each trial's recipe, best first."""
    if not trials:
        return []
    from trainscout.simulators.virtual_cluster.traced.verify import verify

    checks = []
    for number, trial in enumerate(trials, start=1):
        if not quiet:
            print(f"tracing the ranks of #{number} of {len(trials)}", file=sys.stderr)
        try:
            checks.append(verify(question.job(trial.recipe)))
        except KeyboardInterrupt:
            # The search's results are shown all the same.
            print("not verified further: interrupted", file=sys.stderr)
            break
    return checks


def _arguments() -> list[str]:
    """What this search alone would be asked for with on the command line."""
    hydra: HydraConf = HydraConfig.get()
    own = [each.path for each in hydra.runtime.config_sources if each.provider == "command-line"]
    return [word for path in own for word in ("--config-dir", path)] + list(hydra.overrides.task)


def _group() -> str:
    """The searches of one multirun share its directory, and its name."""
    hydra: HydraConf = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        return Path(hydra.sweep.dir).name
    return Path(hydra.runtime.output_dir).name


main = partial(run_command, "config", optimize)
