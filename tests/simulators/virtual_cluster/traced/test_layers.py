"""Layers of the built-in source and of traced Megatron-Core, operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.simulators.jobs import GPT175B, MIXTRAL_8X7B, make_job
from tests.simulators.virtual_cluster.traced.layer_cases import (
    CASES,
    KNOWN,
    found_differences,
    is_deep,
    known_differences,
    trace_cases,
)
from trainscout.simulators.predictor.question.layers import Layer
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Collective,
    Gemm,
    GroupedGemm,
    Streaming,
)
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.virtual_cluster.traced.cache import TracedLayer
from trainscout.simulators.virtual_cluster.traced.layer_spec import (
    LAYER,
    LayerSpec,
    transformer_layer,
)
from trainscout.simulators.virtual_cluster.traced.simulator import traced_workload

pytestmark = needs("megatron.core", "transformer_engine")

Traced = Mapping[LayerSpec, TracedLayer]

# Two domains, to each of which a token goes at most once.
DEEPEP = make_job(MIXTRAL_8X7B, batch=8, ep=8, moe_dispatcher="deepep")
DEEPEP = replace(DEEPEP, cluster=replace(DEEPEP.cluster, num_nodes=2, gpus_per_node=4))


@pytest.fixture(scope="module")
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """The cases' layers, traced together."""
    deep = request.config.getoption("--hypothesis-profile") == "deep"
    cases = {case: job for case, job in CASES.items() if deep or not is_deep(case)}
    return trace_cases(tmp_path_factory.mktemp("specs"), cases | {"deepep": DEEPEP})


def params(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.deep if is_deep(name) else ()) for name in names]


@pytest.mark.parametrize("case", params(CASES))
def test_sources_differ_exactly_as_listed(case: str, traced: Traced) -> None:
    known = [line._replace(reason="") for line in known_differences() if line.case == case]
    assert found_differences(case, traced) == known


def test_every_listed_difference_has_a_reason_and_a_case() -> None:
    lines = known_differences()
    assert all(line.reason for line in lines), f"{KNOWN} has lines without a reason"
    assert {line.case for line in lines} <= CASES.keys()
    # No product differs, whatever the case.
    assert not [line for line in lines if "gemm" in line.what]


def formula_bytes(job: Any) -> float:
    """Activations of a layer by Korthikanti et al. 2022, table 2, for 16 bits and dropout."""
    recipe, model = job.recipe, job.model
    s, b, h = job.sequence_length, recipe.micro_batch, model.hidden_size
    a, t = model.num_heads, recipe.tp
    if recipe.recompute == "full":
        return 2 * s * b * h / (t if recipe.sp else 1)
    scores = 0 if recipe.recompute == "selective" else 5 * a * s / h / t
    rest = 34 / t if recipe.sp else 10 + 24 / t
    return s * b * h * (rest + scores)


@pytest.mark.parametrize("case", params(name for name in CASES if name.endswith("unfused")))
def test_activations_are_those_of_the_published_formulas(case: str, traced: Traced) -> None:
    job = CASES[case]
    spec = transformer_layer(job, Layer("attention", "dense"), recompute=job.recipe.recompute)
    assert traced[spec].forward.saved_bytes == pytest.approx(formula_bytes(job), rel=0.005)


@pytest.mark.parametrize(
    "case",
    params(
        name
        for name in CASES
        # A checkpoint of attention alone also copies gradients that leave it.
        if (name.startswith("llama") or name.endswith("unfused"))
        and not ("selective" in name or " cp" in name)
    ),
)
def test_queries_keys_and_values_are_copied_as_often(case: str, traced: Traced) -> None:
    job = CASES[case]
    ours, theirs = (
        [run for stage in each.stages for chunk in stage.chunks for run in chunk.runs]
        for each in (build_workload(job), traced_workload(job, traced))
    )
    for run, other in zip(ours, theirs, strict=True):
        if run.forward.name != "layer_forward":
            continue
        for one, two in ((run.forward, other.forward), (run.backward, other.backward)):
            copies = [
                [op for op in block.ops if isinstance(op, Streaming) and op.kind == "memcpy"]
                for block in (one, two)
            ]
            copied, theirs_copied = (sum(op.bytes for op in each) for each in copies)
            assert copied == pytest.approx(theirs_copied, rel=0.01), one.name
            # But for those of a few numbers, as maxima of 8 bits.
            launches, theirs_launches = (
                sum(op.launches for op in each if 100 * op.bytes > copied) for each in copies
            )
            assert launches == theirs_launches, one.name


def test_deepep_moves_what_the_built_in_layers_move(traced: Traced) -> None:
    moved, products = [], []
    for source in (build_workload(DEEPEP), traced_workload(DEEPEP, traced)):
        (run,) = (run for run in source.stages[0].chunks[0].runs if "moe" in run.forward.name)
        ops = [*run.forward.ops, *run.backward.ops]
        exchanges = [op for op in ops if isinstance(op, Collective) and op.kind == "all_to_all"]
        moved.append([replace(op, name="") for op in exchanges])
        products.append(sum(isinstance(op, Gemm | GroupedGemm) for op in ops))
    assert moved[0] == moved[1]
    assert len(moved[0]) == 4
    assert products[0] == products[1]


def test_what_is_kept_is_given_back(traced: Traced) -> None:
    for spec, each in traced.items():
        assert each.forward.saved_bytes == -each.backward.saved_bytes, spec
        assert each.forward.peak_bytes >= each.forward.saved_bytes, spec


def test_recomputed_layers_run_their_products_again(traced: Traced) -> None:
    def products(spec: LayerSpec) -> list[int]:
        found = traced[spec]
        return [
            sum(isinstance(op, Gemm | GroupedGemm) for op in block.ops)
            for block in (found.forward, found.backward)
        ]

    whole = CASES["gpt tp8 sp full"], CASES["gpt tp8 sp none"]
    again, once = (
        products(
            transformer_layer(job, Layer("attention", "dense"), recompute=job.recipe.recompute)
        )
        for job in whole
    )
    assert again == [once[0], once[0] + once[1]]


def test_who_issues_what(traced: Traced) -> None:
    for spec, each in traced.items():
        if spec.kind != LAYER:
            continue
        device = [op for op in each.forward.ops if not isinstance(op, Alloc)]
        assert each.forward.forward_ops == len(device), spec
        repeats = spec.recompute != "none" and "norm" not in spec.modules
        assert (each.backward.forward_ops > 0) == repeats, spec


def test_parameters_are_the_models(traced: Traced) -> None:
    job = CASES["gpt tp1 none"]
    layer = traced[
        transformer_layer(job, Layer("attention", "dense"), recompute="none")
    ].parameters
    h = GPT175B.hidden_size
    # 12 h^2 weights, 13 h biases and norms (Narayanan et al. 2021, section 2.1).
    assert (layer.dense, layer.expert) == (12 * h * h + 13 * h, 0)


def test_the_documentation_says_how_many_cases_and_where() -> None:
    root = KNOWN.parents[4]
    text = (root / "docs" / "traced.md").read_text()
    assert f"{len(CASES)} cases" in text
    assert str(KNOWN.relative_to(root)) in text
