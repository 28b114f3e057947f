"""One layer of GPT-175B in Megatron-core: operations, collectives and activation bytes."""

from __future__ import annotations

import pytest

from tests.needs import needs
from tests.simulators.virtual_cluster.emulation.sections import Run, emulate
from trainscout.simulators.virtual_cluster.traces.events import Collective, Op

pytestmark = needs("megatron.core")

pytest.importorskip("torch")
SEQUENCE, HIDDEN, HEADS, TP = 2048, 12288, 96, 8
SBH = SEQUENCE * HIDDEN
# Operations that compute, forward and backward, as recorded from a prototype's runs of the same
# layer (allocations, which it counted, taken out).
COUNTS = {"none": (28, 46), "selective": (28, 54), "full": (28, 74)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("megatron")
    world = ("--world-size", TP, "--without", "transformer_engine")
    return emulate(folder, "megatron_layer.py", *world)


def test_it_ran(run: Run) -> None:
    assert run.code == 0, run.output


@pytest.mark.parametrize("layout", ["plain", "sp"])
@pytest.mark.parametrize("recompute", COUNTS)
def test_operations_per_layer(run: Run, layout: str, recompute: str) -> None:
    counts = tuple(
        len(run.of(f"{layout} {recompute} {way}", Op)) for way in ("forward", "backward")
    )
    assert counts == COUNTS[recompute]


def test_collectives_without_sequence_parallelism(run: Run) -> None:
    whole = 2 * SBH
    for recompute, backward in (("none", 2), ("selective", 2), ("full", 4)):
        for way, number in (("forward", 2), ("backward", backward)):
            calls = run.of(f"plain {recompute} {way}", Collective)
            assert [(c.kind, c.bytes_in, c.bytes_out) for c in calls] == [
                ("all_reduce", whole, whole)
            ] * number


def test_collectives_with_sequence_parallelism(run: Run) -> None:
    whole, part = 2 * SBH, 2 * SBH // TP
    gather, scatter = ("all_gather", part, whole), ("reduce_scatter", whole, part)
    forward = [gather, scatter, gather, scatter]
    backward = [gather, gather, scatter] * 2
    for recompute in COUNTS:
        again = forward if recompute == "full" else []
        for way, expected in (("forward", forward), ("backward", again + backward)):
            calls = run.of(f"sp {recompute} {way}", Collective)
            assert [(c.kind, c.bytes_in, c.bytes_out) for c in calls] == expected


def test_activations_match_the_published_formulas(run: Run) -> None:
    """Korthikanti et al. 2022, equations 1 to 4: bytes a layer keeps for its backward pass."""
    scores = 5 * HEADS * SEQUENCE / HIDDEN
    expected = {
        "plain none": SBH * (10 + 24 / TP + scores / TP),
        "plain selective": SBH * (10 + 24 / TP),
        "plain full": SBH * 2,
        "sp none": SBH * (34 + scores) / TP,
        "sp selective": SBH * 34 / TP,
        "sp full": SBH * 2 / TP,
    }
    kept = {
        name: int(size)
        for line in run.output.splitlines()
        for name, _, size in [line.rpartition(" ")]
        if name in expected
    }
    assert kept == pytest.approx(expected, rel=0.005)
