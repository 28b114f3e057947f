"""What a capacity study looks like on a terminal and in a text file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.planning.changes import Change
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import ModelOutcome, StudyOutcome
from trainscout.planning.points import Point, TargetAnswer
from trainscout.planning.scaling import ScalingPoint
from trainscout.planning.study import PREFERENCES, Target
from trainscout.reports.capacity.study_tables import (
    Record,
    break_even_table,
    cautions,
    cells_table,
    effects_table,
    fabrics_table,
    scaling_table,
    scenarios_table,
    several_fabrics,
    unanswered_table,
)
from trainscout.reports.evidence import price_is_assumed
from trainscout.reports.html_tables import ReportTable
from trainscout.reports.wording import (
    format_long_time,
    format_part,
    format_percent,
    format_recipe,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.io.terminal import plain_table
from trainscout.simulators.predictor.replay.network_doubt import UNVALIDATED, stated_share
from trainscout.simulators.predictor.uncertainty.calibration import CALIBRATED
from trainscout.simulators.predictor.uncertainty.interval import LEVEL

# More differences than a screen holds are in the file.
_SHOWN_CHANGES = 20


def study_report(
    outcome: StudyOutcome,
    record: Record,
    reliability: Reliability,
    found: Sequence[Change] | None,
    directory: Path | None,
    *,
    verbosity: str,
) -> RenderableType:
    """The whole report: the answer for each model, its tables, what changed, counts.

    Args:
        outcome: the study's.
        record: what ``study_record`` made of it.
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
    for model, own in zip(outcome.models, record["models"], strict=True):
        parts += [Text(format_answer(model, outcome), style="bold"), Text()]
        if model.points:
            parts += _model_parts(model, record, own, whole)
    failed = [cell for cell in record["cells"] if cell["status"] != "fits"]
    parts += _drawn(unanswered_table(failed, whole=whole))
    if found is not None:
        parts += [changes_report(found, None if whole else _SHOWN_CHANGES), Text()]
    parts += [
        *map(Text, format_clusters(outcome)),
        *map(Text, format_asked(outcome)),
        Text(format_goodput(outcome, reliability)),
        Text(_format_counts(outcome)),
    ]
    if directory is not None:
        parts.append(Text(f"Files: {directory}"))
    if not whole and directory is not None:
        parts.append(Text("More: verbosity=verbose has scaling, what-ifs and break-even prices"))
    return Group(*parts)


def _model_parts(
    model: ModelOutcome, record: Record, own: Record, whole: bool
) -> Iterable[RenderableType]:
    cells = {cell["key"]: cell for cell in record["cells"]}
    fits = [c for c in cells.values() if c["model"] == model.model and c["status"] == "fits"]
    title = "GPUs, days, dollars (* nothing is better in all three)"
    yield from _drawn(cells_table(title, own, fits, fits, meets=False))
    for words in cautions(fits):
        yield from (Text(words), Text())
    if model.targets:
        yield from (_targets_table(model.targets), Text())
    if whole:
        title = "Scaling: tokens/s per GPU against the smallest size that fits, and what bends it"
        yield from _drawn(scaling_table(title, own, several_fabrics(fits), largest=False))
        yield from _drawn(effects_table(record, own, cells[own["answer"]]))
        yield from _drawn(break_even_table(own, cells))
        yield from _drawn(scenarios_table(record, own, cells))
        yield from _drawn(fabrics_table(own, cells))


def _drawn(table: ReportTable) -> Iterable[RenderableType]:
    if not table.rows:
        return
    columns = (f"{'#' * (name in table.figures)}{name}" for name in table.columns)
    drawn = plain_table(*columns, title=table.title)
    for row in table.rows:
        drawn.add_row(*row.cells, style="bold" if row.chosen else None)
    yield from (drawn, Text())


def format_answer(model: ModelOutcome, outcome: StudyOutcome) -> str:
    """The answer for one model in a sentence or two."""
    tokens = format_tokens(outcome.study.training.tokens)
    start = f"{model.model}, {tokens}:"
    chosen = model.chosen
    if chosen is None:
        return f"{start} nothing fits on any cluster of the study."
    prefer = outcome.study.prefer
    where = f"{chosen.num_gpus} GPUs of {chosen.cell.cluster}"
    figures = (
        f"{format_long_time(chosen.days * 86400)}, {format_usd(chosen.usd)}{_format_bar(chosen)}"
    )
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


def _targets_table(targets: Iterable[TargetAnswer]) -> RenderableType:
    table = plain_table("target", "limit", "#met by", *PREFERENCES, title="Targets")
    for target in targets:
        table.add_row(
            target.name,
            format_target(target.target),
            str(len(target.meeting)),
            *map(_format_point, target.best.values()),
        )
    return table


def _format_point(point: Point | None) -> str:
    if point is None:
        return "none"
    cost = f"{point.days:,.1f} days, {format_usd(point.usd)}"
    return f"{point.num_gpus:,} x {point.cell.cluster}\n{cost}"


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


def changes_report(found: Sequence[Change], most: int | None) -> RenderableType:
    """The differences from the run before, the answers' first, and no more than ``most``."""
    if not found:
        return Text("Since the last run: nothing changed.")
    count = f"{len(found)} change" + ("s" if len(found) > 1 else "")
    table = plain_table("what", "where", title=f"Since the last run: {count}")
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
    return table


def format_change(change: Change) -> str:
    """One difference in a line: what, where, before and now."""
    share = "" if change.share is None else f" ({change.share:+.1%})"
    kind = change.kind.replace("_", " ")
    return (
        f"{kind} of {change.where}: {change.before or 'none'} -> {change.after or 'none'}{share}"
    )


def format_clusters(outcome: StudyOutcome) -> list[str]:
    """By what clusters are calibrated, and what of their networks is counted, as far as there is
    something to say."""
    found: dict[str, dict[str, None]] = {}
    for cell, best in ((each.cell, each.answer.best) for each in outcome.results):
        texts = [] if best is None else best.assumptions
        stated = [text for text in texts if text.startswith(CALIBRATED)]
        network = stated_share(cell.question.cluster, switches=cell.topology is not None)
        for text in (*stated, *((network,) if best is not None and network else ())):
            found.setdefault(text, {})[cell.cluster] = None
    lines = [f"On {', '.join(clusters)}: {text}." for text, clusters in found.items()]
    if any(UNVALIDATED in line for line in lines) and not outcome.study.oversubscription:
        lines.append("sweep.oversubscription=[null,1] shows what such a network may be worth.")
    return lines


def format_asked(outcome: StudyOutcome) -> list[str]:
    """By which batch, length and prices figures are what they are, where there are any."""
    points = [point for model in outcome.models for point in model.points]
    jobs = [point.cell.question.job(point.best.recipe) for point in points]
    sizes = {f"{job.training.global_batch_size} x {job.sequence_length}": None for job in jobs}
    prices = {
        f"{format_usd(job.gpu.price_usd_per_hour)} a GPU-hour of {job.gpu.name}"
        f"{' (assumed)' if price_is_assumed(job.gpu) else ''}": None
        for job in jobs
    }
    return [f"Asked: batch {' or '.join(sizes)} tokens; {', '.join(prices)}."] if jobs else []


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
