"""Values in whole scripts: what a rank branches on, and how tokens spread over experts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.warm.session import ROOT, environment, run_python
from trainscout.simulators.virtual_cluster.emulation.imbalance import Imbalance
from trainscout.simulators.virtual_cluster.emulation.values.imbalance import expected_loads
from trainscout.simulators.virtual_cluster.traces.events import (
    OPTIMIZER,
    Collective,
    Parameters,
    Phase,
    Trace,
    ValueRead,
)
from trainscout.simulators.virtual_cluster.traces.files import read_directory
from trainscout.simulators.virtual_cluster.traces.invariants import check_together, check_trace

megatron = needs("megatron.core")

WORLD, EXPERTS, TOKENS, TOP_K, HIDDEN = 8, 16, 128, 2, 64
VOCABULARY = 512
HOT = f"num_experts={EXPERTS},hot_ratio=0.125,hot_weight=0.5"
MOE = (
    ROOT / "examples" / "megatron_gpt.py",
    *("--num-layers", 2, "--hidden-size", HIDDEN, "--num-attention-heads", 4),
    *("--seq-length", TOKENS, "--vocab-size", VOCABULARY, "--num-experts", EXPERTS),
    *("--micro-batch-size", 1, "--global-batch-size", 16, "--train-iters", 2),
    *("--expert-model-parallel-size", WORLD, "--transformer-impl", "local"),
)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    words = map(str, ("-m", "trainscout", "run", *arguments))
    return run_python(*words, cwd=Path.cwd(), environment=environment() | path)


def traced(folder: Path, ranks: str, *options: str) -> tuple[Trace, ...]:
    place = ("--world-size", WORLD, "--rank", ranks, "--output", folder)
    found = run(*place, *options, "--", *MOE)
    assert found.returncode == 0, found.stderr
    return read_directory(folder)


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, ...]:
    return traced(tmp_path_factory.mktemp("even"), "0")


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Trace]:
    traces = traced(tmp_path_factory.mktemp("skewed"), "0,5", "--moe-imbalance", HOT)
    return {trace.header.rank: trace for trace in traces}


def exchanges(trace: Trace) -> Sequence[Collective]:
    return [e for e in trace.events if isinstance(e, Collective) and e.kind == "all_to_all"]


@megatron
def test_an_unpatched_dispatcher_exchanges_tokens_evenly(even: tuple[Trace, ...]) -> None:
    calls = exchanges(even[0])
    # Tokens and their probabilities to the experts, tokens back; and the gradients of each.
    assert len(calls) == 2 * 2 * 2 * (3 + 3)
    assert {(call.splits_in, call.splits_out) for call in calls} == {(None, None)}
    assert {call.bytes_in for call in calls} == {TOKENS * TOP_K * HIDDEN * 2, TOKENS * TOP_K * 2}


@megatron
def test_what_the_script_knows_of_its_tokens_is_expected_not_invented(
    even: tuple[Trace, ...],
) -> None:
    reads = [event for event in even[0].events if isinstance(event, ValueRead)]
    sizes = [event for event in reads if event.operation == "aten.masked_select.default"]
    assert {(event.value, event.grade) for event in sizes} == {(TOKENS * TOP_K, "expected")}
    assert {event.operation for event in reads if event.grade == "invented"} == {"item"}


@megatron
def test_popular_experts_get_the_tokens_that_were_asked_for(
    skewed: Mapping[int, Trace],
) -> None:
    imbalance = Imbalance.parse(HOT)
    per_layer = [
        expected_loads(imbalance, EXPERTS, TOP_K, TOKENS, layer).reshape(WORLD, -1).sum(1).tolist()
        for layer in range(2)
    ]
    for rank, trace in skewed.items():
        sent = [call for call in exchanges(trace) if call.bytes_in == TOKENS * TOP_K * 2]
        layers = [(call.splits_in, call.splits_out) for call in sent[:2]]
        assert layers == [(tuple(loads), (loads[rank],) * WORLD) for loads in per_layer]
        assert max(per_layer[0]) > 3 * min(per_layer[0])


@megatron
def test_ranks_traced_apart_agree_on_who_sends_what(skewed: Mapping[int, Trace]) -> None:
    pairs = list(zip(exchanges(skewed[0]), exchanges(skewed[5]), strict=True))
    assert pairs
    for first, fifth in pairs:
        assert first.splits_in is not None
        assert first.splits_out is not None
        assert fifth.splits_in is not None
        assert fifth.splits_out is not None
        assert first.splits_in[5] == fifth.splits_out[0]
        assert first.splits_out[5] == fifth.splits_in[0]


@megatron
def test_sound_runs_break_no_invariant(
    even: tuple[Trace, ...], skewed: Mapping[int, Trace]
) -> None:
    norm, ffn = 2 * HIDDEN, 4 * HIDDEN
    attention = HIDDEN * 3 * HIDDEN + HIDDEN * HIDDEN
    experts = EXPERTS // WORLD * 2 * HIDDEN * ffn + HIDDEN * EXPERTS
    layers = 2 * (2 * norm + attention + experts)
    words = 2 * VOCABULARY * HIDDEN + TOKENS * HIDDEN
    held = layers + words + norm
    assert [check_trace(each) for each in even] == [()] * len(even)
    recorded = next(each for each in even[0].events if isinstance(each, Parameters))
    assert (recorded.elements, recorded.bytes) == (held, 2 * held)
    optimizer = {e.step for e in even[0].events if isinstance(e, Phase) and e.phase == OPTIMIZER}
    assert len(optimizer) == 2
    assert [check_trace(each) for each in skewed.values()] == [()] * len(skewed)
    for together in (even, list(skewed.values())):
        assert check_together(together) == ()


def test_a_told_rank_knows_its_flags_when_the_telling_rank_was_traced(tmp_path: Path) -> None:
    script = ("--", Path(__file__).parent / "sent_flags.py")
    common = ("--world-size", 4, "--output", tmp_path / "traces")
    payloads = tmp_path / "payloads"
    payloads.mkdir()
    printed = run(*common, "--no-check", "--rank", "0,1", "--payloads", payloads, *script)
    for rank in (0, 1):
        assert f"rank {rank}: train 1, valid 0, test 0" in printed.stdout
    for trace in read_directory(tmp_path / "traces"):
        reads = [event for event in trace.events if isinstance(event, ValueRead)]
        grades = [(event.value, event.grade) for event in reads]
        assert grades == [(1, "exact"), (0, "exact"), (0, "exact")]


def test_a_script_that_does_not_train_is_a_loud_failure_that_says_why(tmp_path: Path) -> None:
    script = Path(__file__).parent / "sent_flags.py"
    found = run("--world-size", 4, "--rank", "1", "--output", tmp_path, "--", script)
    printed = " ".join((found.stdout + found.stderr).split())
    assert found.returncode == 4
    assert "optimizer step" in printed
    assert "member 0 of group" in printed
    assert "--payloads" in printed
