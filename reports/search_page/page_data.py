"""A search as the plain data of its report: what the browser draws, and nothing it must know."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainscout.optimizer.certificate import Certificate, DegreesBound
from trainscout.optimizer.objective import MEASURES
from trainscout.optimizer.screen import MEMORY_RULE, TIME_RULE
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.error_bars import format_distinguishable
from trainscout.reports.explain import JobOf, why_best
from trainscout.reports.nothing_found import closest_misses, format_tight, why_nothing_fits
from trainscout.reports.proof import format_claim, format_proof
from trainscout.reports.search_page.recipes import recipe_rows
from trainscout.reports.search_page.searched import Searched
from trainscout.reports.search_page.sensitivity import sensitivity
from trainscout.reports.search_page.trial_table import trial_table
from trainscout.reports.trials import choices_of, latest_trials, layout, offered_tight, predicted
from trainscout.reports.verification import verification_record
from trainscout.reports.whole_network import network_note
from trainscout.reports.wording import (
    STOP_WORDS,
    format_chance,
    format_error_bar,
    format_gib,
    format_part,
    format_question,
    format_recipe,
    format_tokens,
)
from trainscout.simulators.predictor.answer.prediction import Memory, Prediction
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.interval import LEVEL
from trainscout.simulators.predictor.uncertainty.table import published_residuals
from trainscout.simulators.registry import SimulatorSpec, measured_table

# Recipes drawn side by side; a Pareto front may have more, which the other figures show.
MOST_RECIPES = 40
_MISSES = 10


def page_record(searched: Searched) -> dict[str, Any]:
    """Everything the report shows, ready for JSON; figures carry their unit in their name."""
    result, question = searched.result, searched.question
    job_of = question.job
    ranked = searched.shown[:MOST_RECIPES]
    drawn = ranked or closest_misses(result)[:_MISSES]
    trials = latest_trials(result)
    notes = {trial.number: why for trial, why in choices_of(result)}
    record: dict[str, Any] = {
        "title": f"{question.model.name} on {question.cluster.name}",
        "question": _question(searched),
        "objectives": [
            {"name": name, "unit": MEASURES[name].unit, "minimise": MEASURES[name].minimise}
            for name in result.objectives
        ],
        "answered": bool(ranked),
        "recipes": recipe_rows(drawn, job_of, notes),
        "parts": _parts(drawn),
        "memory": [memory_stages(predicted(trial).memory) for trial in drawn],
        "pareto": [trial.number for trial in result.pareto],
        "map": layout_map(trials, job_of, result.certificate),
        "trials": trial_table(trials, result.objectives, job_of, shown=drawn),
        "search": _search(result),
        "checked": verification_record(searched.checks, job_of),
        "provenance": _provenance(searched),
        "launch": [{"name": n, "text": text} for n, text in searched.launch_files.items()],
    }
    if ranked:
        record |= _answer(ranked, searched)
        record["pipeline"] = pipeline_bars(job_of(ranked[0].recipe), searched.simulator)
    else:
        record["nothing"] = [*why_nothing_fits(result, job_of).splitlines(), *searched.relief]
    return record


def _answer(ranked: Sequence[Trial], searched: Searched) -> dict[str, Any]:
    """What only a search with an answer has."""
    result, question = searched.result, searched.question
    best = predicted(ranked[0])
    single = len(result.objectives) == 1
    others = [at for at, trial in enumerate(ranked) if layout(trial) != layout(ranked[0])]
    return {
        "tight": format_tight(replace(result, tight=offered_tight(result)), question.job),
        "why": why_best(result, question.job) if single else None,
        "distinguishable": format_distinguishable(ranked, question.job) if single else None,
        "error_bar": format_error_bar(best),
        "waterfalls": [waterfall(best, predicted(t)) for t in ranked],
        "rival": others[0] if others else min(1, len(ranked) - 1),
        "sensitivity": sensitivity(ranked, question, searched.simulator),
    }


def _question(searched: Searched) -> dict[str, Any]:
    question = searched.question
    job = question.job(Recipe())
    return {
        "words": format_question(job),
        "num_gpus": job.world_size,
        "gpu": question.gpu.name,
        "memory_reserve": question.cluster.memory_reserve,
        "tokens": format_tokens(question.training.tokens),
        "price_usd_per_hour": question.gpu.price_usd_per_hour,
    }


def _parts(drawn: Sequence[Trial]) -> list[dict[str, str]]:
    """The parts of the step that any recipe spends time on, the largest of the first one first."""
    first = predicted(drawn[0]).breakdown_s if drawn else {}
    names = sorted(first, key=lambda name: -first[name])
    names += [name for trial in drawn for name in predicted(trial).breakdown_s]
    return [{"name": name, "label": format_part(name)} for name in dict.fromkeys(names)]


def _search(result: SearchResult) -> dict[str, Any]:
    certificate, between = result.certificate, network_note(result)
    return {
        "counts": result.counts(),
        "rules": {s: result.counts_by_rule(s) for s in ("pruned", "invalid")},
        "stopped": STOP_WORDS[result.stopped],
        "wall_s": result.wall_s,
        "space_size": result.space_size,
        "resumed_trials": result.resumed_trials,
        "notes": [note for note in result.notes if note != between],
        "network": between,
        "claim": None if certificate is None else format_claim(certificate),
        "proof": None if certificate is None else format_proof(certificate),
    }


def _provenance(searched: Searched) -> list[tuple[str, str]]:
    request, spec = searched.request, searched.simulator
    known = published_residuals()
    runs, gpu = len(known.ids), searched.question.gpu.name
    rows = [
        ("command", request.command),
        ("started", request.started),
        ("Trainscout", request.version or "not installed, run from a checkout"),
        ("git commit", request.commit or "unknown"),
        ("settings", f"config hash {request.config_hash}; .hydra/config.yaml has them all"),
        ("seed", str(request.seed)),
        ("simulator", _format_simulator(searched)),
        ("network", "white-box collectives" if spec.network is None else spec.network.words),
        ("framework", ", ".join(each.name for each in searched.question.framework.offered)),
        (
            "error bars",
            f"{LEVEL:.0%} intervals from {runs:,} published runs "
            f"({known.publications(gpu)} publications with runs on {gpu})",
        ),
        ("Python", f"{platform.python_version()} on {platform.system()}"),
    ]
    if spec.calibration is not None:
        rows.append(("calibration", spec.calibration.words))
    for name in ("model", "cluster"):
        source = getattr(getattr(searched.question, name), "source", "")
        if source:
            rows.append((f"{name} from", source))
    return rows


def _format_simulator(searched: Searched) -> str:
    spec = searched.simulator
    if spec.measured_kernels is None:
        return spec.name
    return f"{spec.name}, with measured kernels of {spec.measured_kernels.path}"


# What the allocator holds of the device beyond its live tensors.
FRAGMENTATION = "fragmentation"


def memory_stages(memory: Memory) -> dict[str, Any]:
    """``kinds`` in words, and the bytes of each for every stage.

    They sum to what a stage needs of the device; for the worst stage, to the capacity less the
    headroom.
    """
    kinds = list(dict.fromkeys(kind for stage in memory.per_stage for kind in stage.kind))
    return {
        "kinds": [*(kind.replace("_", " ") for kind in kinds), FRAGMENTATION],
        "capacity_bytes": memory.capacity_bytes,
        "worst_stage": memory.worst_stage,
        "stages": [
            {
                "stage": stage.stage,
                "bytes": [
                    *(stage.kind.get(kind, 0) for kind in kinds),
                    max(0, stage.peak_reserved_bytes - stage.peak_allocated_bytes),
                ],
            }
            for stage in memory.per_stage
        ],
    }


# Differences below this share of the step are summed up in one bar.
NOTABLE_SHARE = 0.001
REST = "rest"


def waterfall(best: Prediction, rival: Prediction) -> list[dict[str, Any]]:
    """Bars that lead from the best's step time to the rival's, largest first.

    Each is ``{"part", "label", "seconds"}``, where seconds are the rival's less the best's, of one
    part of the critical path; small ones are summed up in the last. They sum to the difference of
    the two step times.
    """
    gaps = rival.gaps_s(best)
    least_s = NOTABLE_SHARE * sum(best.breakdown_s.values())
    notable = sorted(
        ((name, gap) for name, gap in gaps.items() if abs(gap) >= least_s),
        key=lambda pair: -abs(pair[1]),
    )
    bars = [{"part": name, "label": format_part(name), "seconds": gap} for name, gap in notable]
    rest_s = sum(gaps.values()) - sum(gap for _, gap in notable)
    if len(notable) < len(gaps):
        bars.append({"part": REST, "label": "all else", "seconds": rest_s})
    return bars


# More bars can neither be distinguished nor drawn at once.
MOST_BARS = 5000
_TICKS_PER_S = 1e6


def shown_micro_batches(job: Job, most_bars: int = MOST_BARS) -> int:
    """How many micro-batches to show: enough that the pipeline fills, runs steadily for half its
    depth and drains, as far as ``most_bars`` passes allow."""
    recipe, unit = job.recipe, job.micro_batch_round
    wanted = recipe.pp + max(4, recipe.pp // 2)
    drawable = most_bars // (2 * recipe.pp * recipe.vpp)
    count = min(wanted, max(drawable, unit))
    least = job.least_micro_batches
    return min(max(least, -(-count // unit) * unit), job.num_micro_batches)


def pipeline_bars(job: Job, simulator: SimulatorSpec) -> dict[str, Any]:
    """Bars in columns: ``stage``, ``lane``, ``kind`` (into ``kinds``), ``chunk``, ``micro_batch``
    (-1: none), ``start`` and ``length`` in microseconds, and ``recompute``, how much of it repeats
    a forward pass; or ``unavailable``, the reason why there are none.
    """
    if simulator.name != "replay":
        return {"unavailable": f"simulator={simulator.name} plays whole ranks, no single passes"}
    from trainscout.simulators.predictor.replay.pass_timeline import LANES, PASS_KINDS, passes_of
    from trainscout.simulators.predictor.replay.step_program import step_program

    played = passes_of(
        step_program(
            job,
            shown_micro_batches(job),
            calibration=simulator.calibration,
            measured=measured_table(simulator.measured_kernels),
            network=simulator.network,
        )
    )
    start = np.rint(played.start_s * _TICKS_PER_S).astype(np.int64)
    end = np.rint(played.end_s * _TICKS_PER_S).astype(np.int64)
    return {
        "kinds": list(PASS_KINDS),
        "lanes": list(LANES),
        "stages": job.recipe.pp,
        "chunks": job.recipe.vpp,
        "micro_batches": played.micro_batches,
        "num_micro_batches": played.num_micro_batches,
        "stage": played.stage.tolist(),
        "lane": played.lane.tolist(),
        "kind": played.kind.tolist(),
        "chunk": played.chunk.tolist(),
        "micro_batch": played.micro_batch.tolist(),
        "start": start.tolist(),
        "length": (end - start).tolist(),
        "recompute": np.rint(played.recompute_s * _TICKS_PER_S).astype(np.int64).tolist(),
    }


# What a cell may come to, best first.
_OUTCOMES = ("fits", "tight", "memory", "slower", "pruned", "failed", "invalid")
FITS, TIGHT, NO_MEMORY, SLOWER, PRUNED, FAILED, INVALID = _OUTCOMES
UNASKED = "unasked"
_OF_STATUS = {"ok": FITS, "oom": NO_MEMORY}
_OF_RULE = {MEMORY_RULE: NO_MEMORY, TIME_RULE: SLOWER}


def outcome(trial: Trial) -> str:
    """What a trial says about its combination."""
    return _OF_RULE.get(trial.rule or "") or _OF_STATUS.get(trial.status, trial.status)


def layout_map(
    trials: Sequence[Trial], job_of: JobOf, certificate: Certificate | None
) -> dict[str, Any]:
    """``tp`` and ``pp``: the degrees that were asked for or bounded, ascending; ``cells``: one a
    combination, row by row of ``pp``.

    A cell has its ``outcome``; the ``number``, ``step_time_s`` and ``words`` of its fastest recipe
    that fits; how many trials came to which end; and ``why`` none fits.
    """
    cells: dict[tuple[int, int], list[Trial]] = {}
    for trial in trials:
        cells.setdefault((trial.recipe.pp, trial.recipe.tp), []).append(trial)
    bounds = {(each.pp, each.tp): each for each in certificate.degrees} if certificate else {}
    tp = sorted({tp for _, tp in (*cells, *bounds)})
    pp = sorted({pp for pp, _ in (*cells, *bounds)})
    return {
        "tp": tp,
        "pp": pp,
        "cells": [
            _cell(cells[place], job_of)
            if place in cells
            else _unasked(bounds.get(place), certificate)
            for place in ((row, column) for row in pp for column in tp)
        ],
    }


def _unasked(bound: DegreesBound | None, certificate: Certificate | None) -> dict[str, Any]:
    """A combination of which nothing was simulated: what its bounds say."""
    if certificate is None or not certificate.degrees:
        return {"outcome": UNASKED, "counts": {}, "why": "no recipe of it was proposed"}
    if bound is None:
        why = "none of its recipes can be launched: a validity rule breaks each"
        return {"outcome": INVALID, "counts": {}, "why": why}
    if bound.bound is None:
        why = (
            f"cannot fit: of its {bound.recipes:,} recipes the smallest needs at least "
            f"{bound.least_memory_share:.0%} of the usable memory"
        )
        return {"outcome": NO_MEMORY, "counts": {}, "why": why}
    name = certificate.objectives[0]
    why = (
        f"by its bound none of its {bound.may_fit:,} recipes that may fit does better than "
        f"{bound.bound:,.4g} {MEASURES[name].unit} ({name.replace('_', ' ')})"
    )
    return {"outcome": SLOWER, "counts": {}, "why": why}


def _cell(trials: Sequence[Trial], job_of: JobOf) -> dict[str, Any]:
    ends: dict[str, list[Trial]] = {}
    for trial in trials:
        ends.setdefault(outcome(trial), []).append(trial)
    counts = dict(Counter({end: len(ends[end]) for end in _OUTCOMES if end in ends}))
    best_end = next(end for end in _OUTCOMES if end in ends)
    cell: dict[str, Any] = {"outcome": best_end, "counts": counts}
    if best_end == FITS:
        best = min(ends[FITS], key=lambda trial: predicted(trial).step_time_s)
        cell["number"] = best.number
        cell["step_time_s"] = predicted(best).step_time_s
        cell["words"] = format_recipe(best.recipe, job_of(best.recipe).dp)
    else:
        cell["why"] = _why(best_end, ends[best_end])
    return cell


def _why(end: str, trials: Sequence[Trial]) -> str:
    simulated = [trial for trial in trials if trial.prediction is not None]
    if end == TIGHT:
        likeliest = max(simulated, key=lambda trial: predicted(trial).memory.fit_probability)
        return f"may fit: the likeliest recipe {format_chance(predicted(likeliest).memory)}"
    if end == NO_MEMORY and simulated:
        closest = min(simulated, key=lambda trial: predicted(trial).memory.missing_bytes)
        missing = format_gib(predicted(closest).memory.missing_bytes)
        return f"does not fit: the closest recipe lacks {missing}"
    reasons = Counter(trial.reason for trial in trials if trial.reason)
    return reasons.most_common(1)[0][0] if reasons else f"{trials[0].status}"
