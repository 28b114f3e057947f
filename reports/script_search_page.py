"""A search over launches of a script as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from trainscout.optimizer.executors.base import REFUSED
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.front_picture import Picture
from trainscout.reports.front_plot import Axis, front_plot
from trainscout.reports.html_tables import ReportTable, Row, html_cards, html_table, table
from trainscout.reports.inline_page import plain_page
from trainscout.reports.script_search import (
    command_of,
    format_knobs,
    format_outcome,
    format_statuses,
    no_answer,
    status_of,
)
from trainscout.reports.trials import predicted
from trainscout.reports.wording import format_gib, format_part, format_percent, format_seconds
from trainscout.simulators.predictor.question.launch import ScriptQuestion

_WORK = Axis("work a second", "k/s", lambda found: found.tokens_per_s / 1e3, minimise=False)


def script_search_page(result: SearchResult, question: ScriptQuestion, script: str) -> str:
    """The page of a search over the launches of ``script``."""
    title = f"{script} on {question.world_size:,} x {question.gpu.name} of {question.cluster.name}"
    parts = [f'<section id="answer"><h1>{escape(title)}</h1>']
    parts.append(f"<p>{escape(format_outcome(result, question))}</p>")
    parts += [f"<p>{escape(note)}</p>" for note in result.notes]
    parts += _answer(result) if result.best else [f"<p>{no_answer(result)}</p>"]
    works = result.objectives == ("tokens_per_s",)
    drawn = front_plot(result, result.best, format_knobs, _WORK if works else None)
    if drawn is not None:
        picture = Picture(drawn, "Every launch that was simulated").to_svg()
        parts.append(f'<figure class="wide">{picture}</figure>')
    parts.append("</section>")
    sections = [("answer", "Answer")]
    for name, word, heading, shown in (
        ("knobs", "Knobs", "What each choice is worth", knob_tables(result)),
        ("step", "Step", "Where the step goes", [_breakdown(result.best)] if result.best else []),
        ("launches", "Launches", "All launches", [_launches(result)]),
    ):
        if shown:
            tables = "".join(map(html_table, shown))
            parts.append(f'<section id="{name}"><h2>{heading}</h2>{tables}</section>')
            sections.append((name, word))
    return plain_page(title, sections, "\n".join(parts))


def _answer(result: SearchResult) -> Iterable[str]:
    best = result.best[0]
    found = predicted(best)
    works = result.objectives == ("tokens_per_s",)
    rate = f"{found.tokens_per_s:,.0f} of work a second" if works else ""
    memory = found.memory
    yield f'<p class="lead"><span class="recipe">{escape(format_knobs(best))}</span></p>'
    yield html_cards(
        (
            ("Step time", format_seconds(found.step_time_s), rate),
            ("HFU", format_percent(found.hfu), "of the GPU's dense peak"),
            (
                "Memory of a GPU",
                format_gib(memory.needed_bytes),
                f"of {format_gib(memory.capacity_bytes)} usable",
            ),
        )
    )
    yield f"<pre>{escape(command_of(best))}</pre>"
    if found.assumptions:
        assumed = "".join(f"<li>{escape(each)}</li>" for each in found.assumptions)
        yield f"<details><summary>Taken for granted</summary><ul>{assumed}</ul></details>"


def knob_tables(result: SearchResult) -> Sequence[ReportTable]:
    """Of every knob that has a choice, the best launch with each: what the choice costs where all
    else is as good for it as any that was tried."""
    if not result.best:
        return ()
    best_s = predicted(result.best[0]).step_time_s
    # Launches with unlike work are compared by what a unit of it takes.
    work = result.objectives == ("tokens_per_s",)
    best_rate = predicted(result.best[0]).tokens_per_s
    tables = []
    for knob in result.best[0].point:
        groups: dict[str, list[Trial]] = {}
        for trial in result.trials:
            groups.setdefault(str(trial.point[knob]), []).append(trial)
        if len(groups) < 2:
            continue
        rows = []
        for choice, trials in groups.items():
            fits = [trial for trial in trials if trial.status == "ok"]
            if not fits:
                rows.append(Row((choice, "", "", format_statuses(trials), "")))
                continue
            costs = [
                best_rate / predicted(trial).tokens_per_s
                if work
                else predicted(trial).step_time_s / best_s
                for trial in fits
            ]
            cost = min(costs)
            fastest = fits[costs.index(cost)]
            rows.append(
                Row(
                    (
                        choice,
                        format_seconds(predicted(fastest).step_time_s),
                        f"{cost - 1:+.1%}",
                        format_statuses(trials),
                        format_knobs(fastest),
                    ),
                    chosen=choice == str(result.best[0].point[knob]),
                    move=cost - 1,
                )
            )
        rows.sort(key=lambda row: (row.move is None, row.move))
        columns = f"{knob}, #step, #slower, launches, recipe"
        tables.append(table(knob, columns, rows))
    return tables


def _breakdown(best: Sequence[Trial]) -> ReportTable:
    parts: dict[str, float] = {}
    for trial in best:
        for name, seconds in predicted(trial).breakdown_s.items():
            parts[name] = max(parts.get(name, 0.0), seconds)
    names = sorted((name for name, seconds in parts.items() if seconds), key=lambda n: -parts[n])
    columns = ["#step", *(f"#{format_part(name)}" for name in names), "recipe"]
    return table("", ",".join(columns), [_parts_row(trial, names) for trial in best])


def _parts_row(trial: Trial, names: Sequence[str]) -> Row:
    found = predicted(trial)
    parts: Mapping[str, float] = found.breakdown_s
    seconds = [found.step_time_s, *(parts.get(name, 0.0) for name in names)]
    return Row([*map(format_seconds, seconds), format_knobs(trial)])


def _launches(result: SearchResult) -> ReportTable:
    rows = []
    for trial in result.trials:
        found = trial.prediction
        step, free = "", ""
        if found is not None:
            step = format_seconds(found.step_time_s) if trial.status == "ok" else ""
            free = format_gib(found.memory.headroom_bytes)
        best = bool(result.best) and trial.number == result.best[0].number
        why = (trial.reason or trial.rule or "").removeprefix(REFUSED)
        rows.append(
            Row((str(trial.number), status_of(trial), step, free, format_knobs(trial), why), best)
        )
    return table("", "#number, status, #step, #free, recipe, reason", rows)
