"""Where each second of a recipe goes, beside another: ``python explain.py --help``."""

from __future__ import annotations

import json
import sys

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Group

from conf.door import NOTHING_FITS, OK, run_command
from conf.explanation import Compared, ExplanationPlan, build_explanation
from conf.output import output_choice
from reports.comparison import Predictions, compare
from reports.comparison.record import comparison_csv, comparison_record
from reports.comparison.report import answer_line, comparison_report
from reports.given.report import given_record, given_report
from reports.terminal import show
from simulators.base import get_simulator
from simulators.output import show_text


def explain(config: DictConfig) -> int:
    output = output_choice(config)
    plan = build_explanation(config, HydraConfig.get().overrides.task)
    other, code = plan.other, OK
    if plan.search_best:
        other = best_of_space(plan)
        if other is None:
            print("nothing to compare with: no recipe of the space fits", file=sys.stderr)
            code = NOTHING_FITS
    predictions = Predictions(plan.declared, get_simulator(plan.simulator))
    first = plan.first
    comparison = compare(
        (first.name, first.origin, first.recipe),
        None if other is None else (other.name, other.origin, other.recipe),
        plan.space,
        predictions,
    )
    if output.format == "json":
        record = comparison_record(comparison)
        if plan.given is not None:
            record["given"] = given_record(plan.given)
        show_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
        return code
    if output.format == "csv":
        show_text(comparison_csv(comparison))
        return code
    if output.verbosity == "quiet":
        show(answer_line(comparison))
        return code
    everything = output.verbosity == "verbose"
    parts = [] if plan.given is None else [given_report(plan.given, everything=everything)]
    parts.append(
        comparison_report(comparison, stored_step_s=plan.stored_step_s, everything=everything)
    )
    show(Group(*parts))
    return code


def best_of_space(plan: ExplanationPlan) -> Compared | None:
    """The recipe of the shortest step in the space; None when none fits."""
    from optimizer.objective import Objective
    from optimizer.options import ExecutorOptions
    from optimizer.study import run_search

    result = run_search(
        plan.declared,
        plan.space_spec,
        Objective(("step_time",)),
        plan.options,
        simulator=plan.simulator,
        executor=ExecutorOptions(name="serial"),
    )
    if not result.best:
        return None
    return Compared("best", f"best of space {plan.space.name}", result.best[0].recipe)


if __name__ == "__main__":
    sys.exit(run_command("explain", explain))
