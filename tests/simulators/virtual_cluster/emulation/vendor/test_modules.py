"""Single modules of Apex, flash-attn, grouped_gemm and Transformer Engine on a virtual A100."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.simulators.virtual_cluster.emulation.vendor.layer_traces import (
    Layer,
    kernel_name,
    read_layer,
    run_script,
)
from trainscout.simulators.virtual_cluster.traces.events import Alloc, Event, Free, Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.files import read_trace
from trainscout.simulators.virtual_cluster.traces.vocabulary import (
    arguments,
    launches,
    tensors,
)

pytest.importorskip("torch")


with_te = needs("transformer_engine")


@dataclass(frozen=True)
class Modules:
    """What the script wrote."""

    folder: Path
    figures: dict[str, Any]

    def __getitem__(self, name: str) -> Layer:
        return read_layer(self.folder, name, 0)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Modules:
    folder = tmp_path_factory.mktemp("modules")
    return Modules(folder, run_script("modules.py", folder))


def vendor_kernels(events: Iterable[Event]) -> list[Op]:
    return [each for each in events if isinstance(each, Op) and each.name.startswith("emulated.")]


def names(ops: list[Op]) -> list[str]:
    return [kernel_name(op) for op in ops]


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [
        ("apex_layer_norm", ["layer_norm_fwd"], ["layer_norm_bwd"]),
        ("apex_rms_norm", ["rms_norm_fwd"], ["rms_norm_bwd"]),
        ("apex_rope", ["rope_fwd"] * 2, ["rope_bwd"] * 2),
        ("flash", ["attention_fwd"], ["attention_bwd"]),
        ("packed", ["attention_fwd"], ["attention_bwd"]),
        ("cached", ["attention_fwd"], ["attention_bwd"]),
        ("grouped", ["grouped_gemm_into"], ["grouped_gemm_into"] * 2),
    ],
)
def test_kernels_of_each_pass(
    modules: Modules, case: str, forward: list[str], backward: list[str]
) -> None:
    layer = modules[case]
    assert names(layer.forward.kernels()) == forward
    assert names(layer.backward.kernels()) == backward


@pytest.mark.parametrize("name", ["FusedLayerNorm", "FusedRMSNorm", "FastLayerNorm"])
def test_norms_begin_anew(name: str) -> None:
    import torch

    from trainscout.simulators.virtual_cluster.emulation.vendor import apex

    layer = getattr(apex, name)(8)
    for parameter in layer.parameters():
        torch.nn.init.constant_(parameter, 3.0)
    layer.reset_parameters()
    found = {name: set(parameter.tolist()) for name, parameter in layer.named_parameters()}
    assert found == {key: {float(key == "weight")} for key in found}


@with_te
@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [
        ("attention", ["attention_fwd"], ["attention_bwd"]),
        ("rope", ["rope_qkv_fwd"], ["rope_qkv_bwd"]),
        ("padding", ["pad_rows"] * 2, ["pad_rows"] * 2),
        ("linear", ["gemm"], ["gemm", "gemm_bias_grad"]),
        (
            "mlp",
            ["layer_norm_fwd", "gemm", "activation_fwd", "gemm"],
            [
                "gemm",
                "gemm_bias_grad",
                "activation_bwd",
                "gemm",
                "gemm_bias_grad",
                "layer_norm_bwd",
            ],
        ),
    ],
)
def test_kernels_below_transformer_engine(
    modules: Modules, case: str, forward: list[str], backward: list[str]
) -> None:
    test_kernels_of_each_pass(modules, case, forward, backward)


def opaque(ops: list[Op]) -> list[str]:
    """Kernels without a model of their own, and the products inside of them."""
    return [
        str(op.inputs[2]) if op.name.startswith("triton.launch") else "product"
        for op in ops
        if op.name.startswith(("triton.launch", "aten.bmm"))
    ]


def test_scans_are_products_and_launches(modules: Modules) -> None:
    layer = modules["scan"]
    four = ["product"] * 4
    scanned = ["mamba_chunk_scan", "causal_conv1d"]
    assert opaque(layer.forward.of(Op)) == [*four, *scanned]
    # States and scores again, two for each of the four, and the decays' product of token pairs.
    expected = ["causal_conv1d_backward", *["product"] * 11, "mamba_chunk_scan_backward"]
    assert opaque(layer.backward.of(Op)) == expected
    # States of 2 sequences x 2 chunks x 4 heads: width x tokens by tokens x states.
    first = next(op for op in layer.forward.of(Op) if op.name.startswith("aten.bmm"))
    assert [each.shape for each in first.inputs if isinstance(each, TensorSpec)] == [
        (16, 64, 32),
        (16, 32, 16),
    ]


def test_what_models_import_beside_attention(modules: Modules) -> None:
    layer = modules["positions"]
    assert names(layer.forward.kernels()) == ["attention_fwd"]
    turned = [*["rotary"] * 3, "hadamard_transform"]
    assert opaque(layer.forward.of(Op)) == [*turned, "layer_norm", "cross_entropy"]
    # Gradients of the packed projection come together: one rotation back.
    assert sorted(opaque(layer.backward.of(Op))) == [
        "cross_entropy_backward",
        "hadamard_transform",
        "layer_norm_backward",
        "rotary",
    ]


def test_the_scan_below_autograd_launches_what_autograd_does(modules: Modules) -> None:
    launched = opaque(modules["below"].forward.of(Op))
    scan = modules["scan"]
    for pass_, name in (
        (scan.forward, "mamba_chunk_scan"),
        (scan.backward, "mamba_chunk_scan_backward"),
    ):
        once = opaque(pass_.of(Op))
        place, own = launched.index(name), once.index(name)
        products = once[:own].count("product")
        assert launched[place - products : place] == ["product"] * products
    scans = [
        each for name in ("causal_conv1d", "selective_scan") for each in (name, f"{name}_backward")
    ]
    assert launched[-5:] == [*scans, "layer_norm"]


def test_functions_below_autograd(modules: Modules) -> None:
    layer = modules["private"]
    forward, *backward = layer.forward.kernels()
    assert arguments(forward)["mask"] == "causal"
    # Called by position and by name.
    assert [kernel_name(each) for each in backward] == ["attention_bwd"] * 2


@with_te
def test_checkpoint_runs_twice_and_keeps_nothing(modules: Modules) -> None:
    plain, twice = modules["mlp"], modules["checkpoint"]
    assert names(twice.forward.kernels()) == names(plain.forward.kernels())
    again = names(plain.forward.kernels()) + names(plain.backward.kernels())
    assert names(twice.backward.kernels()) == again


@with_te
def test_flash_attention_2_copies_what_is_not_batch_first(modules: Modules) -> None:
    # Before Hopper Transformer Engine takes FlashAttention-2, which wants batches first.
    layer = modules["attention"]
    (attention,) = layer.forward.kernels()
    assert arguments(attention)["kernel"] == "flash2"
    assert arguments(attention)["layout"] == "bshd"
    copies = [op for op in layer.forward.of(Op) if op.name.startswith("aten.clone")]
    assert len(copies) == 4


def test_flash_attention_2_sums_gradients_of_shared_keys(modules: Modules) -> None:
    layer = modules["flash"]
    (attention,) = layer.backward.kernels()
    given = arguments(attention)
    key, gradient = given["key"], given["grad_key"]
    assert isinstance(key, TensorSpec)
    assert isinstance(gradient, TensorSpec)
    assert (key.shape[2], gradient.shape[2]) == (2, 4)
    sums = [op for op in layer.backward.of(Op) if op.name.startswith("aten.sum")]
    assert len(sums) == 2


def test_scratch_memory_of_attention_is_allocated_and_freed(modules: Modules) -> None:
    events = modules["flash"].backward.events
    freed = {event.storage for event in events if isinstance(event, Free)}
    # In fp32: rows in blocks of 128 (2 x 64 tokens, 4 heads), 64 wide, and a sum for each row.
    rows = 2 * 128 * 4
    found = {event.bytes: event.storage for event in events if isinstance(event, Alloc)}
    assert {found[rows * 64 * 4], found[rows * 4]} <= freed


def test_packed_sequences(modules: Modules) -> None:
    (attention,) = modules["packed"].forward.kernels()
    given = arguments(attention)
    assert (given["layout"], given["sequences"], given["max_q"]) == ("thd", 4, 64)
    assert attention.outputs[1].shape == (4, 128)


def test_experts_without_rows_are_no_trouble(modules: Modules) -> None:
    (product,) = modules["grouped"].forward.kernels()
    given = arguments(product)
    assert given["splits"] == (32, 32, 0, 64)
    assert [out.shape for out in tensors(given["out"])] == [(128, 512)]
    weights = modules["grouped"].backward.kernels("grouped_gemm_into")[-1]
    (out,) = tensors(arguments(weights)["out"])
    assert out.shape == (4, 256, 512)


def test_rows_go_to_their_experts_and_back(modules: Modules) -> None:
    layer = modules["permuted"]
    assert opaque(layer.forward.of(Op)) == ["moe_permute", "moe_unpermute"]
    assert opaque(layer.backward.of(Op)) == ["moe_unpermute_backward", "moe_permute_backward"]


@with_te
def test_groups_are_filled_up_and_cut_again(modules: Modules) -> None:
    filled, cut = modules["padding"].forward.kernels()
    # 100 and 28 rows to multiples of 16.
    assert [each.shape[0] for each in tensors(filled.inputs)] == [128, 112 + 32]
    assert [each.shape[0] for each in tensors(cut.inputs)] == [112 + 32, 128]


@with_te
def test_weight_gradients_can_wait(modules: Modules) -> None:
    # Those of experts have their memory at once.
    assert modules.figures["late"] == [False] * 2 + [True] * 2 + [True] * 4 + [True]
    events = read_trace(modules.folder / "late.trace").events
    kernels = vendor_kernels(events)
    assert [(kernel_name(op), arguments(op)["use"]) for op in kernels] == [
        ("gemm", "forward"),
        ("grouped_gemm_into", "forward"),
        ("grouped_gemm_into", "dgrad"),
        ("gemm", "dgrad"),
        ("grouped_gemm_into", "wgrad"),
        ("gemm_bias_grad", "wgrad"),
    ]


def test_optimizers_walk_all_tensors_of_a_type_at_once(modules: Modules) -> None:
    events = read_trace(modules.folder / "optimizers.trace").events
    steps = vendor_kernels(events)
    counts = Counter(
        (kernel_name(op), len(list(tensors(op.inputs[0]))), len(list(tensors(op.inputs))))
        for op in steps
    )
    # Two steps of each: two parameters in bf16, one in fp32; masters of the bf16 ones are stepped.
    assert counts == {
        ("multi_tensor_adam", 2, 8): 2,
        ("multi_tensor_adam", 2, 10): 2,
        ("multi_tensor_adam", 1, 4): 4,
        ("multi_tensor_sgd", 2, 6): 2,
        ("multi_tensor_sgd", 1, 3): 2,
        # LAMB's, of gradients.
        ("multi_tensor_l2norm", 2, 2): 2,
        ("multi_tensor_l2norm", 1, 1): 2,
    }
    stepped = [op for op in steps if kernel_name(op) != "multi_tensor_l2norm"]
    assert {launches(op) for op in stepped} == {1}
    assert modules.figures["states"] == {
        "apex": {"exp_avg": "torch.float32", "exp_avg_sq": "torch.float32"},
        "masters": {
            "exp_avg": "torch.float32",
            "exp_avg_sq": "torch.float32",
            "master_param": "torch.float32",
        },
        "sgd": {"momentum_buffer": "torch.float32"},
        "lamb": {"exp_avg": "torch.float32", "exp_avg_sq": "torch.float32"},
        "adagrad": {"sum": "torch.float32"},
    }
    # Two steps of each, with two tensors of bf16 and one of fp32.
    opaque_steps = Counter(opaque([op for op in events if isinstance(op, Op)]))
    assert opaque_steps == {"multi_tensor_lamb": 4, "multi_tensor_adagrad": 4}


def test_scaled_losses_of_apex_cast_unscale_and_read_a_flag(modules: Modules) -> None:
    events = read_trace(modules.folder / "amp.trace").events
    ops = [each for each in events if isinstance(each, Op)]
    inputs = Counter(
        (op.name.split(".")[1], one.dtype) for op in ops for one in tensors(op.inputs)
    )
    # What only Apex casts is in fp32; the backward pass casts nothing of its own.
    found = {name: inputs[name, "float32"] for name in ("gelu", "gelu_backward")}
    assert found == {"gelu": 2, "gelu_backward": 4}
    assert (inputs["addmm", "float16"], inputs["mm", "float16"]) == (2 * 3, 2 * 2)
    # Gradients of weight and bias: unscaled in place, those of the second pass while added.
    assert inputs["multi_tensor_scale", "float32"] == inputs["_foreach_add_", "float32"] == 2 * 2
    assert [type(each).__name__ for each in events].count("ValueRead") == 2
    scales = modules.figures["amp"]
    assert scales == {f"loss_scaler{place}": {"loss_scale": 2**16} for place in (0, 1)}


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("amp", "apex.amp.initialize"),
        ("without weights", "elementwise_affine=True"),
        ("graphs", "FusedAdam.capturable"),
        ("slopes", "flash_attn.alibi_slopes"),
        ("bias", "LowerTriangularMask"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(modules: Modules, use: str, words: str) -> None:
    message = modules.figures["refused"][use]
    assert "is not emulated" in message
    assert words in message


@pytest.mark.parametrize("use", ["too many", "twice"])
def test_an_optimizer_takes_each_setting_once(modules: Modules, use: str) -> None:
    assert "FusedAdam takes 'lr bias_correction" in modules.figures["refused"][use]
