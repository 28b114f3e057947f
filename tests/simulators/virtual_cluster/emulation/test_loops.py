"""Loops whose end hangs on numbers that nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.simulators.virtual_cluster.emulation.sections import emulate_text
from trainscout.simulators.virtual_cluster.emulation.loops import Loops
from trainscout.simulators.virtual_cluster.emulation.values.defaults import PASSES
from trainscout.simulators.virtual_cluster.traces.events import Op, ValueRead

SCRIPT = """
import torch
@torch.no_grad()
def near(one, other):
    error = (one - other).abs().max()
    return error.item() < 1e-3
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    rows = model(torch.randn(4, 8, device="cuda"))
    error, last = 1e9, torch.ones(8, device="cuda")
    while error > 1e-4:
        scale = 1 / (rows.exp() * last).sum(0)
        error = (scale - last).abs().mean()
        last = scale
    times = 0
    while True:
        times += 1
        if (scale - last).abs().mean() < 1e-4:
            break
    error = 2.0
    while error > 1e-4:
        times += 1
        error = (scale - last).abs().mean().item()
    while not torch.allclose(scale, torch.zeros(8, device="cuda")):
        times += 1
    while not near(scale, last):
        times += 1
    print("times", times)
    for row in range(9):
        if (rows[row % 4] - last).abs().mean() > 1e9:
            print("rare")
    assert rows.mean().abs() < 1e-4, rows.mean()
    off = rows.abs().max().item()
    size = last.abs().max().item()
    share = off / size
    assert share < 1e-2 and rows.norm() < 1e4
    (rows * last).sum().backward()
    optimizer.step()
"""


def test_a_loop_that_waits_for_a_small_number_ends(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = emulate_text(tmp_path, "sinkhorn.py", SCRIPT, "--world-size", "1", check=True)
    assert run.code == 0, run.output
    assert run.output.count(f"times {4 * PASSES - 2}") == 2, run.output
    assert "rare" not in run.output
    assert (
        f"sinkhorn.py:12; item: a loop waits for it and is taken to end after {PASSES}"
        in run.output
    )
    assert "what the script asserts of it is taken to hold" in run.output
    reads = [event.value for event in run.trace.events if isinstance(event, ValueRead)]
    one_loop = [True] * (PASSES - 1) + [False]
    assert reads[:PASSES] == one_loop
    exps = [each for each in run.trace.events if isinstance(each, Op) and "exp" in each.name]
    assert len(exps) == 2 * PASSES


@pytest.mark.parametrize(
    ("line", "passes"),
    [
        (1, PASSES),
        (2, PASSES),
        (3, PASSES),
        (4, None),
        (5, None),
        (8, None),
        (11, None),
        (12, None),
    ],
    ids=str,
)
def test_only_what_a_loop_waits_for_is_turned(
    tmp_path: Path, line: int, passes: int | None
) -> None:
    (tmp_path / "a.py").write_text(
        "while error > 1:\n    small = error < 2\n    if small:\n        break\n"
        "    if g(error):\n        h(error)\nfor each in all:\n    if each > 1:\n        break\n"
        "while True:\n    bad = isnan(error)\n    if bad:\n        break\n"
    )
    loops, place = Loops(), [(str(tmp_path / "a.py"), line)]
    turned = [loops.ends(place, 0) for _ in range(3 * PASSES)]
    expected = [passes is not None and (n + 1) % PASSES == 0 for n in range(3 * PASSES)]
    assert turned == expected
    # Each step of training counts for itself.
    assert not any(loops.ends(place, step) for step in range(3 * PASSES))


def test_a_function_may_tell_a_loop_whether_it_ends(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "def small(x):\n    error = x.item()\n    return error < 1\n"
        "def finite(x):\n    return isfinite(x)\nwhile not small(x):\n    log(small(x))\n"
    )
    file, loops = str(tmp_path / "a.py"), Loops()
    for told, asked, ends in ((2, 6, True), (3, 6, True), (5, 6, False), (2, 7, False)):
        turned = [loops.ends([(file, told), (file, asked)], 0) for _ in range(PASSES)]
        assert any(turned) == ends
