"""The kernels registered with torch are those the table of traces names."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel  # noqa: E402
from trainscout.simulators.virtual_cluster.traces.vocabulary import KERNELS, NAMESPACE, Kernel  # noqa: E402


@pytest.mark.parametrize("entry", KERNELS.values(), ids=KERNELS)
def test_table_names_what_is_registered(entry: Kernel) -> None:
    schema = kernel(entry.name)._schema
    written = {
        argument.name: argument.alias_info is not None and argument.alias_info.is_write
        for argument in schema.arguments
    }
    assert list(written.items()) == list(entry.arguments.items())
    lists = any(
        "[]" in str(result.type) or "List" in str(result.type) for result in schema.returns
    )
    assert lists or len(schema.returns) == len(entry.outputs)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has_kernel(f"{NAMESPACE}::{entry.name}", "Meta")


def test_nothing_else_is_registered() -> None:
    names = torch._C._dispatch_get_all_op_names()
    ours = {name.split("::")[1] for name in names if name.startswith(f"{NAMESPACE}::")}
    assert ours == set(KERNELS)


def made(name: str, *arguments: Any) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and types of what a kernel makes."""
    found = kernel(name)(*arguments)
    tensors = [found] if isinstance(found, torch.Tensor) else list(found or ())
    return [(tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in tensors]


def test_shapes_and_types() -> None:
    bf16 = torch.bfloat16
    with FakeTensorMode():
        rows = torch.empty(4, 2, 256, dtype=bf16)
        weight = torch.empty(64, 256, dtype=bf16)
        grad = torch.empty(8, 64, dtype=bf16)
        flat = rows.view(8, 256)
        assert made("gemm", rows, weight, "TN", "forward", "float32", None, "") == [
            ((4, 2, 64), "float32")
        ]
        assert made("gemm", grad, weight, "NN", "dgrad", "bfloat16", None, "") == [
            ((8, 256), "bfloat16")
        ]
        assert made("gemm_bias_grad", grad, flat, "NT", "wgrad", "bfloat16", "") == [
            ((64, 256), "bfloat16"),
            ((64,), "bfloat16"),
        ]
        assert made("activation_fwd", rows, "swiglu") == [((4, 2, 128), "bfloat16")]
        assert made("activation_fwd", rows, "gelu") == [((4, 2, 256), "bfloat16")]
        query = torch.empty(16, 2, 8, 64, dtype=bf16)
        key = torch.empty(16, 2, 2, 64, dtype=bf16)
        form = ("sbhd", "causal", [-1, 0], 0.0, 0.125, 2, 16, 16, "cudnn")
        assert made("attention_fwd", query, key, key[..., :32], *form) == [
            ((16, 2, 8, 32), "bfloat16"),
            ((2, 8, 16), "float32"),
            ((2,), "int64"),
        ]
