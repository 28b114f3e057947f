"""A comparison as people read it on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trainscout.reports.comparison import wording
from trainscout.reports.comparison.attribution import Attribution, Change
from trainscout.reports.comparison.comparison import Comparison, Difference, Side
from trainscout.reports.comparison.few_changes import FewChanges
from trainscout.reports.comparison.one_knob import Neighbour
from trainscout.reports.wording import (
    format_gib,
    format_part,
    format_percent,
    format_question,
    format_recipe,
    format_room,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainscout.simulators.predictor.io.terminal import labelled, plain_table
from trainscout.simulators.predictor.memory.bands import FITS, NO, TIGHT
from trainscout.simulators.predictor.replay.network_doubt import UNVALIDATED
from trainscout.simulators.predictor.uncertainty.interval import LEVEL

_SAME = 1e-3
"""As a share of a step, what is not called a difference."""
_GIB = 2**30
_VERDICTS = {FITS: "yes", TIGHT: "tight", NO: "no"}
# What the framework's allocator has no part in: it comes on top of what that reserves.
_OUTSIDE = ("communication_buffers", "context")
# Parts of a step below this share of it are left out.
_SHOWN_SHARE = 0.0005
# One-knob changes shown unless all are asked for.
SHOWN_KNOBS = 12
# Two predictions of one question are equal but for rounding.
_SAME_STEP = 1e-6


def comparison_report(
    comparison: Comparison,
    *,
    stored_step_s: float | None = None,
    everything: bool = False,
    assumed: Collection[str] = (),
) -> RenderableType:
    """The whole report.

    ``stored_step_s`` is the step that an earlier search predicted for the other recipe;
    ``everything``: also neighbours that are far behind; ``assumed``: fields that nobody gave.
    """
    first, difference = comparison.first, comparison.difference
    parts: list[RenderableType] = [
        Text(format_question(first.job, assumed), style="bold"),
        Text(),
        _recipes([first] if difference is None else [first, difference.other]),
        Text(),
    ]
    if comparison.few is not None:
        parts += [_headline(first, comparison.few), Text()]
    if difference is not None:
        parts += [_verdict(first, difference), Text()]
        if stored_step_s is not None:
            parts.append(_same_question(difference.other, stored_step_s))
        if difference.attribution is None:
            difference = None
    sides = [first] if difference is None else [first, difference.other]
    parts += [_totals(sides, assumed), Text(), _breakdown(sides)]
    if difference is not None:
        parts.append(_reasons(difference))
        if difference.attribution is not None:
            parts += [Text(), _changes(difference.attribution, first, difference.other)]
    parts += [Text(), _one_knob(first, comparison.neighbours, everything=everything)]
    parts += [Text(), _memory(sides)]
    stated = [each for each in first.prediction.assumptions if each.startswith(UNVALIDATED)]
    return Group(*parts, *(labelled([("Assumed:", each)], gap=1) for each in stated))


def answer_line(comparison: Comparison) -> RenderableType:
    """The answer alone: how far the recipes are apart, or what the best single change brings."""
    first, difference = comparison.first, comparison.difference
    if difference is not None:
        return _verdict(first, difference)
    step_s = first.prediction.step_time_s
    words = f"{first.name} takes {format_seconds(step_s)} a step"
    if not first.prediction.fits:
        words += f" and {_format_too_much(first)}"
    best = next((each for each in comparison.neighbours if each.prediction.fits), None)
    if best is None:
        return Text(f"{words}; no single change fits.")
    gain_s = step_s - best.prediction.step_time_s
    change = wording.format_change(best.fields, best.before, best.after)
    if not first.prediction.fits:
        faster = f"{format_seconds(abs(gain_s))} {'faster' if gain_s > 0 else 'slower'}"
        return Text(f"{words}; {change} fits, {faster}.")
    if gain_s <= 0:
        return Text(f"{words}; no single change that fits makes it faster.")
    return Text(f"{words}; {change} makes it {format_seconds(gain_s)} faster.")


def _format_too_much(side: Side) -> str:
    memory = side.prediction.memory
    if memory.band == TIGHT:
        return f"is tight in memory ({format_room(memory)})"
    return f"does not fit in memory, by {format_gib(memory.missing_bytes)}"


def _recipes(sides: Sequence[Side]) -> RenderableType:
    words = [Text(format_recipe(side.recipe, side.job.dp)) for side in sides]
    return labelled(
        (side.name, own.append(f"  ({side.origin})", style="dim"))
        for side, own in zip(sides, words, strict=True)
    )


def _verdict(first: Side, difference: Difference) -> RenderableType:
    other = difference.other
    gap_s = other.prediction.step_time_s - first.prediction.step_time_s
    if difference.attribution is None:
        return Text(f"{first.name} and {other.name} are the same recipe.", style="bold")
    lead = difference.lead(first)
    faster = "faster" if gap_s < 0 else "slower"
    share = abs(gap_s) / first.prediction.step_time_s
    words = (
        f"{other.name} is {format_seconds(abs(gap_s))} a step ({format_percent(share)}) {faster} "
        f"than {first.name}"
    )
    limit = difference.tie_share
    if lead < _SAME:
        words = f"{first.name} and {other.name} take the same step, to a thousandth."
    elif limit is None:
        words += "; the simulator does not say how sure that is."
    else:
        tie = "no tie" if lead > limit else "a tie"
        words += (
            f", {tie}: that is {format_percent(lead)} of the shorter step, and of predicted "
            f"differences between measured layouts that differ as much, one in "
            f"{round(1 / (1 - LEVEL))} was off by more than {format_percent(limit)}."
        )
    for side in (first, other):
        if not side.prediction.fits:
            words += f" {side.name} {_format_too_much(side)}."
    return Text(words)


def _headline(first: Side, few: FewChanges) -> RenderableType:
    """What to change, if only one or two things."""
    words = " and ".join(wording.format_change(*each) for each in few.changes)
    brings = wording.signed_percent(few.step_s / first.prediction.step_time_s - 1)
    return Text(f"Change {words}: {brings}, {format_seconds(few.step_s)} a step", style="bold")


def _same_question(other: Side, stored_step_s: float) -> RenderableType:
    """A warning where the earlier search asked something else, else nothing."""
    step_s = other.prediction.step_time_s
    if abs(stored_step_s / step_s - 1) < _SAME_STEP:
        return Text("", end="")
    return Text(
        f"Note: that search predicted {format_seconds(stored_step_s)} for it, not "
        f"{format_seconds(step_s)}: it was about another model, cluster or training.\n",
        style="yellow",
    )


def _totals(sides: Sequence[Side], assumed: Collection[str]) -> RenderableType:
    table = _sides_table(None, sides, [side.name for side in sides])
    found = [side.prediction for side in sides]
    one, other, job = found[0], found[-1], sides[0].job
    gap = other.step_time_s - one.step_time_s
    dollars = other.cost_of_run_usd / one.cost_of_run_usd - 1 if one.cost_of_run_usd else None
    # Of a length that nobody gave a whole run's dollars say nothing.
    tokens = 1e9 if "tokens" in assumed else job.training.tokens
    share = tokens / job.training.tokens
    needed = [each.memory.needed_bytes for each in found]
    figures = (
        (
            "step time",
            [format_seconds(each.step_time_s) for each in found],
            f"{wording.signed_seconds(gap)} ({wording.signed_percent(gap / one.step_time_s)})",
        ),
        (
            f"error bar ({LEVEL:.0%})",
            [" to ".join(map(format_seconds, each.interval_s or ())) or "none" for each in found],
            "",
        ),
        (
            "MFU / HFU",
            [f"{each.mfu * 100:.1f} / {each.hfu * 100:.1f} %" for each in found],
            f"{(other.mfu - one.mfu) * 100:+.1f} points",
        ),
        (
            "tokens/s per GPU",
            [f"{each.tokens_per_s_per_gpu:,.0f}" for each in found],
            f"{other.tokens_per_s_per_gpu - one.tokens_per_s_per_gpu:+,.0f}",
        ),
        (
            f"{format_tokens(tokens)} at ${job.gpu.price_usd_per_hour:,g} a GPU-hour",
            [format_usd(each.cost_of_run_usd * share) for each in found],
            "" if dollars is None else wording.signed_percent(dollars),
        ),
        (
            "memory, worst stage",
            list(map(format_gib, needed)),
            f"{wording.signed_gib(needed[-1] - needed[0])} GiB",
        ),
        (
            "fits",
            [f"{_VERDICTS[each.memory.band]}, {format_room(each.memory)}" for each in found],
            "",
        ),
    )
    for name, values, change in figures:
        table.add_row(name, *values, *([change] if len(sides) > 1 else []))
    return table


def _sides_table(title: str | None, sides: Sequence[Side], names: Sequence[str]) -> Table:
    """A column for each side under its name, and one for what the other has more."""
    apart = [f"{sides[1].name} - {sides[0].name}"] if len(sides) > 1 else []
    return plain_table("", *(f"#{name}" for name in (*names, *apart)), title=title)


def _breakdown(sides: Sequence[Side]) -> RenderableType:
    table = _sides_table("Where the step goes", sides, [side.name for side in sides])
    parts = dict.fromkeys(part for side in sides for part in side.prediction.breakdown_s)
    step_s = sides[0].prediction.step_time_s
    rows = []
    for part in parts:
        seconds = [side.prediction.breakdown_s.get(part, 0.0) for side in sides]
        if max(seconds) > _SHOWN_SHARE * step_s:
            rows.append((part, seconds))
    rows.sort(key=lambda row: -abs(row[1][-1] - row[1][0]) if len(sides) > 1 else -row[1][0])
    for part, seconds in rows:
        cells = [format_seconds(each) if each else "0" for each in seconds]
        if len(sides) > 1:
            cells.append(wording.signed_seconds(seconds[1] - seconds[0]))
        else:
            cells[0] += f"  {format_percent(seconds[0] / step_s):>6}"
        table.add_row(format_part(part), *cells)
    return table


def _reasons(difference: Difference) -> RenderableType:
    lines: list[RenderableType] = []
    for reason in difference.reasons:
        more = "more" if reason.difference_s > 0 else "less"
        head = f"{format_part(reason.part)}, {format_seconds(abs(reason.difference_s))} {more}: "
        text = Text(head, style="bold").append(reason.words or "no reason known", style="not bold")
        lines.append(Padding(text, (0, 0, 0, 2)))
    if not lines:
        return Text()
    return Group(Text(), Text(f"Why {difference.other.name} differs", style="italic"), *lines)


def _changes(attribution: Attribution, first: Side, other: Side) -> RenderableType:
    table = plain_table(title=f"Which change brings what, from {first.name} to {other.name}")
    unit = wording.Unit.of(first.prediction.step_time_s)
    table.add_column("\nchange", min_width=20)
    table.add_column(f"step\n{unit.name}", justify="right", no_wrap=True)
    table.add_column(f"alone on\n{first.name}, {unit.name}", justify="right", no_wrap=True)
    table.add_column(f"least ..\nmost, {unit.name}", justify="right", no_wrap=True)
    table.add_column("memory\nGiB", justify="right", no_wrap=True)
    table.add_column("\nmostly")
    for change in attribution.changes:
        step = unit.signed(change.step_s)
        if attribution.drawn is not None:
            step += f" ± {unit.signed(change.error_s).lstrip('+')}"
        table.add_row(
            wording.format_change(change.fields, change.before, change.after),
            step,
            "-" if change.alone_s is None else unit.signed(change.alone_s),
            f"{unit.signed(change.least_s)} .. {unit.signed(change.most_s)}",
            wording.signed_gib(change.memory_bytes),
            _mostly(change),
        )
    total_s = sum(change.step_s for change in attribution.changes)
    memory = sum(change.memory_bytes for change in attribution.changes)
    table.add_row("together", unit.signed(total_s), "", "", wording.signed_gib(memory), "")
    return Group(table, Padding(Text(_how_shared(attribution, first), style="dim"), (0, 0, 0, 2)))


def _mostly(change: Change) -> str:
    """The parts of the step where a change acts, largest first."""
    parts = sorted(change.parts_s.items(), key=lambda item: -abs(item[1]))
    total = sum(abs(seconds) for _, seconds in parts)
    kept = [item for item in parts[:2] if total and abs(item[1]) > 0.2 * total]
    return ", ".join(f"{'less' if gap < 0 else 'more'} {format_part(part)}" for part, gap in kept)


def _how_shared(attribution: Attribution, first: Side) -> str:
    one_by_one = "in which the changes can be made one after another"
    if attribution.drawn is None:
        how = (
            f"Effects interact, so each is the mean over all {attribution.orders:,} orders "
            f"{one_by_one}"
            if attribution.orders > 1
            else f"There is one order {one_by_one}"
        )
    else:
        how = (
            f"Effects interact, so each is the mean over {attribution.drawn:,} orders, drawn from "
            f"the {attribution.orders:,} {one_by_one} (± its standard error)"
        )
    words = f"{how}; {attribution.recipes:,} recipes simulated."
    if attribution.not_fitting:
        words += (
            f" {attribution.not_fitting:,} of them may not fit in memory and count with the time "
            "they would take."
        )
    if any(change.alone_s is None for change in attribution.changes):
        words += f" -: cannot be launched alone on {first.name}."
    for fields in attribution.together:
        words += f" {' and '.join(fields)} cannot be changed one at a time."
    return words


def _one_knob(first: Side, neighbours: Sequence[Neighbour], *, everything: bool) -> RenderableType:
    base = first.prediction
    title = f"If you change only one knob of {first.name}"
    if not neighbours:
        return Text(f"{title}: no other recipe of the space can be launched.")
    shown = list(neighbours) if everything else list(neighbours[:SHOWN_KNOBS])
    table = plain_table(title=title)
    unit, same_s = wording.Unit.of(base.step_time_s), _SAME * base.step_time_s
    table.add_column("\nchange", min_width=20)
    for name, of in (("step", unit.name), ("", "%"), ("memory", "GiB"), ("headroom", "GiB")):
        table.add_column(f"{name}\n{of}", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for neighbour in shown:
        prediction = neighbour.prediction
        gap = prediction.step_time_s - base.step_time_s
        needed = prediction.memory.needed_bytes - base.memory.needed_bytes
        headroom = f"{prediction.memory.headroom_bytes / _GIB:.1f}"
        table.add_row(
            wording.format_change(neighbour.fields, neighbour.before, neighbour.after),
            unit.signed(gap),
            f"{gap / base.step_time_s * 100:+.1f}",
            wording.signed_gib(needed),
            headroom if prediction.fits else f"{headroom} !",
            "tie" if neighbour.distinguishable is False and abs(gap) > same_s else "",
        )
    notes = []
    hidden = len(neighbours) - len(shown)
    if hidden:
        notes.append(f"{hidden} more are behind these (verbosity=verbose shows them).")
    if any(not neighbour.prediction.fits for neighbour in shown):
        notes.append("!: does not fit in memory, or may not.")
    if any(len(neighbour.fields) > 1 for neighbour in shown):
        notes.append("Of two changes in a row the first needs the second.")
    return Group(table, *[Padding(Text(note, style="dim"), (0, 0, 0, 2)) for note in notes])


def _memory(sides: Sequence[Side]) -> RenderableType:
    names = [f"{side.name}, stage {side.prediction.memory.worst_stage}" for side in sides]
    table = _sides_table("Memory of the worst stage, GiB", sides, names)
    stages = [
        side.prediction.memory.per_stage[side.prediction.memory.worst_stage] for side in sides
    ]
    kinds = dict.fromkeys(kind for stage in stages for kind in stage.kind)
    rows = [(kind, [stage.kind.get(kind, 0) for stage in stages]) for kind in kinds]
    rows.sort(key=lambda row: -abs(row[1][-1] - row[1][0]) if len(sides) > 1 else -row[1][0])
    outside = [row for row in rows if row[0] in _OUTSIDE]
    rows = [
        *(row for row in rows if row[0] not in _OUTSIDE),
        ("peak allocated", [stage.peak_allocated_bytes for stage in stages]),
        ("peak reserved", [stage.peak_reserved_bytes for stage in stages]),
        *outside,
        ("needed", [side.prediction.memory.needed_bytes for side in sides]),
        ("usable", [side.prediction.memory.capacity_bytes for side in sides]),
    ]
    for kind, figures in rows:
        cells = [f"{figure / _GIB:.2f}" for figure in figures]
        if len(sides) > 1:
            cells.append(f"{(figures[1] - figures[0]) / _GIB:+.2f}")
        table.add_row(kind.replace("_", " "), *cells)
    return table
