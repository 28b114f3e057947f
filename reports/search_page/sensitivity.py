"""How far the answer leans on what is assumed: the best recipe again, with one thing changed.

Prices move money only, and the error bar is what it is; all else is simulated again, with the best
recipes of other layouts beside it, which says whether the answer would be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trainscout.optimizer.trial import Trial
from trainscout.reports.search_page.recipes import SECONDS_A_DAY
from trainscout.reports.trials import layout, predicted
from trainscout.reports.wording import format_seconds, format_usd
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.second_core import both
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import Calibration
from trainscout.simulators.registry import SimulatorSpec, get_simulator

# Recipes of this many layouts are held against each other. The search should not wait for its
# report: these cost a third of a second.
COMPARED_LAYOUTS = 4

World = tuple[Question, SimulatorSpec]


@dataclass(frozen=True)
class Change:
    """Something assumed, moved by ``factors``; ``apply`` moves it by one of them.

    The first factor is for the worse. ``rewires``: a network engine would have to play it anew.
    """

    name: str
    setting: str
    factors: tuple[float, float]
    apply: Callable[[World, float], World]
    rewires: bool = False


def _rate(setting: str) -> Callable[[World, float], World]:
    """What multiplies a figure of the question."""
    part, _, name = setting.partition(".")

    def apply(world: World, factor: float) -> World:
        question, simulator = world
        own: Any = getattr(question, part)
        moved = replace(own, **{name: getattr(own, name) * factor})
        return replace(question, **{part: moved}), simulator

    return apply


def _peak(world: World, factor: float) -> World:
    question, simulator = world
    peaks = {name: rate * factor for name, rate in question.gpu.peak_flops.items()}
    return replace(question, gpu=replace(question.gpu, peak_flops=peaks)), simulator


def _time(*names: str) -> Callable[[World, float], World]:
    """What multiplies times that ``Calibration`` corrects, on top of the correction in use."""

    def apply(world: World, factor: float) -> World:
        question, simulator = world
        known = simulator.calibration or Calibration((question.gpu.name,))
        factors = replace(
            known.factors, **{name: getattr(known.factors, name) * factor for name in names}
        )
        return question, replace(simulator, calibration=replace(known, factors=factors))

    return apply


_NICS, _NVLINK = "cluster.nic_gbps", "gpu.nvlink_bytes_per_s"
_MEMORY = "gpu.memory_bandwidth_bytes_per_s"
CHANGES = (
    Change("bandwidth between nodes", _NICS, (0.5, 2.0), _rate(_NICS), True),
    Change(
        "time of communication between nodes, latency included",
        "network_time",
        (1.5, 1 / 1.5),
        _time("network_time"),
    ),
    Change("bandwidth inside a node", _NVLINK, (0.5, 2.0), _rate(_NVLINK), True),
    Change(
        "time of every kernel",
        "compute_time",
        (1.2, 1 / 1.2),
        _time("compute_time", "memory_time"),
    ),
    Change("peak FLOP/s at the same power", "gpu.peak_flops", (0.8, 1.25), _peak),
    Change("GPU memory bandwidth", _MEMORY, (0.8, 1.25), _rate(_MEMORY)),
    Change("host time of a launch", "host_time", (2.0, 0.5), _time("host_time")),
)
PRICE_FACTORS = (1.2, 0.8)


def sensitivity(
    ranked: Sequence[Trial], question: Question, simulator: SimulatorSpec
) -> dict[str, Any]:
    """Rows of ``{"name", "setting", "ends"}``: the best recipe with one thing changed, for worse
    and for better.

    An end has its ``label``, ``step_time_s``, ``cost_of_run_usd``, ``days``, and ``winner``: the
    rank in ``ranked`` of the fastest of the ``compared`` ranks; None where none was simulated.
    ``base`` is an end without a change; ``notes`` say what is missing, and why.
    """
    base, notes = _base(ranked[0], question, simulator)
    rows = [_price_row(base, question)] if base.cost_of_run_usd else []
    if base.interval_s is not None:
        rows.append(_error_bar_row(base, question, base.interval_s))
    record: dict[str, Any] = {
        "base": _end("as asked", base, question, None),
        "rows": rows,
        "compared": [],
        "notes": notes,
    }
    if simulator.name != "replay":
        record["notes"] += [
            f"simulator={simulator.name} is too slow to ask again for every change"
        ]
        return record
    compared = _best_of_layouts(ranked)
    record["compared"] = [rank for rank, _ in compared]
    changes = _applicable(question)
    if simulator.network is not None:
        changes = [change for change in changes if not change.rewires]
        engine = simulator.network.choice.engine
        record["notes"] += [
            f"bandwidths are left out: network={engine} would have to play every change anew"
        ]

    def changed(some: Sequence[Change]) -> list[dict[str, Any]]:
        return [_change_row(change, compared, (question, simulator)) for change in some]

    half = len(changes) // 2
    first, second = both(partial(changed, changes[:half]), partial(changed, changes[half:]))
    record["rows"] += first + second
    return record


def _base(
    best: Trial, question: Question, simulator: SimulatorSpec
) -> tuple[Prediction, list[str]]:
    """What changes are held against, and what to say of it: a recipe that was promoted to another
    simulator is simulated again by the search's own, which answers for the changes."""
    if best.searched_values is None:
        return predicted(best), []
    base = get_simulator(simulator).simulate(question.job(best.recipe))
    note = f"by simulator={simulator.name} as the search was, for which #1 takes "
    return base, [note + format_seconds(base.step_time_s)]


def _applicable(question: Question) -> list[Change]:
    """Changes of what this cluster has at all."""
    cluster, absent = question.cluster, set()
    if cluster.num_gpus <= cluster.domain or not cluster.nic_gbps:
        absent |= {_NICS, "network_time"}
    if not question.gpu.nvlink_bytes_per_s:
        absent.add(_NVLINK)
    return [change for change in CHANGES if change.setting not in absent]


def _best_of_layouts(ranked: Sequence[Trial]) -> list[tuple[int, Recipe]]:
    """Rank and recipe of the first of each layout, best first."""
    firsts: dict[tuple[object, ...], tuple[int, Recipe]] = {}
    for rank, trial in enumerate(ranked, start=1):
        firsts.setdefault(layout(trial), (rank, trial.recipe))
    return list(firsts.values())[:COMPARED_LAYOUTS]


def _change_row(
    change: Change, compared: Sequence[tuple[int, Recipe]], world: World
) -> dict[str, Any]:
    ends = []
    for factor in change.factors:
        question, spec = change.apply(world, factor)
        simulator = get_simulator(spec)
        assert isinstance(simulator, ReplaySimulator)
        (first, best), *others = compared
        answer = simulator.simulate(question.job(best))
        seconds = {first: answer.step_time_s}
        # Of the others only the time is asked.
        seconds |= {rank: simulator.step_time_s(question.job(each)) for rank, each in others}
        winner = min(seconds, key=seconds.__getitem__)
        # What people say rather than a factor below one.
        words = f"× {factor:g}" if factor >= 1 else f"÷ {1 / factor:g}"
        ends.append(_end(words, answer, question, winner))
    return {"name": change.name, "setting": change.setting, "ends": ends}


def _price_row(best: Prediction, question: Question) -> dict[str, Any]:
    ends = [
        {
            **_end(format_usd(question.gpu.price_usd_per_hour * factor), best, question, None),
            "cost_of_run_usd": best.cost_of_run_usd * factor,
        }
        for factor in PRICE_FACTORS
    ]
    return {"name": "price of a GPU-hour", "setting": "gpu.price_usd_per_hour", "ends": ends}


def _error_bar_row(
    best: Prediction, question: Question, interval_s: tuple[float, float]
) -> dict[str, Any]:
    ends = []
    for label, seconds in zip(("high end", "low end"), reversed(interval_s), strict=True):
        share = seconds / best.step_time_s
        end = _end(label, best, question, None)
        scaled = {name: end[name] * share for name in ("step_time_s", "cost_of_run_usd", "days")}
        ends.append({**end, **scaled})
    return {"name": "error bar of the step", "setting": None, "ends": ends}


def _end(
    label: str, prediction: Prediction, question: Question, winner: int | None
) -> dict[str, Any]:
    return {
        "label": label,
        "step_time_s": prediction.step_time_s,
        "cost_of_run_usd": prediction.cost_of_run_usd,
        "days": question.training.tokens / prediction.tokens_per_s / SECONDS_A_DAY,
        "winner": winner,
    }
