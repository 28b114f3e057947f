"""Size and speed of a search's report: ``python -m benchmarks.report_page``.

The search is made up but shaped like a real one: random recipes of GPT-175B on 96 H800, judged by
the real validity rules, with real predictions of a few recipes that the others get stretched.
Speed is measured in headless Chromium: from navigation until the page is drawn, and from a click
or key until the table has been laid out and painted.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.question import declared
from tests.browser import chromium, open_in
from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.launch import megatron_launch
from trainscout.reports.search_page import PAGE, Asked, Searched, write_search_page
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.registry import SimulatorSpec, get_simulator

CHOICES = {
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96),
    "vpp": (1, 2, 3, 4, 6, 8),
    "micro_batch": (1, 2, 4, 8),
    "recompute": ("none", "selective", "full"),
    "sp": (False, True),
    "zero_stage": (0, 1),
    "overlap_grad_reduce": (False, True),
    "overlap_param_gather": (False, True),
    "tp_comm_overlap": (False, True),
}
TOP_K = 10
# Does something, then waits until the page is painted again; milliseconds.
_UNTIL_PAINTED = """async (act) => {
  const begin = performance.now();
  new Function(act)();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return performance.now() - begin;
}"""
_SORT = """[...document.querySelectorAll("#trials th button")]
  .find((button) => button.textContent === "{}").click()"""
_FILTER = """const box = document.querySelector("#trials input[type=search]");
  box.value = "{}"; box.dispatchEvent(new Event("input"))"""
_BRUSH = """document.querySelector("#tradeoffs [role=slider]")
  .dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp" }))"""
_ACTIONS = {
    "sort by step time": _SORT.format("step"),
    "sort by recipe": _SORT.format("recipe"),
    "sort by reason": _SORT.format("why"),
    "filter by two words": _FILTER.format("tp4 recompute"),
    "filter by a reason": _FILTER.format("does not divide"),
    "clear the filter": _FILTER.format(""),
    "brush a knob": _BRUSH,
}


def fitting_predictions(question: Question) -> list[Prediction]:
    """Of recipes that fit: one layout with every switch."""
    simulator = get_simulator("replay")
    switches = ("recompute", "zero_stage", "overlap_grad_reduce", "tp_comm_overlap")
    recipes = [
        Recipe(tp=8, pp=12, vpp=4, sp=True, **dict(zip(switches, chosen, strict=True)))
        for chosen in itertools.product(*(CHOICES[name] for name in switches))
    ]
    return [simulator.simulate(question.job(recipe)) for recipe in recipes]


def slowed(prediction: Prediction, factor: float) -> Prediction:
    """The same prediction of a step ``factor`` times as long."""
    low_s, high_s = prediction.interval_s or (prediction.step_time_s,) * 2
    return replace(
        prediction,
        step_time_s=prediction.step_time_s * factor,
        cost_of_run_usd=prediction.cost_of_run_usd * factor,
        breakdown_s={part: s * factor for part, s in prediction.breakdown_s.items()},
        interval_s=(low_s * factor, high_s * factor),
    )


def made_up_search(
    question: Question, count: int, fitting_share: float, seed: int
) -> SearchResult:
    """``count`` distinct recipes, a quarter of them invalid; of the others ``fitting_share`` with
    the prediction of one that was simulated, and the rest pruned."""
    random = np.random.default_rng(seed)
    points = list(itertools.product(*CHOICES.values()))
    recipes = (
        Recipe(**dict(zip(CHOICES, points[at], strict=True)))
        for at in random.permutation(len(points))
    )
    known = fitting_predictions(question)
    trials: list[Trial] = []
    invalid_left = count // 4
    for recipe in recipes:
        number = len(trials)
        if number == count:
            break
        broken = why_invalid(question.job(recipe))
        if broken is not None:
            if invalid_left:
                invalid_left -= 1
                trials.append(Trial(number, {}, recipe, "invalid", broken.rule, broken.reason))
        elif random.random() < fitting_share:
            likely = known[int(random.integers(len(known)))]
            prediction = slowed(likely, float(random.uniform(0.8, 1.6)))
            values = (prediction.cost_of_run_usd,)
            trials.append(Trial(number, {}, recipe, "ok", values=values, prediction=prediction))
        else:
            words = f"needs at least {random.uniform(80, 2000):.1f} of 75.7 GiB"
            trials.append(Trial(number, {}, recipe, "pruned", "memory_bound", words))
    ok = [trial for trial in trials if trial.status == "ok" and trial.values is not None]
    ok.sort(key=lambda trial: trial.values or ())
    best = tuple(ok[:TOP_K])
    return SearchResult(tuple(trials), best, best[:1], ("cost",), "n_trials", 60.0, len(points))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the HTML report of a search.")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--fitting-share", type=float, default=0.5, help="of launchable recipes")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    question = declared("model=gpt175b", "cluster=h800_96")
    result = made_up_search(question, options.trials, options.fitting_share, options.seed)
    launch = megatron_launch(question.job(result.best[0].recipe)).script_text
    asked = Asked("python -m benchmarks.report_page", "now", "0", options.seed)
    searched = Searched(
        result, question, SimulatorSpec(), result.best, asked, {"launch.sh": launch}
    )
    with tempfile.TemporaryDirectory() as folder:
        # What a search has loaded by the time it writes its report is not the report's to pay.
        write_search_page(Path(folder), searched)
        begin = time.perf_counter()
        path = write_search_page(Path(folder), searched)
        wrote_s = time.perf_counter() - begin
        counts = ", ".join(f"{count:,} {status}" for status, count in result.counts().items())
        print(f"{len(result.trials):,} trials: {counts}")
        print(f"{PAGE}: {path.stat().st_size / 1e6:.2f} MB, written in {wrote_s:.2f} s")
        measure(path, options.repeat)


def measure(path: Path, repeat: int) -> None:
    """Print how long the page at ``path`` takes to open, and to do what readers do."""
    with chromium() as browser:
        # The policy forbids code from text, which is how actions are handed in.
        settings = {"bypass_csp": True}
        open_in(browser, path, **settings).page.context.close()

        def opening_s() -> float:
            begin = time.perf_counter()
            page = open_in(browser, path, **settings).page
            page.wait_for_selector("html[data-ready]")
            page.evaluate(_UNTIL_PAINTED, "")
            seconds = time.perf_counter() - begin
            page.context.close()
            return seconds

        show("open", opening_s, repeat)
        page = open_in(browser, path, **settings).page
        for name, act in _ACTIONS.items():
            show(name, lambda act=act: page.evaluate(_UNTIL_PAINTED, act) / 1e3, repeat)


def show(name: str, measure_s: Callable[[], float], repeat: int) -> None:
    seconds = [measure_s() for _ in range(repeat)]
    middle = statistics.median(seconds)
    print(f"{name}: {middle * 1e3:,.0f} ms ({min(seconds) * 1e3:,.0f}-{max(seconds) * 1e3:,.0f})")


if __name__ == "__main__":
    main()
