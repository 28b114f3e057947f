"""Kernels that a script compiles itself: opaque launches of what they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate
from trainscout.simulators.virtual_cluster.traces.events import Op

pytest.importorskip("torch")

SOURCE = """
void forward(torch::Tensor &x, torch::Tensor &y) {}
torch::Tensor twice(torch::Tensor x) { return decided_by_data(x); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &forward, "it");
    m.def("twice", &twice);
}
TORCH_LIBRARY(mine, m) {
    m.def("backward(Tensor x, Tensor(a!) y) -> ()");
    m.def("plain", forward);
}
TORCH_LIBRARY_IMPL(mine, CUDA, m) { m.impl("backward", &forward); }
"""
SCRIPT = """
import torch
from torch.utils.cpp_extension import load, load_inline
made = load(name="made", sources=["made.cpp", "made.cu"])
row = torch.nn.Parameter(torch.ones(4, 4).cuda())
out = torch.empty_like(row)
made.forward(row, out)
torch.ops.mine.backward(row, out)
torch.ops.mine.plain(row, out)
text = "void scale(torch::Tensor x) {}"
load_inline("inline", "void scale(torch::Tensor x);", text, functions=["scale"]).scale(out)
made.twice(row)
"""


def test_sources_are_opaque_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.cpp").write_text(SOURCE)
    (tmp_path / "made.cu").write_text("__global__ void kernel() {}")
    (tmp_path / "script.py").write_text(SCRIPT)
    run = emulate(tmp_path, str(tmp_path / "script.py"), "--world-size", "1")
    assert run.code == 3
    assert "script.py:12 in <module>: twice=used: is not emulated" in run.output
    assert "decided_by_data is not known" in run.output
    launches = [
        each for each in run.trace.events if isinstance(each, Op) and "launch" in each.name
    ]
    assert [launch.inputs[2] for launch in launches] == ["forward", "backward", "plain", "scale"]


HEADER = """
#pragma once
#include <torch/extension.h>
#define GATES 2
template <typename T> torch::Dtype type_of();
template <> torch::Dtype type_of<float>() { return torch::kFloat; }
torch::Tensor lower_cuda(torch::Tensor x, const int64_t times);
"""
RETURNING = """
#include "made.h"
namespace {
class Cell {
  int kept;
public:
  Cell(const bool training, const int width) : kept(width) {}
  std::vector<torch::Tensor> forward(torch::Tensor x, c10::optional<torch::Tensor> bias) {
    TORCH_CHECK(x.is_cuda() && x.dim() == 2, "an (n, m) on the device; please");
    const auto rows = x.size(0), unused = 1;
    const auto options = x.options().dtype(type_of<STATE>());
#if SIMPLE
    torch::Tensor cache = torch::empty({}, options);
#else
    torch::Tensor cache = torch::empty({rows, x.size(1) * GATES}, options);
#endif
    auto out = at::zeros({GATES, rows + 1, x.size(1) / 2}, options);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "cell", ([&] { run<scalar_t>(x.data_ptr()); }));
    return {out, cache};
  }
};
}
torch::Tensor lower(torch::Tensor x, int times) {
  if (!x.is_contiguous()) { throw std::invalid_argument("contiguous"); }
  return lower_cuda(x, times);
}
std::tuple<at::Tensor, at::Tensor> pair(const at::Tensor& x, bool wide) {
  std::vector<int64_t> shape = x.sizes().vec();
  int64_t width = 0;
  if (wide) { width = (int64_t)(x.size(-1) * 2); } else width = x.size(-1);
  auto made = torch::empty({x.size(0), width}, x.options());
  return std::make_tuple(made, wide ? torch::empty_like(x) : made);
}
at::Tensor searched(at::Tensor x) {
  int64_t found = 0;
  for (int i = 0; i < 4; i++) { found = next(found); }
  return torch::empty({found}, x.options());
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<Cell>(m, "Cell").def(pybind11::init<const bool, const int>())
      .def("forward", &Cell::forward);
  m.def("lower", &lower, "comes from another file");
  m.def("pair", &pair);
  m.def("searched", &searched);
}
"""
KERNELS = """
#include "made.h"
__global__ void kernel(float* x) { x[0] = 1.0f; }
torch::Tensor lower_cuda(torch::Tensor x, const int64_t times) {
  const auto options = torch::TensorOptions().dtype(torch::kHalf).device(x.device());
  auto out = torch::zeros({x.size(0), times}, options);
  const int threads = 1024;
  kernel<<<(x.numel() + threads - 1) / threads, threads>>>(x.data_ptr<float>());
  return out;
}
"""
CALLS = """
import torch
from torch.utils.cpp_extension import load
made = load("made", ["made.cpp", "made.cu"], extra_cflags=["-DSTATE=float", "-DSIMPLE=SMALL"])
row = torch.nn.Parameter(torch.ones(4, 6).cuda())
results = [*made.Cell(True, 6).forward(row, None), made.lower(row, 3)]
results += [*made.pair(row, True), *made.pair(row, False)]
print([(tuple(each.shape), str(each.dtype)[6:], each.is_cuda) for each in results])
made.searched(row)
"""


@pytest.mark.parametrize("simple", [True, False])
def test_what_a_function_returns_is_what_its_source_says(tmp_path: Path, simple: bool) -> None:
    for name, text in (("h", HEADER), ("cpp", RETURNING), ("cu", KERNELS)):
        (tmp_path / f"made.{name}").write_text(text)
    (tmp_path / "script.py").write_text(CALLS.replace("SMALL", str(int(simple))))
    run = emulate(tmp_path, str(tmp_path / "script.py"), "--world-size", "1")
    cache = ((), "float32", True) if simple else ((4, 12), "float32", True)
    narrow, wide = ((4, 6), "float32", True), ((4, 12), "float32", True)
    cell = ((2, 5, 3), "float32", True)
    results = [cell, cache, ((4, 3), "float16", True), wide, narrow, narrow, narrow]
    assert str(results) in run.output
    # What a loop finds is not followed: refused, with the reason.
    assert "searched=used: is not emulated" in run.output
    assert "made in a loop: for (int i = 0" in run.output
    launched = [
        each for each in run.trace.events if isinstance(each, Op) and "launch" in each.name
    ]
    assert [each.inputs[2] for each in launched] == ["Cell.forward", "lower", "pair", "pair"]
    written, read = launched[0].inputs[:2]
    assert [each.shape for each in written] == [cell[0], cache[0]]  # type: ignore[union-attr]
    assert [each.shape for each in read] == [(4, 6)]  # type: ignore[union-attr]
