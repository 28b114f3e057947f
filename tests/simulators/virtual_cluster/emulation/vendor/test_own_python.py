"""A package's own Python above its emulated compiled part, on small fakes of both."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainscout.simulators.virtual_cluster.emulation.vendor as vendor
from tests.needs import needs
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.recorder import Recorder
from trainscout.simulators.virtual_cluster.emulation.report import describe_gap
from trainscout.simulators.virtual_cluster.emulation.sink import ListSink

torch = pytest.importorskip("torch")

RECORDER = Recorder(ListSink(), (), lambda: -1)
COMMON = """
import os
if os.environ.get("NVTE_PROJECT_BUILDING") != "1":
    raise OSError("no libtransformer_engine.so")
def load_framework_extension(name):
    raise FileNotFoundError(name)
"""
PYTORCH = """
from transformer_engine.common import load_framework_extension
load_framework_extension("torch")
import transformer_engine_torch as tex
def is_plain(tensor, kind):
    return type(tensor) is kind
import torch
class Quantized(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [each.part if isinstance(each, Quantized) else each for each in args]
        return super().__torch_dispatch__(func, types, plain, kwargs)
"""
# What 2.3 had, where it looked for a file.
LOOKING = """
import importlib.util, sys
from transformer_engine.common import get_te_path
file = next((get_te_path() / "transformer_engine").glob("transformer_engine_torch.*.so"))
spec = importlib.util.spec_from_file_location("transformer_engine_torch", file)
tex = importlib.util.module_from_spec(spec)
sys.modules["transformer_engine_torch"] = tex
spec.loader.exec_module(tex)
"""


def checkout(folder: Path, version: str, pytorch: str) -> None:
    """Files of a package as its repository has them."""
    for name, text in (
        ("transformer_engine/__init__.py", "import transformer_engine.common"),
        ("transformer_engine/common/__init__.py", COMMON),
        ("transformer_engine/pytorch/__init__.py", pytorch),
        ("build_tools/VERSION.txt", f"{version}\n"),
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = set(sys.modules)
    yield
    vendor.uninstall_vendor()
    for name in set(sys.modules) - before:
        if name.startswith(("transformer_engine", "xformers")):
            del sys.modules[name]


@pytest.mark.parametrize("pytorch", [PYTORCH, LOOKING])
def test_own_python_finds_the_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytorch: str
) -> None:
    checkout(tmp_path, "2.18.0", pytorch)
    monkeypatch.syspath_prepend(str(tmp_path))
    vendor.install_vendor()
    module = importlib.import_module("transformer_engine.pytorch")
    assert str(module.__file__).startswith(str(tmp_path))
    assert importlib.metadata.version("transformer-engine") == "2.18.0"
    assert module.tex.DType.kFloat8E4M3 == 7
    assert "NVTE_PROJECT_BUILDING" not in os.environ


def test_tensors_without_data_are_plain_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    checkout(tmp_path, "2.9.0", PYTORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    vendor.install_vendor()
    module = importlib.import_module("transformer_engine.pytorch")
    with FakeTensorMode() as mode:
        fake = torch.empty(2)
    assert type(fake) is not torch.Tensor
    assert module.is_plain(fake, torch.Tensor)
    assert module.is_plain(3, int)
    # The rule of all tensors, to which its own falls back, would ask a GPU.
    quantized = torch.Tensor._make_wrapper_subclass(module.Quantized, (2,), device="cuda")
    with mode:
        quantized.part = torch.ones(2, device="cuda")
        assert (quantized * 2).device.type == "cuda"


def test_own_python_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path, "2.9.0", PYTORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    vendor.install_vendor(without=["transformer_engine"])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("transformer_engine.pytorch")


def test_own_python_finds_what_another_package_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("__init__", '__version__ = "0.0.35"'),
        ("profiler", ""),
        ("flash", "from flash_attn.flash_attn_interface import flash_attn_gpu"),
        ("_cpp_lib", "_built_with_cuda = False"),
        ("common", "from xformers._cpp_lib import _built_with_cuda"),
    ):
        (tmp_path / "xformers").mkdir(exist_ok=True)
        (tmp_path / "xformers" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    vendor.install_vendor()
    importlib.import_module("xformers.profiler")
    flash = importlib.import_module("xformers.flash").flash_attn_gpu
    assert callable(flash.fwd)
    assert callable(flash.varlen_bwd)
    assert importlib.import_module("xformers.common")._built_with_cuda
    # Scripts list it as not to be recomputed.
    assert torch.ops.xformers.efficient_attention_forward_cutlass.default


def test_versions_before_two_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout(tmp_path, "1.13.0", PYTORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    vendor.install_vendor()
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("transformer_engine.pytorch")
    assert "install the package's own Python" in str(describe_gap(raised.value, RECORDER))
    vendor.install_vendor(without=["transformer_engine"])
    assert describe_gap(raised.value, RECORDER) is None


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        (
            "from flash_attn.modules.mha import MHA",
            "_FORCE_BUILD=TRUE pip install --no-deps --no-build-isolation flash-attn",
        ),
        ("from mamba_ssm.nobody import it", "MAMBA_FORCE_BUILD=TRUE pip install --no-deps"),
        ("from deep_ep import it", "a checkout of github.com/deepseek-ai/DeepEP on PYTHONPATH"),
    ],
    ids=["flash-attn", "mamba", "DeepEP"],
)
def test_what_is_lacking_here_comes_with_the_own_python_built_without_cuda(
    asked: str, how: str
) -> None:
    vendor.install_vendor()
    with pytest.raises(ImportError) as raised:
        exec(asked)
    assert how in str(describe_gap(raised.value, RECORDER))


@needs("transformer_engine")
def test_functions_of_other_versions_are_refused_when_called() -> None:
    vendor.install_vendor()
    tex = importlib.import_module("transformer_engine_torch")
    with pytest.raises(InputError, match="newton_schulz"):
        tex.newton_schulz()
    assert not hasattr(tex, "_init_fn")


class Eight:
    """As the library's tensors with one scale: the data, and a transposed copy."""

    def __init__(self, rows: int, columns: int) -> None:
        self.data = torch.empty(rows, columns, dtype=torch.uint8, device="meta")
        self._transpose = torch.empty(columns, rows, dtype=torch.uint8, device="meta")

    def get_metadata(self) -> dict[str, Any]:
        return {"data": self.data, "data_transpose": self._transpose, "quantizer": None}


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
@pytest.mark.parametrize("eight", [False, True])
def test_products_have_the_shapes_of_their_layouts(
    monkeypatch: pytest.MonkeyPatch, eight: bool, capability: tuple[int, int]
) -> None:
    from trainscout.simulators.virtual_cluster.emulation.vendor.extension import products

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    rows, width, out = 32, 64, 16

    def matrix(*shape: int) -> Any:
        return Eight(*shape) if eight else torch.empty(shape, dtype=torch.bfloat16, device="meta")

    called: list[tuple[Any, ...]] = []
    kernel = products.kernel
    monkeypatch.setattr(
        products,
        "kernel",
        lambda name: lambda *given: called.append(given) or kernel(name)(*given),
    )
    weight, inputs, grad = matrix(out, width), matrix(rows, width), matrix(rows, out)
    cases = (
        (weight, True, inputs, False, (rows, out)),
        (weight, False, grad, False, (rows, width)),
        (inputs, False, grad, True, (out, width)),
    )
    rest = (None, None, 6, None, 6, False, None, False, None, 0, False, False)
    for first, transa, second, transb, shape in cases:
        made, *_ = products.generic_gemm(first, transa, second, transb, *rest)
        assert made.shape == shape
        assert made.dtype is torch.bfloat16
    layouts = [given[2] for given in called]
    # Before Blackwell 8-bit products contract the inner dimension of both operands.
    assert layouts == (["TN"] * 3 if eight and capability < (10, 0) else ["TN", "NN", "NT"])
    assert [given[3] for given in called] == ["forward", "dgrad", "wgrad"]


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ((torch.float32,) * 3, "only support fp16 and bf16 data type, not torch.float32"),
        ((torch.float32, torch.float32, torch.bfloat16), "only support fp16 and bf16"),
        ((torch.bfloat16, torch.float32, torch.bfloat16), "must have the same dtype"),
        ((torch.bfloat16, torch.bfloat16, torch.float16), "must have the same dtype"),
    ],
)
def test_flash_attention_raises_of_types_as_the_library(types: Any, words: str) -> None:
    from trainscout.simulators.virtual_cluster.emulation.vendor import flash_attention
    from trainscout.simulators.virtual_cluster.emulation.vendor.extension import flash_attn_2

    heads = [torch.zeros(2, 8, 4, 16, dtype=each) for each in types]
    offsets = torch.zeros(3, dtype=torch.int32)
    for call in (
        lambda: flash_attention.flash_attn_func(*heads),
        lambda: flash_attention.flash_attn_3_func(*heads),
        lambda: flash_attn_2.fwd(*heads, None, None, 0.1, 0.5, True, -1, -1, 0.0),
        lambda: flash_attention.flash_attn_varlen_func(
            *(each.flatten(0, 1) for each in heads), offsets, offsets, 8, 8
        ),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()


def test_flash_attention_3_returns_what_its_caller_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainscout.simulators.virtual_cluster.emulation.vendor import flash_attention

    monkeypatch.setattr(flash_attention, "fused_attention", lambda query, *_: query.clone())
    attend = flash_attention.flash_attn_3_func
    query, key, value = (torch.zeros(2, 8, 4, 16, dtype=torch.bfloat16) for _ in range(3))
    assert attend(query, key, value).shape == query.shape
    # As before flash-attention@ed20940, which scripts of Wan2.1 are written for.
    assert attend(query, key, value)[0].unflatten(0, (1, 2)).shape == (1, *query.shape)
    out, sums = attend(query, key, value)
    assert (out.shape, sums.shape) == (query.shape, (2, 4, 8))
    out, *_ = attend(query, key, value)
    assert out.shape == query.shape


def test_flash_attention_reads_its_numbers_in_order() -> None:
    from trainscout.simulators.virtual_cluster.emulation.vendor.extension import flash_attn_2

    query = SimpleNamespace(shape=(2, 128, 8, 64))
    key = SimpleNamespace(shape=(2, 256, 8, 64))
    form = flash_attn_2._form(query, key, "bshd", (None, None, 0.1, 0.5, True, -1, -1, 0.0), {})
    assert (form.dropout, form.scale, form.mask) == (0.1, 0.5, "causal_bottom_right")
    offsets = torch.zeros(5, dtype=torch.int32)
    given = (None, offsets, offsets, None, 64, 64, 0.0, 0.5, False, False, 7, 0, 0.0)
    form = flash_attn_2._form(query, key, "thd", given, {})
    assert (form.sequences, form.max_q, form.mask, form.window) == (4, 64, "none", (7, 0))
