"""Megatron-core's Transformer Engine layers: products, collectives, kept bytes, 8-bit recipes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from tests.needs import needs
from tests.simulators.jobs import GPT175B, make_job
from tests.simulators.virtual_cluster.emulation.vendor.layer_traces import (
    Layer,
    read_layer,
    run_script,
)
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.layers import DENSE_LAYER
from trainscout.simulators.predictor.workload.ir import Block, Streaming
from trainscout.simulators.predictor.workload.ir import Collective as BuiltCollective
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.virtual_cluster.traces.events import (
    Op,
    PointToPoint,
)
from trainscout.simulators.virtual_cluster.traces.vocabulary import arguments, tensors

pytestmark = needs("megatron.core", "transformer_engine")

pytest.importorskip("torch")

TOKENS, HIDDEN, TP = 2048, 12288, 8
# Random states and statistics are small tensors, each of which takes whole 512 byte blocks.
SMALL = 16 * 1024
MATRIX = TOKENS * HIDDEN
WEIGHTS = {(4608, 12288), (12288, 1536), (6144, 12288), (12288, 6144)}
# The library keeps scales for attention in 8 bits too: nine tensors forward, six backward.
ATTENTION_SCALES = 9 * 4


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Layer]:
    folder = tmp_path_factory.mktemp("layers")
    saved: dict[str, int] = {}
    for gpu in ("h800", "b200"):
        saved |= run_script("megatron_layers.py", folder, gpu)
    return {name: read_layer(folder, name, kept) for name, kept in saved.items()}


def built(precision: str = "bf16", gpu: str = "h100", recompute: str = "none") -> list[Block]:
    """Forward and backward of GPT-175B's layer as the built-in workload has it."""
    job = replace(
        make_job(GPT175B, precision=precision, tp=TP, sp=True), gpu=load_catalogue().gpus[gpu]
    )
    return list(layer_blocks(Shard.of(job), DENSE_LAYER, recompute))


def casts(block: Block) -> list[int]:
    return [op.bytes for op in block.ops if isinstance(op, Streaming) and op.kind == "cast"]


def looks(block: Block) -> list[int]:
    return [op.bytes for op in block.ops if isinstance(op, Streaming) and "amax" in op.name]


def source(op: Op) -> tuple[int, ...]:
    """The shape of what is cast."""
    return arguments(op)["input"].shape  # type: ignore[union-attr]


def has_columns(op: Op) -> bool:
    """Whether a cast makes data for products over rows."""
    given = arguments(op)
    size = math.prod(given["input"].shape)  # type: ignore[union-attr]
    uses = [each for each in tensors(given["out"]) if math.prod(each.shape) >= size]
    return len(uses) > 1


@pytest.mark.parametrize(
    ("case", "precision", "gpu"),
    [
        ("gpt", "bf16", "h100"),
        ("gpt_delayed", "fp8", "h100"),
        ("gpt_current", "fp8_current", "h100"),
        ("gpt_mxfp8", "mxfp8", "b200"),
    ],
)
def test_collectives_are_the_built_in_workloads(
    layers: dict[str, Layer], case: str, precision: str, gpu: str
) -> None:
    for traced, block in zip(
        (layers[case].forward, layers[case].backward), built(precision, gpu), strict=True
    ):
        expected = [(op.kind, op.bytes) for op in block.ops if isinstance(op, BuiltCollective)]
        found = traced.collectives()
        # Beside them: the agreement on largest values, a few bytes each, and MXFP8's scales, one
        # for 32 values. Column use of MXFP8 is gathered too, where the gradient is.
        extra = [each for each in found if each[0] == "all_reduce" or each[1] == MATRIX // 32]
        large = [each for each in found if each not in extra]
        if case == "gpt_mxfp8" and traced is layers[case].backward:
            expected = [("all_gather", MATRIX)] * 2 + expected
            assert sorted(large) == sorted(expected)
        else:
            assert large == expected
        assert sum(size for kind, size in extra if kind == "all_reduce") <= 48 + ATTENTION_SCALES


def test_user_buffers_cut_communication_in_pieces(layers: dict[str, Layer]) -> None:
    plain, layer = layers["gpt"], layers["gpt_user_buffers"]
    share = 2 * MATRIX // TP
    # Gathers go around a ring, one rank's rows at a time, scatters run in four pieces.
    sends = [each.bytes for each in layer.forward.of(PointToPoint) if each.kind == "send"]
    assert sends == [share] * 2 * (TP - 1)
    assert layer.forward.collectives() == [("reduce_scatter", 2 * MATRIX // 4)] * 2 * 4
    shapes = Counter(layer.forward.gemms())
    rows = TOKENS // TP
    assert shapes == {
        ("forward", "TN", (rows, 4608, HIDDEN)): TP,
        ("forward", "TN", (rows, 6144, HIDDEN)): TP,
        ("forward", "TN", (TOKENS // 4, HIDDEN, 1536)): 4,
        ("forward", "TN", (TOKENS // 4, HIDDEN, 6144)): 4,
    }
    # Backward, output gradients go around a ring; the others run beside one product each.
    sends = [each.bytes for each in layer.backward.of(PointToPoint) if each.kind == "send"]
    assert sends == [share] * 2 * (TP - 1)
    assert (
        layer.backward.collectives()
        == [
            ("all_gather", 2 * MATRIX),
            ("reduce_scatter", 2 * MATRIX),
        ]
        * 2
    )

    def work(found: list[tuple[str, str, tuple[int, int, int]]]) -> int:
        return sum(math.prod(shape) for _, _, shape in found)

    assert work(layer.forward.gemms()) == work(plain.forward.gemms())
    assert work(layer.backward.gemms()) == work(plain.backward.gemms())
    # Version 2.9 of the library itself keeps two MiB more.
    assert layer.saved_bytes == pytest.approx(plain.saved_bytes, abs=2 * 2**20)


def test_user_buffers_in_8_bits_carry_bytes(layers: dict[str, Layer]) -> None:
    plain, layer = layers["gpt_delayed"], layers["gpt_delayed_user_buffers"]
    for found, without in ((layer.forward, plain.forward), (layer.backward, plain.backward)):
        sends = [each.bytes for each in found.of(PointToPoint) if each.kind == "send"]
        assert sends == [MATRIX // TP] * 2 * (TP - 1)
        quantised = sorted(found.bytes_of("quantize_into", "fp8_transpose"))
        assert quantised == sorted(without.bytes_of("quantize_into", "fp8_transpose"))
    # As in 16 bits, the library itself keeps a little more.
    assert layer.saved_bytes == pytest.approx(plain.saved_bytes, abs=2 * 2**20)


@pytest.mark.parametrize(
    ("case", "tp", "batch", "per_token"),
    [
        # 34 and 5 a s / h for each of the tokens' hidden units: the scores of 96 heads.
        ("local", 8, 1, 34 + 5 * 96 * TOKENS / HIDDEN),
        ("local_wide", 2, 4, 34 + 5 * 96 * TOKENS / HIDDEN),
        ("local_selective", 8, 1, 34),
        ("local_full", 8, 1, 2),
    ],
)
def test_megatrons_own_layers_keep_what_the_formula_says(
    layers: dict[str, Layer], case: str, tp: int, batch: int, per_token: float
) -> None:
    # Korthikanti et al. 2022, table 2, sequences in parallel; with Apex's norms, its weight
    # gradients and Megatron's scaled softmax.
    expected = per_token * MATRIX * batch / tp
    assert layers[case].saved_bytes == pytest.approx(expected, rel=0.005)
    names = {op.name.split(".")[1] for op in layers[case].forward.kernels()}
    assert {"layer_norm_fwd", "fused_softmax_fwd"} <= names
    assert len(layers[case].backward.kernels("gemm_into")) == 4


def test_gradients_of_projections_are_joined_by_a_copy(layers: dict[str, Layer]) -> None:
    # Megatron-core 0.16 does not find the split of Transformer Engine 2.9 under its name.
    for case in ("gpt", "llama"):
        assert any(op.name.startswith("aten.cat") for op in layers[case].backward.of(Op))


def test_llama_layer_has_grouped_attention(layers: dict[str, Layer]) -> None:
    layer = layers["llama"]
    (attention,) = layer.forward.kernels("attention_fwd")
    given = arguments(attention)
    assert given["query"].shape == (8192, 1, 8, 128)  # type: ignore[union-attr]
    assert given["key"].shape == (8192, 1, 1, 128)  # type: ignore[union-attr]
    assert (given["mask"], given["layout"], given["kernel"]) == ("causal", "sbhd", "cudnn")
    assert [shape for _, _, shape in layer.forward.gemms()] == [
        (8192, 1280, 8192),
        (8192, 8192, 1024),
        (8192, 7168, 8192),
        (8192, 8192, 3584),
    ]
    assert len(layer.forward.kernels("rms_norm_fwd")) == 2
    assert len(layer.forward.kernels("rope_fwd")) == 2
    assert len(layer.backward.kernels("rope_bwd")) == 2


def test_gathered_keys_are_seen_up_to_each_chunk(layers: dict[str, Layer]) -> None:
    layer = layers["llama_gathered"]
    steps = [arguments(op) for op in layer.forward.kernels("attention_fwd")]
    # Rank 0 of 4 holds the first and the last of eight chunks.
    assert [given["query"].shape[0] for given in steps] == [1024, 1024]  # type: ignore[union-attr]
    assert [given["key"].shape[0] for given in steps] == [1024, 8192]  # type: ignore[union-attr]
    assert {given["mask"] for given in steps} == {"causal_bottom_right"}
    whole = 8192 * 4 * 128 * 2
    tensor = 2 * 8192 // 4 * 8192

    def of_keys(found: list[tuple[str, int]]) -> list[tuple[str, int]]:
        return [each for each in found if each[1] != tensor]

    assert of_keys(layer.forward.collectives()) == [("all_gather", whole)] * 2
    assert of_keys(layer.backward.collectives()) == [
        *[("all_gather", whole)] * 2,
        *[("reduce_scatter", whole)] * 2,
    ]


def test_experts_multiply_their_own_rows(layers: dict[str, Layer]) -> None:
    layer = layers["mixtral"]
    rows = 4096 * 2
    found = [
        (given["use"], given["splits"], given["layout"], len(given["right"]))  # type: ignore[arg-type]
        for given in map(arguments, layer.forward.kernels("grouped_gemm_into"))
    ]
    assert found == [("forward", (rows // 2, rows // 2), "TN", 2)] * 2
    uses = [arguments(op)["use"] for op in layer.backward.kernels("grouped_gemm_into")]
    assert uses == ["dgrad", "wgrad"] * 2
    sizes = [size for kind, size in layer.forward.collectives() if kind == "all_to_all"]
    assert sizes == [rows * 4096 * 2, rows * 2, rows * 4096 * 2]
    # Its permutation is Triton's: rows to their experts, by their owners, and back.
    names = [
        str(op.inputs[2]) for op in layer.forward.of(Op) if op.name.startswith("triton.launch")
    ]
    assert [name for name in names if "permute" in name or "sort_chunks_by_map" in name] == [
        "_permute_kernel",
        "_sort_chunks_by_map_kernel",
        "_sort_chunks_by_map_kernel",
        "_unpermute_kernel",
    ]


def test_weights_are_quantised_once_a_step(layers: dict[str, Layer]) -> None:
    for case in ("gpt_delayed", "gpt_current", "gpt_mxfp8", "gpt_blockwise"):
        first, second = layers[case].first_forward, layers[case].forward
        assert {source(op) for op in first.kernels("quantize_into")} >= WEIGHTS
        assert not WEIGHTS & {source(op) for op in second.kernels("quantize_into")}


@pytest.mark.parametrize("recipe", ["current", "mxfp8", "blockwise"])
def test_weights_kept_by_a_checkpoint_gain_their_other_use(
    layers: dict[str, Layer], recipe: str
) -> None:
    # The first run of a checkpoint makes no gradients, so quantises weights for one use; the
    # backward pass then makes them again, or transposes those with square blocks.
    full, plain = layers[f"gpt_{recipe}_full"], layers[f"gpt_{recipe}"]
    assert full.forward.gemms() == plain.forward.gemms()
    assert full.backward.gemms() == plain.forward.gemms() + plain.backward.gemms()
    flags = {
        has_columns(op)
        for op in full.first_forward.kernels("quantize_into")
        if arguments(op)["input"].shape[0] != TOKENS // TP  # type: ignore[union-attr]
    }
    assert flags == {False}
    casts = full.backward.kernels("quantize_into")
    seen = WEIGHTS if recipe == "blockwise" else {source(op) for op in casts}
    again = [op for op in casts if has_columns(op) and source(op) in seen]
    assert bool(again) is (recipe != "blockwise")
    assert full.saved_bytes == 2 * MATRIX // TP


def test_delayed_scaling_casts_what_the_built_in_workload_does(layers: dict[str, Layer]) -> None:
    layer, (forward, backward) = layers["gpt_delayed"], built("fp8")
    # But that the norms in front of the column-parallel layers write 8 bits themselves, and one
    # number for each tensor is agreed on and turned into a scale at the end of a pass.
    norms = 3 * MATRIX // TP
    assert sorted([norms, norms, *layer.forward.bytes_of("quantize_into")]) == sorted(
        casts(forward)
    )
    assert len(layer.forward.kernels("layer_norm_quantize_fwd")) == 2
    made = layer.backward.bytes_of("quantize_into", "fp8_transpose")
    # The gradient of the joined projection is summed on the way; it writes that sum too.
    (joined,) = layer.backward.bytes_of("quantize_into_bias_grad")
    assert sorted([*made, joined - 4608 * 2]) == sorted(casts(backward))
    agreed = [size for kind, size in layer.forward.collectives() if kind == "all_reduce"]
    assert agreed == [4 * 3 * 4 + ATTENTION_SCALES]
    agreed = [size for kind, size in layer.backward.collectives() if kind == "all_reduce"]
    assert agreed == [4 * 2 * 4 + ATTENTION_SCALES * 2 // 3]


def test_current_scaling_looks_at_tensors_first(layers: dict[str, Layer]) -> None:
    layer, (forward, backward) = layers["gpt_current"], built("fp8_current")
    # The norms find the largest value of what they write, which the built-in workload lets a
    # kernel of its own do.
    output = TOKENS * HIDDEN // TP
    found = [size - 4 for size in layer.forward.bytes_of("amax")]
    norms = 2 * MATRIX // TP
    assert sorted([norms, norms, *found]) == sorted(looks(forward))
    # Megatron keeps attention's own output for the projection behind it, and quantises it again,
    # for column use only then; the built-in workload keeps an 8-bit copy beside it.
    made = layer.forward.bytes_of("quantize_into")
    assert sorted([*made, 4 * output]) == sorted([*casts(forward), 3 * output])
    found = [size - 4 for size in layer.backward.bytes_of("amax")]
    assert sorted(found) == sorted([*looks(backward), 2 * output])
    made = layer.backward.bytes_of("quantize_into", "fp8_transpose")
    assert sorted(made) == sorted([*casts(backward), 4 * output])
    # Ranks that hold shares of one tensor agree on its largest value, four bytes.
    shared = [size for kind, size in layer.forward.collectives() if kind == "all_reduce"]
    assert shared == [4, 4]


def test_mxfp8_makes_both_uses_and_their_scales(layers: dict[str, Layer]) -> None:
    layer, (forward, _) = layers["gpt_mxfp8"], built("mxfp8", "b200")
    output = TOKENS * HIDDEN // TP
    both, one = 4 + 2 / 32, 3 + 1 / 32
    made = layer.forward.bytes_of("quantize_into")
    # Attention's output is quantised for each use when it is needed, as with current scaling.
    expected = [both * MATRIX / TP, one * output, both * MATRIX / TP, both * 4 * output]
    assert made == pytest.approx(expected)
    # The built-in workload counts the order tensor cores want scales in with the cast (read and
    # written again); it leaves out that of weights, whose scales are put in order each time too.
    extra = 2 * 2 / 32
    built_bytes = [(both + extra) * elements for elements in (output, output, output, 4 * output)]
    assert casts(forward) == pytest.approx(built_bytes)


def test_8_bit_copies_take_the_place_of_16_bit_ones(layers: dict[str, Layer]) -> None:
    # Inputs of the four layers at one byte instead of two; attention's output is then kept beside
    # the copy the projection behind it keeps, but where Megatron quantises it again.
    share = MATRIX // TP
    plain = layers["gpt"].saved_bytes
    delayed = plain - (1 + 1 + 4) * share + share
    assert layers["gpt_delayed"].saved_bytes == pytest.approx(delayed, abs=SMALL)
    assert layers["gpt_current"].saved_bytes == pytest.approx(delayed - share, abs=SMALL)
    assert layers["gpt_delayed"].saved_bytes == pytest.approx(
        built("fp8")[0].saved_bytes, abs=SMALL
    )
    # Scales of 6 shares: a byte for 32 values, four for 128.
    for case in ("gpt_mxfp8", "gpt_blockwise"):
        scales = (1 + 1 + 4) * share / 32
        assert layers[case].saved_bytes == pytest.approx(delayed - share + scales, rel=0.02)
