"""Whether a change moved an answer, to the last digit: predictions, bounds, certificates.

    python -m benchmarks.same_answers keep FILE      # before the change
    python -m benchmarks.same_answers compare FILE   # after it: what differs, and by how much

Looks at published runs and at random recipes of four questions, the bounds of whole spaces, and
what three exact searches prove and choose.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_exact import GPT175B, LLAMA_70B, MIXTRAL, TABLE3, plan_of, searched
from trainscout.optimizer.bounding import BoundingSurvey
from trainscout.optimizer.survey import survey
from trainscout.optimizer.union import compile_space
from trainscout.simulators.laboratory.published.jobs.jobs import job_of, shipped_declarations
from trainscout.simulators.laboratory.published.jobs.outcome import NotReplayable
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS
from trainscout.simulators.laboratory.published.reading.rows import read_rows
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.registry import SimulatorSpec

RUNS, RECIPES, BOUNDS = 50, 100, 2000


def answers() -> dict[str, Any]:
    """Every figure looked at, by what it is of."""
    found = {**of_runs(), **of_spaces()}
    for case in (TABLE3, GPT175B, LLAMA_70B):
        result = searched(case, "exact")
        assert result.certificate is not None
        found[f"certificate of {case}"] = result.certificate.to_dict()
        shown = [*result.best, *result.tight]
        found[f"best of {case}"] = [[repr(t.recipe), list(t.values or ())] for t in shown]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def of_runs() -> dict[str, Any]:
    """Predictions of some published runs, evenly from all."""
    simulator = ReplaySimulator()
    declarations = shipped_declarations()
    jobs = {}
    for row in read_rows(PUBLISHED_RUNS):
        try:
            read = job_of(row, declarations)
        except InputError:
            continue
        if not isinstance(read, NotReplayable):
            jobs[row.id] = read.job
    names = list(jobs)[:: max(1, len(jobs) // RUNS)]
    return {f"run {name}": plain(simulator.simulate(jobs[name])) for name in names}


def of_spaces() -> dict[str, Any]:
    """Predictions of random recipes, and bounds of random rows."""
    found: dict[str, Any] = {}
    simulator, random = ReplaySimulator(), np.random.default_rng(0)
    for case in (TABLE3, GPT175B, LLAMA_70B, MIXTRAL):
        plan = plan_of(case)
        surveyed = survey(compile_space(plan.space, plan.question))
        for row in random.choice(len(surveyed), RECIPES, replace=False).tolist():
            prediction = simulator.simulate(plan.question.job(surveyed.recipes[row]))
            found[f"recipe {row} of {case}"] = plain(prediction)
        bounding = BoundingSurvey(surveyed, plan.objective, SimulatorSpec.of(plan.simulator))
        rows = random.choice(len(surveyed), min(BOUNDS, len(surveyed)), replace=False).tolist()
        losses, used_bytes = bounding.rows(rows)
        found[f"bounds of {case}"] = {"losses": losses.tolist(), "used": used_bytes.tolist()}
    return found


def plain(prediction: Prediction) -> dict[str, Any]:
    return asdict(replace(prediction, memory=asdict(prediction.memory)))  # type: ignore[arg-type]


def differences(before: Any, after: Any, where: str) -> list[tuple[str, str, float]]:
    """Where two answers differ, what they are, and by what fraction (infinite: not in size)."""
    if isinstance(before, dict) and isinstance(after, dict) and set(before) == set(after):
        pairs = [(f"{where} {name}".strip(), before[name], after[name]) for name in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        both = enumerate(zip(before, after, strict=True))
        pairs = [(f"{where}[{index}]", *each) for index, each in both]
    elif before == after:
        return []
    else:
        apart = math.inf
        if all(type(each) in (int, float) for each in (before, after)):
            apart = abs(before - after) / max(abs(before), abs(after))
        return [(where, f"{before} -> {after}", apart)]
    return [each for name, a, b in pairs for each in differences(a, b, name)]


def main() -> None:
    if sys.argv[1:2] not in (["keep"], ["compare"]) or len(sys.argv) != 3:
        raise SystemExit(__doc__)
    action, file = sys.argv[1], Path(sys.argv[2])
    if action == "keep":
        file.write_text(json.dumps(answers()))
        return
    found = differences(json.loads(file.read_text()), answers(), "")
    for where, what, apart in sorted(found, key=lambda each: -each[2])[:40]:
        print(f"{where}: {what} ({apart:.1e})")
    print(f"{len(found)} differences" if found else "the same to the last digit")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
