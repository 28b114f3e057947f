"""Where each second of a recipe goes, beside another: ``trainscout explain --help``."""

from __future__ import annotations

import sys
from functools import partial

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Group

from trainscout.commands.assumed import assumed_fields, unchanged_fields
from trainscout.commands.entry_point import run_command
from trainscout.commands.explanation_plan import Compared, ExplanationPlan, build_explanation
from trainscout.commands.output_choice import output_choice
from trainscout.commands.schemas import ProfileChoice
from trainscout.conf.build import build_value
from trainscout.reports.comparison.comparison import compare
from trainscout.reports.comparison.for_programs import comparison_csv, comparison_record
from trainscout.reports.comparison.predictions import Predictions
from trainscout.reports.comparison.report import answer_line, comparison_report
from trainscout.reports.launch_import.report import imported_record, imported_report
from trainscout.simulators.predictor.io.command_line import NOTHING_FITS, OK
from trainscout.simulators.predictor.io.output import json_text, show_text
from trainscout.simulators.predictor.io.terminal import show
from trainscout.simulators.registry import get_simulator


def explain(config: DictConfig) -> int:
    output = output_choice(config)
    plan = build_explanation(config, HydraConfig.get().overrides.task)
    profile = build_value(ProfileChoice, "profile", config.profile)
    if profile != ProfileChoice():
        from trainscout.commands.explain_profile import explain_profile

        return explain_profile(plan, profile, output)
    first, other, code = plan.first, plan.other, OK
    if first is None or plan.search_best:
        best = best_of_space(plan)
        if best is None:
            what = "explain" if first is None else "compare with"
            print(f"nothing to {what}: no recipe of the space fits", file=sys.stderr)
            code = NOTHING_FITS
            if first is None:
                return code
        first, other = (best, None) if first is None else (first, best)
    assert first is not None
    predictions = Predictions(plan.question, get_simulator(plan.simulator))
    comparison = compare(
        (first.name, first.origin, first.recipe),
        None if other is None else (other.name, other.origin, other.recipe),
        plan.space,
        predictions,
    )
    if output.format == "json":
        record = comparison_record(comparison)
        if plan.imported is not None:
            record["given"] = imported_record(plan.imported)
        show_text(json_text(record))
        return code
    if output.format == "csv":
        show_text(comparison_csv(comparison))
        return code
    if output.verbosity == "quiet":
        show(answer_line(comparison))
        return code
    everything = output.verbosity == "verbose"
    parts = (
        [] if plan.imported is None else [imported_report(plan.imported, everything=everything)]
    )
    assumed = assumed_fields(config, plan.question)
    if plan.imported is not None:
        # What a launch does not say of its batches is a note; its length may be that of others.
        assumed &= (unchanged_fields(plan.question) & {"tokens"}) | {"cluster"}
    parts.append(
        comparison_report(
            comparison,
            stored_step_s=plan.stored_step_s,
            everything=everything,
            assumed=assumed,
        )
    )
    show(Group(*parts))
    return code


def best_of_space(plan: ExplanationPlan) -> Compared | None:
    """The recipe of the shortest step in the space; None when none fits."""
    from trainscout.optimizer.asked import AskedSearch
    from trainscout.optimizer.objective import Objective
    from trainscout.optimizer.options import ExecutorOptions
    from trainscout.optimizer.study import run_search

    objective, serial = Objective(("step_time",)), ExecutorOptions("serial")
    result = run_search(
        AskedSearch(
            plan.question, plan.space_spec, objective, plan.options, plan.simulator, serial
        )
    )
    if result.stopped == "interrupted":
        # What was found so far is no best to compare with.
        raise KeyboardInterrupt
    if not result.best:
        return None
    return Compared("best", f"best of space {plan.space.name}", result.best[0].recipe)


main = partial(run_command, "explain", explain)
