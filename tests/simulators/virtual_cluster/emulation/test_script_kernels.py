"""Kernels that a script compiles itself: opaque launches of what they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate, emulate_text
from trainscout.simulators.virtual_cluster.traces.events import Op

pytest.importorskip("torch")

SOURCE = """
void forward(torch::Tensor &x, torch::Tensor &y) {}
torch::Tensor twice(torch::Tensor x) { return x * 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &forward, "it");
    m.def("twice", &twice);
    pybind11::class_<Cell>(m, "Cell").def(pybind11::init<const int>());
    pybind11::enum_<Side>(m, "Side", pybind11::module_local()).value("LEFT", Side::LEFT);
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
for returning in (lambda: made.Cell(6), lambda: made.twice(row), lambda: made.Side.LEFT):
    try:
        returning()
    except Exception as error:
        print(error)
made.twice(row)
"""


def test_sources_are_opaque_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.cpp").write_text(SOURCE)
    (tmp_path / "made.cu").write_text("__global__ void kernel() {}")
    run = emulate_text(tmp_path, "script.py", SCRIPT, "--world-size", "1")
    assert run.code == 3
    assert "script.py:17 in <module>: twice=used: is not emulated" in run.output
    why = "what a function that the script compiles returns is not known"
    for name in ("Cell", "twice"):
        assert f"{name}=used: is not emulated: {why}" in run.output
    assert "Side=used: is not emulated: the values that it names" in run.output
    launches = [
        each for each in run.trace.events if isinstance(each, Op) and "launch" in each.name
    ]
    assert [launch.inputs[2] for launch in launches] == ["forward", "backward", "plain", "scale"]


TIMED = """
import torch
from triton.testing import do_bench
row = torch.ones(8, device="cuda")
print("timed", do_bench(lambda: row * 2, warmup=1, rep=2))
"""


def test_kernels_are_timed_by_what_nobody_knows(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    run = emulate_text(tmp_path, "timed.py", TIMED, "--world-size", "1")
    assert run.code == 0, run.output
    assert "timed 1.0" in run.output
    counted = [event.name for event in run.trace.events if isinstance(event, Op)]
    # Five runs take "1 ms", so ten are timed in 2 ms; the cache is filled before each.
    assert counted.count("aten.zero_.default") == 5 + 10


def test_kernels_written_for_each_element(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("""
import torch
from torch.cuda.jiterator import _create_jit_fn, _create_multi_output_jit_fn
one = _create_jit_fn("template <typename T> T gated(T x, T y) { return x * y; }")
two = _create_multi_output_jit_fn("template <typename T> void both(T x, T& a, T& b) { a = x; }", 2)
made = one(torch.ones(4, 1, device="cuda", dtype=torch.bfloat16), torch.ones(3, device="cuda"))
print(tuple(made.shape), made.dtype, len(two(made)))
""")
    run = emulate(tmp_path, str(tmp_path / "script.py"), "--world-size", "1")
    assert "(4, 3) torch.float32 2" in run.output
    launched = [
        each for each in run.trace.events if isinstance(each, Op) and "launch" in each.name
    ]
    assert len(launched) == 2
