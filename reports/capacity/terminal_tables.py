"""What a capacity study looks like on a terminal and in a text file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainscout.planning.cells import Cell
from trainscout.planning.changes import Change
from trainscout.planning.fabric_cost import FabricCost
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import CellResult, ModelOutcome, ScenarioAnswer, StudyOutcome
from trainscout.planning.points import Point, TargetAnswer
from trainscout.planning.scaling import ScalingCurve, ScalingPoint
from trainscout.planning.sensitivity import BreakEven, Effect
from trainscout.planning.study import Study, Target
from trainscout.reports.capacity.what_if import format_what_if
from trainscout.reports.wording import (
    format_long_time,
    format_part,
    format_percent,
    format_recipe,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.uncertainty import LEVEL

# More differences than a screen holds are in the file.
_SHOWN_CHANGES = 20


def study_report(
    outcome: StudyOutcome,
    reliability: Reliability,
    found: Sequence[Change] | None,
    directory: Path | None,
    *,
    verbosity: str,
) -> RenderableType:
    """The whole report: the answer for each model, its tables, what changed, counts.

    Args:
        outcome: the study's.
        reliability: behind its calendar days.
        found: the differences from the run before; None when there was none.
        directory: where the run's files are; None: there are none.
        verbosity: ``quiet`` has the answers alone, ``normal`` also the cells and targets,
            ``verbose`` everything.
    """
    if verbosity == "quiet":
        return Group(*(Text(format_answer(model, outcome)) for model in outcome.models))
    whole = verbosity == "verbose"
    parts: list[RenderableType] = []
    for model in outcome.models:
        parts += [*_model_parts(model, outcome, whole), Text()]
    failed = [result for result in outcome.results if result.point is None]
    if failed:
        parts += [_without_point(failed, whole=whole), Text()]
    if found is not None:
        parts += [changes_report(found, None if whole else _SHOWN_CHANGES), Text()]
    parts += [
        Text(format_goodput(outcome, reliability)),
        Text(_format_counts(outcome)),
    ]
    if directory is not None:
        parts.append(Text(f"Files: {directory}"))
    if not whole:
        parts.append(Text("More: verbosity=verbose has scaling, what-ifs and break-even prices"))
    return Group(*parts)


def _model_parts(model: ModelOutcome, outcome: StudyOutcome, whole: bool) -> list[RenderableType]:
    heading = Text(format_answer(model, outcome), style="bold")
    if not model.points:
        return [heading]
    parts: list[RenderableType] = [heading, Text(), _points_table(model)]
    if model.targets:
        parts += [Text(), _targets_table(model.targets)]
    if not whole:
        return parts
    if model.curves:
        parts += [Text(), _scaling_table(model.curves)]
    if model.chosen is not None:
        parts += [Text(), _effects_table(model.effects, model.chosen, outcome.study)]
        if model.break_evens:
            parts += [Text(), _break_even_table(model.break_evens, model.chosen)]
        if model.scenarios:
            parts += [Text(), _scenarios_table(model.scenarios, outcome.study.prefer)]
    if model.fabrics:
        parts += [Text(), _fabrics_table(model.fabrics)]
    return parts


def format_answer(model: ModelOutcome, outcome: StudyOutcome) -> str:
    """The answer for one model in a sentence or two."""
    tokens = format_tokens(outcome.study.training.tokens)
    start = f"{model.model}, {tokens}:"
    chosen = model.chosen
    if chosen is None:
        return f"{start} nothing fits on any cluster of the study."
    prefer = outcome.study.prefer
    where = f"{chosen.num_gpus} GPUs of {chosen.cell.cluster}"
    figures = f"{_days(chosen.days)}, {format_usd(chosen.usd)}{_format_bar(chosen)}"
    recipe = format_recipe(chosen.best.recipe, chosen.best.dp)
    if model.meets_all:
        targets = " that meets every target" if model.targets else " that fits"
        return f"{start} the {prefer} cluster{targets} is {where}: {figures}; {recipe}."
    missed = [target for target in model.targets if not target.meeting]
    if missed:
        which = "no cluster meets " + ", ".join(
            f"{target.name} ({format_target(target.target)})" for target in missed
        )
    else:
        which = "no one cluster meets all targets at once"
    return f"{start} {which}. The {prefer} that fits is {where}: {figures}; {recipe}."


def _format_bar(point: Point) -> str:
    if point.days_interval is None:
        return ""
    low, high = point.days_interval
    return f" ({low:,.1f} to {high:,.1f} days in {LEVEL:.0%} of measured runs like it)"


def format_target(target: Target) -> str:
    limits = []
    if target.days is not None:
        limits.append(f"<= {target.days:g} days")
    if target.usd is not None:
        limits.append(f"<= {format_usd(target.usd)}")
    if target.gpus is not None:
        limits.append(f"<= {target.gpus} GPUs")
    return ", ".join(limits) or "fits"


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _titled(title: str, table: Table) -> RenderableType:
    # A table's own title is broken at the table's width.
    return Group(Text(title, style="italic"), table)


def _days(days: float) -> str:
    return format_long_time(days * 86400)


def fabric_matters(cells: Iterable[Cell]) -> bool:
    """Whether a cluster was asked with more than one fabric."""
    pairs = {(cell.cluster, cell.fabric) for cell in cells}
    return len(pairs) > len({cluster for cluster, _ in pairs})


def _format_cluster(cell: Cell, with_fabric: bool) -> str:
    return f"{cell.cluster}, {cell.fabric}" if with_fabric else cell.cluster


def _points_table(model: ModelOutcome) -> RenderableType:
    """Every cell that fits; * marks the front of GPUs, days and dollars."""
    table = _table(["", "cluster"], ["GPUs", "days", "cost", "MFU", "goodput"])
    table.add_column("recipe")
    with_fabric = fabric_matters(point.cell for point in model.points)
    best = {id(point) for point in model.front}
    for point in model.points:
        table.add_row(
            "*" if id(point) in best else "",
            _format_cluster(point.cell, with_fabric),
            f"{point.num_gpus:,}",
            f"{point.days:,.1f}",
            format_usd(point.usd),
            format_percent(point.best.mfu),
            format_percent(point.goodput.share),
            format_recipe(point.best.recipe, point.best.dp),
            style="bold" if point is model.chosen else None,
        )
    return _titled("GPUs, days, dollars (* nothing is better in all three)", table)


def _targets_table(targets: Iterable[TargetAnswer]) -> RenderableType:
    table = _table(["target", "limit"], ["met by"])
    for name in ("cheapest", "fastest", "smallest"):
        table.add_column(name)
    for target in targets:
        outstanding = (target.cheapest, target.fastest, target.smallest)
        table.add_row(
            target.name,
            format_target(target.target),
            str(len(target.meeting)),
            *(_format_point(point) for point in outstanding),
        )
    return _titled("Targets", table)


def _format_point(point: Point | None) -> str:
    if point is None:
        return "none"
    cost = f"{point.days:,.1f} days, {format_usd(point.usd)}"
    return f"{point.num_gpus:,} x {point.cell.cluster}\n{cost}"


def _scaling_table(curves: Iterable[ScalingCurve]) -> RenderableType:
    table = _table(["cluster"], ["GPUs", "tokens/s/GPU", "efficiency"])
    table.add_column("what grew")
    sizes = [size for curve in curves for size in curve.points]
    with_fabric = fabric_matters(size.point.cell for size in sizes)
    for size in sizes:
        table.add_row(
            _format_cluster(size.point.cell, with_fabric),
            f"{size.point.num_gpus:,}",
            f"{size.point.best.tokens_per_s / size.point.num_gpus:,.0f}",
            format_percent(size.efficiency),
            format_bend(size),
        )
    title = "Scaling: tokens/s per GPU against the smallest size that fits, and what bends it"
    return _titled(title, table)


def format_bend(size: ScalingPoint) -> str:
    """Why one size is less efficient than the first; empty where it is not notably so."""
    if size.part is None or size.share_of_growth is None:
        return ""
    words = f"{format_part(size.part)} ({size.share_of_growth:.0%} of it)"
    if size.batch_limited:
        best = size.point.best
        count = f"{best.micro_batches} micro-batch" + ("es" if best.micro_batches > 1 else "")
        words += f"; batch limit: {count} a replica"
        if best.recipe.pp > 1:
            words += f" for {best.recipe.pp} stages"
    return words


def _effects_table(effects: Iterable[Effect], chosen: Point, study: Study) -> RenderableType:
    what_ifs = {name: asdict(what_if) for name, what_if in study.what_ifs.items()}
    table = _table(["change"], ["GPUs", "days", "cost", "cost moves"])
    table.add_column("recipe")
    for effect in effects:
        name = format_what_if(effect.name, what_ifs)
        if effect.days is None or effect.usd is None:
            table.add_row(name, f"{effect.num_gpus:,}", "-", "-", "-", effect.reason or "")
            continue
        recipe = {None: "", True: "another is best", False: "the same"}[effect.recipe_changed]
        table.add_row(
            name,
            f"{effect.num_gpus:,}",
            f"{effect.days:,.1f}",
            format_usd(effect.usd),
            f"{effect.usd / chosen.usd - 1:+.1%}" if chosen.usd else "-",
            recipe,
        )
    return _titled(f"What if, for {chosen.num_gpus:,} GPUs of {chosen.cell.cluster}", table)


def _break_even_table(evens: Iterable[BreakEven], chosen: Point) -> RenderableType:
    table = _table(["cluster"], ["GPUs", "GPU-hours", "price now", "break-even price"])
    for even in evens:
        table.add_row(
            even.point.cell.cluster,
            f"{even.point.num_gpus:,}",
            f"{even.point.gpu_hours:,.0f}",
            f"${even.price_usd_per_hour:.2f}",
            f"${even.break_even_usd_per_hour:.2f}",
        )
    price = chosen.cell.declared.gpu.price_usd_per_hour
    where = f"{chosen.num_gpus:,} GPUs of {chosen.cell.cluster}"
    title = f"Break-even: where others cost as much as {where} at ${price:.2f} an hour"
    return _titled(title, table)


def _scenarios_table(scenarios: Iterable[ScenarioAnswer], prefer: str) -> RenderableType:
    table = _table(["prices", "cluster"], ["GPUs", "price", "days", "cost"])
    table.add_column("targets")
    for scenario in scenarios:
        point = scenario.chosen
        if point is not None:
            table.add_row(
                scenario.name,
                point.cell.cluster,
                f"{point.num_gpus:,}",
                f"${point.cell.declared.gpu.price_usd_per_hour:.2f}",
                f"{point.days:,.1f}",
                format_usd(point.usd),
                "all met" if scenario.meets_all else "not all met",
            )
    return _titled(f"At other prices, the {prefer}", table)


def _fabrics_table(costs: Iterable[FabricCost]) -> RenderableType:
    """What every fabric costs, and what one that is cheaper than the fastest saves."""
    right = ["GPUs", "switches", "cables", "bought for", "step", "slower", "saved per %"]
    table = _table(["cluster"], right)
    table.add_column("recipe")
    for cost in costs:
        table.add_row(
            _format_cluster(cost.point.cell, with_fabric=True),
            f"{cost.point.num_gpus:,}",
            f"{cost.parts.switches:,}",
            f"{cost.parts.cables:,}",
            format_usd(cost.usd),
            format_seconds(cost.point.best.step_time_s),
            format_percent(cost.slower),
            "-" if cost.usd_per_percent is None else format_usd(cost.usd_per_percent),
            "another is best" if cost.recipe_changed else "",
        )
    return _titled("Fabrics at assumed prices of their parts, fastest first", table)


def _without_point(results: Sequence[CellResult], *, whole: bool) -> RenderableType:
    table = _table(["model", "cluster"], ["GPUs"])
    table.add_column("why", overflow="fold")
    with_fabric = fabric_matters(result.cell for result in results)
    for result in results:
        lines = (result.reason or result.answer.status).splitlines()
        # The second line is what was closest.
        reason = "\n".join(lines) if whole else lines[:2][-1]
        cell = result.cell
        cluster = _format_cluster(cell, with_fabric)
        table.add_row(cell.model, cluster, f"{cell.num_gpus:,}", reason)
    return _titled("No answer", table)


def changes_report(found: Sequence[Change], most: int | None) -> RenderableType:
    """The differences from the run before, the answers' first, and no more than ``most``."""
    if not found:
        return Text("Since the last run: nothing changed.")
    table = _table(["what", "where"], [])
    for name in ("before", "now"):
        table.add_column(name, overflow="fold")
    for change in found[:most]:
        share = "" if change.share is None else f" ({change.share:+.1%})"
        table.add_row(
            change.kind.replace("_", " "),
            change.where,
            change.before or "-",
            f"{change.after or '-'}{share}",
        )
    if most is not None and len(found) > most:
        table.add_row("...", f"{len(found) - most} more in changes.json", "", "")
    count = f"{len(found)} change" + ("s" if len(found) > 1 else "")
    return _titled(f"Since the last run: {count}", table)


def format_change(change: Change) -> str:
    """One difference in a line: what, where, before and now."""
    share = "" if change.share is None else f" ({change.share:+.1%})"
    kind = change.kind.replace("_", " ")
    return (
        f"{kind} of {change.where}: {change.before or 'none'} -> {change.after or 'none'}{share}"
    )


def format_goodput(outcome: StudyOutcome, reliability: Reliability) -> str:
    """What the calendar days take for granted."""
    if not reliability.fails:
        return _without_failures(reliability)
    source = f" ({reliability.source})" if reliability.source else ""
    words = f"Days: with failures, checkpoints and restarts{source}."
    points = [point for model in outcome.models for point in model.points]
    if not points:
        return words
    largest = max(points, key=lambda point: point.num_gpus)
    share = largest.goodput
    if share.mtbf_s is not None and share.checkpoint_interval_s is not None:
        words += (
            f" {largest.num_gpus:,} GPUs are interrupted every {format_long_time(share.mtbf_s)}"
            f" and write a checkpoint every {share.checkpoint_interval_s / 60:.0f} minutes of"
            f" work: {format_percent(share.share)} of the time is training that lasts."
        )
    return words


def _without_failures(reliability: Reliability) -> str:
    interval_s = reliability.checkpoint_interval_s
    checkpoints = (
        " and checkpoints are free"
        if interval_s is None
        else f", with a checkpoint of {reliability.checkpoint_write_s:g} s after every "
        f"{interval_s:g} s of work"
    )
    return (
        f"Days: as if nothing ever fails{checkpoints} (goodput=llama3_405b, or "
        "goodput.gpu_mtbf_hours=, counts failures)."
    )


def _format_counts(outcome: StudyOutcome) -> str:
    unproved = sum(
        result.answer.best is not None and not result.answer.proved for result in outcome.results
    )
    words = (
        f"Cells: {len(outcome.results)} of the study; {outcome.searched} searched, "
        f"{outcome.stored} known from before (what-ifs included), {outcome.wall_s:.1f} s."
    )
    if unproved:
        words += f" {unproved} answers are not proved to be the best of their space."
    return words
