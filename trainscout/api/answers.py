"""What the Python API answers with: frozen values that show themselves and give their data.

Each is short by ``repr``, the report of the command by ``print`` and in a notebook, and a pandas
frame by ``to_frame()``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from trainscout.commands.assumed import unchanged_fields
from trainscout.optimizer import trial
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import StudyOutcome
from trainscout.planning.points import Point
from trainscout.reports.capacity.study_files import study_record, study_rows
from trainscout.reports.capacity.terminal_tables import format_answer, study_report
from trainscout.reports.comparison.attribution import Change
from trainscout.reports.comparison.comparison import Comparison
from trainscout.reports.comparison.one_knob import Neighbour
from trainscout.reports.comparison.report import answer_line, comparison_report
from trainscout.reports.comparison.wording import format_change
from trainscout.reports.files import trial_columns, trial_row
from trainscout.reports.for_programs import prediction_row
from trainscout.reports.front_picture import Picture
from trainscout.reports.front_plot import front_plot
from trainscout.reports.prediction_report import prediction_report
from trainscout.reports.terminal_tables import search_report
from trainscout.reports.trials import decided_between, top_trials
from trainscout.reports.whole_network import with_whole_network
from trainscout.reports.wording import (
    format_percent,
    format_question,
    format_recipe,
    format_seconds,
)
from trainscout.simulators.predictor.answer import prediction as predictor
from trainscout.simulators.predictor.io.terminal import as_html, as_text
from trainscout.simulators.predictor.memory.bands import FITS, NO, TIGHT
from trainscout.simulators.predictor.question.errors import require_choice
from trainscout.simulators.predictor.question.framework import declared_framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.fastest import Claim, claim
from trainscout.simulators.registry import SimulatorSpec

_FITS = {FITS: "fits", TIGHT: "tight in memory", NO: "does not fit in memory"}

if TYPE_CHECKING:
    from pandas import DataFrame


class Shown:
    """A value with a report."""

    def _report(self) -> RenderableType:
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self._report())

    def _repr_html_(self) -> str:
        return as_html(self._report())


@dataclass(frozen=True, repr=False)
class Prediction(Shown, predictor.Prediction):
    """One training step of one recipe, with the job that was asked about.

    Figures are those of the simulator's prediction, units in their names: ``step_time_s``,
    ``interval_s`` (the error bar), ``mfu``, ``mfu_causal`` and ``hfu`` (fractions of the GPU's
    dense peak), ``tokens_per_s``, ``cost_of_run_usd``, ``fits``, ``memory.needed_bytes``,
    ``breakdown_s`` (part of the step to seconds, summing to the step), and more.

    Example:
        >>> import trainscout as ts
        >>> question = ts.question(model="gpt175b", cluster="h800_96")
        >>> step = ts.predict(question, tp=8, pp=12, sp=True)
        >>> step.fits, step.recipe.tp, round(sum(step.breakdown_s.values()) / step.step_time_s, 6)
        (True, 8, 1.0)
    """

    job: Job = field(kw_only=True)
    simulator: SimulatorSpec = field(kw_only=True)

    @property
    def recipe(self) -> Recipe:
        return self.job.recipe

    @property
    def question(self) -> Question:
        """What was asked, without the recipe."""
        job = self.job
        framework = declared_framework(job.framework)
        return Question(job.model, job.gpu, job.cluster, job.training, framework)

    def to_dict(self) -> dict[str, Any]:
        """The figures alone, JSON-ready."""
        names = [each.name for each in dataclasses.fields(predictor.Prediction)]
        figures = {name: getattr(self, name) for name in names}
        return predictor.Prediction(**figures).to_dict()

    def to_frame(self) -> DataFrame:
        """One row, with the columns of a search's ``trials.csv`` that a prediction fills."""
        import pandas

        return pandas.DataFrame([prediction_row(self, self.job)])

    def __repr__(self) -> str:
        step = f"{format_seconds(self.step_time_s)}, MFU {format_percent(self.mfu)}"
        memory = _FITS[self.memory.band]
        return f"<{format_recipe(self.recipe, self.job.dp)}: {step}, {memory}>"

    def _report(self) -> RenderableType:
        shown = with_whole_network(self, self.job, self.simulator)
        return prediction_report(shown, self.job, assumed=unchanged_fields(self.question))


def make_prediction(found: predictor.Prediction, job: Job, simulator: SimulatorSpec) -> Prediction:
    """The simulator's prediction with what it is one of."""
    figures = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
    return Prediction(**figures, job=job, simulator=simulator)


@dataclass(frozen=True, repr=False)
class SearchResult(Shown):
    """The outcome of one search: ``found`` has every trial, and the proof of an exact search.

    Example:
        >>> import trainscout as ts
        >>> question = ts.question(model="gpt3_2b7", cluster="h100_64", num_nodes=1)
        >>> result = ts.search(question, search="exact", executor="serial")
        >>> result.best == result.top[0], len(result.top), result.to_frame().index.name
        (True, 10, 'rank')
    """

    question: Question
    simulator: SimulatorSpec
    found: trial.SearchResult
    top_k: int

    @property
    def best(self) -> Prediction | None:
        """The best recipe's prediction; None when nothing fits."""
        return self.top[0] if self.top else None

    @property
    def claim(self) -> Claim | None:
        """The MFU of ``best`` beside the fastest published run of its kind; None when nothing
        fits, or for several objectives."""
        if self.best is None or len(self.found.objectives) > 1:
            return None
        return claim(self.best.job, self.best.mfu)

    @functools.cached_property
    def top(self) -> tuple[Prediction, ...]:
        """The best recipes, best first, or the Pareto front of several objectives."""
        return self._predictions(self._shown)

    @functools.cached_property
    def tight(self) -> tuple[Prediction, ...]:
        """The best recipes that may fit (``memory.fit_probability``) and would beat ``best``."""
        return self._predictions(self.found.tight)

    def _predictions(self, trials: Iterable[trial.Trial]) -> tuple[Prediction, ...]:
        return tuple(
            make_prediction(each.prediction, self.question.job(each.recipe), self.simulator)
            for each in trials
            if each.prediction is not None
        )

    @property
    def proved(self) -> bool:
        """Whether nothing in the space is better than ``best``, under the simulator."""
        return self.found.certificate is not None and self.found.certificate.proved

    @functools.cached_property
    def picture(self) -> Picture | None:
        """Step time against memory (of several objectives, the first two against each other) of
        everything that was simulated; ``.save(path)`` writes it as SVG. None when there is too
        little to see."""
        plot = front_plot(self.found, decided_between(self.found))
        job = self.question.job(Recipe())
        return None if plot is None else Picture(plot, format_question(job))

    def to_frame(self, table: str = "top") -> DataFrame:
        """A row for each recipe of a table.

        The columns are those of a search's ``trials.csv`` (docs/output.md): status, objective,
        recipe, prediction, memory, ``breakdown_s.<part>``; the index is ``rank`` or ``number``.

        Args:
            table: ``top``: those in ``top``. ``layouts``: those that ``print`` compares, the best
                of each layout, a roomy and a simple one. ``trials``: each, whatever became of it.

        Raises:
            InputError: for another table.
        """
        require_choice("table", table, ("top", "layouts", "trials"))
        import pandas

        trials = table == "trials"
        compared = decided_between(self.found) if table == "layouts" else self._shown
        shown = self.found.trials if trials else compared
        objectives = self.found.objectives
        frame = pandas.DataFrame(
            [trial_row(each, objectives, self.question.job) for each in shown],
            columns=trial_columns(shown, objectives),
        )
        if trials:
            return frame.set_index("number")
        frame.index = pandas.RangeIndex(1, len(frame) + 1, name="rank")
        return frame

    @property
    def _shown(self) -> tuple[trial.Trial, ...]:
        return top_trials(self.found, self.top_k)

    def __repr__(self) -> str:
        if self.best is None:
            return f"<search of {len(self.found.trials):,} recipes: nothing fits>"
        return f"<search of {len(self.found.trials):,} recipes: best {self.best!r}>"

    def _report(self) -> RenderableType:
        assumed = unchanged_fields(self.question)
        return search_report(self.found, self.question.job, None, assumed=assumed)

    def _repr_html_(self) -> str:
        picture = self.picture
        return super()._repr_html_() + ("" if picture is None else picture.to_svg())


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """Where each second of a recipe goes, and why another takes more or less.

    Example:
        >>> import trainscout as ts
        >>> question = ts.question(model="gpt175b", cluster="h800_96")
        >>> a, b = ts.Recipe(tp=8, pp=12, sp=True), ts.Recipe(tp=4, pp=12, sp=True)
        >>> why = ts.explain(a, b, question=question)
        >>> list(why.to_frame().columns)
        ['a_s', 'b_s', 'difference_s', 'mechanism']
    """

    comparison: Comparison

    @property
    def changes(self) -> tuple[Change, ...]:
        """What each change of the recipe brings from ``a`` to ``b``, the largest first."""
        difference = self.comparison.difference
        if difference is None or difference.attribution is None:
            return ()
        return difference.attribution.changes

    @property
    def one_knob(self) -> tuple[Neighbour, ...]:
        """What changing one knob of ``a`` would do, the shortest step first."""
        return self.comparison.neighbours

    def to_frame(self, table: str = "parts") -> DataFrame:
        """One of the tables of the report, times in seconds, memory in bytes.

        Args:
            table: ``parts``: a row for each part of the step, the largest difference first:
                seconds of ``a``, and with a ``b`` also its, the difference, and the mechanism in
                words (empty: too small). ``changes``: what each change from ``a`` to ``b`` brings.
                ``one_knob``: what changing one knob of ``a`` would do.

        Raises:
            InputError: for another table.
        """
        require_choice("table", table, ("parts", "changes", "one_knob"))
        if table == "parts":
            return self._parts()
        import pandas

        changes: list[tuple[Change | Neighbour, float, float]]
        if table == "changes":
            changes = [(each, each.step_s, each.memory_bytes) for each in self.changes]
        else:
            base = self.comparison.first.prediction
            needed = base.memory.needed_bytes
            changes = [
                (
                    each,
                    each.prediction.step_time_s - base.step_time_s,
                    each.prediction.memory.needed_bytes - needed,
                )
                for each in self.one_knob
            ]
        rows = [
            (format_change(each.fields, each.before, each.after), step_s, memory_bytes)
            for each, step_s, memory_bytes in changes
        ]
        return pandas.DataFrame(rows, columns=["change", "step_s", "memory_bytes"])

    def _parts(self) -> DataFrame:
        import pandas

        first, difference = self.comparison.first, self.comparison.difference
        frame = pandas.DataFrame({"a_s": first.prediction.breakdown_s})
        frame.index.name = "part"
        if difference is None:
            return frame.sort_values("a_s", ascending=False)
        other = pandas.Series(difference.other.prediction.breakdown_s, name="b_s")
        frame = frame.join(other, how="outer").fillna(0.0).rename_axis("part")
        frame["difference_s"] = frame.b_s - frame.a_s
        mechanisms = {reason.part: reason.words for reason in difference.reasons}
        frame["mechanism"] = [mechanisms.get(part, "") for part in frame.index]
        return frame.sort_values("difference_s", key=lambda seconds: -seconds.abs())

    def __repr__(self) -> str:
        return f"<{' '.join(as_text(answer_line(self.comparison)).split())}>"

    def _report(self) -> RenderableType:
        return comparison_report(self.comparison)


@dataclass(frozen=True, repr=False)
class CapacityPlan(Shown):
    """The outcome of a capacity study; ``outcome`` has all of it.

    Example:
        >>> import trainscout as ts
        >>> changes = {"models": ["gpt3_2b7"], "clusters": ["h100_64"], "what_ifs": {}}
        >>> study = ts.plan("llama3_8b", num_gpus=[8], **changes)
        >>> study.to_frame().status[0]
        'fits'
    """

    outcome: StudyOutcome
    reliability: Reliability

    @property
    def answers(self) -> dict[str, Point | None]:
        """For each model the cell that the study's targets choose; None where nothing fits."""
        return {model.model: model.chosen for model in self.outcome.models}

    def to_frame(self, table: str = "cells") -> DataFrame:
        """A row for each cell, with the columns of ``study.csv`` (docs/planning.md); or another
        table of the study by model: ``targets``, ``effects`` (what-ifs), ``break_evens``,
        ``price_scenarios``, ``fabrics``, with the fields of ``study.json``.

        Raises:
            InputError: for another table.
        """
        named = ("targets", "effects", "break_evens", "price_scenarios", "fabrics")
        require_choice("table", table, ("cells", *named))
        import pandas

        record = self._record()
        if table == "cells":
            columns, rows = study_rows(record)
            return pandas.DataFrame(rows, columns=columns)
        models = record["models"]
        return pandas.DataFrame(
            {"model": each["model"], **row} for each in models for row in each[table]
        )

    def __repr__(self) -> str:
        return f"<{' '.join(format_answer(each, self.outcome) for each in self.outcome.models)}>"

    def _report(self) -> RenderableType:
        return study_report(
            self.outcome, self._record(), self.reliability, None, None, verbosity="normal"
        )

    def _record(self) -> dict[str, Any]:
        return study_record(self.outcome, started="", commit=None, groups={})
