"""What is said of scripts that fail, or that go on without what they asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate_text
from trainscout.simulators.virtual_cluster.emulation.launch.installation import how_to_install
from trainscout.simulators.virtual_cluster.emulation.launch.missing_data import how_to_bring

torch = pytest.importorskip("torch")

# Its own ``print`` is silent on most ranks.
GAP = """
import builtins
import torch
from xformers.ops import AttentionBias, memory_efficient_attention
builtins.print = lambda *args, **kwargs: None
query = torch.ones(1, 8, 2, 16, device="cuda")
memory_efficient_attention(query, query, query, AttentionBias())
"""


# No device is needed to fail here, nor to find these.
MISSING = 'import torch; torch.load("no_such_file.pt")'
STOOD_IN = "import flash_attn; import flash_attn.no_such_module"


@pytest.mark.parametrize(
    ("script", "code", "stated"),
    [
        (MISSING, 1, "No such file or directory: 'no_such_file.pt'"),
        ("import torch\n print()", 1, "IndentationError: unexpected indent"),
        (STOOD_IN, 3, "gap of the emulator: No module named 'flash_attn.no_such_module'"),
    ],
)
def test_what_is_missing_is_told_from_what_is_not_emulated(
    tmp_path: Path, script: str, code: int, stated: str
) -> None:
    run = emulate_text(tmp_path, "missing.py", script, "--world-size", "8")
    assert run.code == code, run.output
    assert stated in run.output


NO_BATCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(3, 1).cuda()
optimizer = torch.optim.SGD(model.parameters())
for (rows,) in DataLoader(TensorDataset(torch.ones(5, 3)), 32, drop_last=True):
    model(rows.cuda()).sum().backward()
    optimizer.step()
"""


def test_a_loader_that_gives_no_batch_is_named(tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "empty.py", NO_BATCH, "--world-size", "1", check=True)
    assert run.code == 4, run.output
    made_of = "5 samples, batches of 32, a last one that is not full is dropped"
    assert f"empty.py:6 gave no batch: {made_of}" in run.output


def test_a_gap_is_said_in_one_line(tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "gap.py", GAP, "--world-size", "8")
    assert run.code == 3
    line = run.output.partition("gap of the emulator: ")[2].partition("\n")[0]
    assert "gap.py:7 in <module>" in line
    assert "AttentionBias" in line


# One gap ends a thread, one is raised in every other step, one in a process that has no device;
# the script's own mistakes and what it asks of packages that are not there are no gaps.
SWALLOWED = """
import multiprocessing, threading, torch

def serve():
    torch.sort(torch.eye(8, device="cuda").to_sparse())

def connect():
    torch.distributed.ProcessGroupNCCL(torch.distributed.HashStore(), 0, 1, None)

def work():
    try:
        torch.ones(8, device="cuda")
    except Exception:
        pass

if __name__ == "__main__":
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    if FAILS:
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
        threading.Thread(target=connect).start()
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
    for step in range(4):
        try:
            if FAILS and step % 2:
                serve()
            model(torch.ones(4, 8 + step // 3, device="cuda")).sum().backward()
            optimizer.step()
        except Exception:
            continue
"""


@pytest.mark.parametrize(("fails", "code"), [("True", 4), ("False", 0)])
def test_gaps_that_a_script_swallows_are_counted(tmp_path: Path, fails: str, code: int) -> None:
    options = ("--world-size", "1", "--strict")
    run = emulate_text(
        tmp_path, "caught.py", SWALLOWED.replace("FAILS", fails), *options, check=True
    )
    assert run.code == code, run.output
    for stated in (
        "caught.py:5: 4 gaps of the emulator were swallowed, the first: aten.sort",
        "gap of the emulator in a process of the script: aten.ones",
    ):
        assert run.output.count(stated) == (code == 4), run.output


SEVERAL = """
import torch
torch.cuda.set_device(1)
model = torch.nn.Linear(8, 8).cuda()
if WRAPS:
    model = torch.nn.DataParallel(model, device_ids=[1, 0])
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(4, 8, device="cuda")).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize("wraps", ["True", "False"])
def test_a_process_that_works_on_several_gpus_is_warned_of(tmp_path: Path, wraps: str) -> None:
    options = ("--world-size", "2", "--rank", "1")
    text = SEVERAL.replace("WRAPS", wraps)
    run = emulate_text(tmp_path, "several.py", text, *options, check=True)
    assert run.code == 0, run.output
    stated = "one process works on cuda:0, cuda:1: here all of it runs on one GPU, part after part"
    assert run.output.count(stated) == (wraps == "True"), run.output


GUARDED = """
import torch
try:
    from apex.contrib.nobody import kernel
except ImportError:
    kernel = None
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(4, 8, device="cuda")).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("more", "code", "stated"),
    [
        ("", 0, "guarded.py:4: went on without apex.contrib.nobody; where it is installed"),
        ("kernel()", 1, "went on without apex.contrib.nobody, which it imports at "),
        ("import nothing_of_it", 1, "the script went on without "),
        ("import nothing_of_it", 1, "-m pip install nothing-of-it\n"),
        ("import cv2_of.it, yaml", 1, "-m pip install cv2-of\n"),
        ("import nothing_of_it, yaml\nfrom more_of.it import c", 1, "nothing-of-it more-of\n"),
        ("import zope.b_of.it", 1, "-m pip install zope-b-of\n"),
        ("try:\n    import b_of\nexcept ImportError:\n    raise ValueError", 1, "install b-of\n"),
        ("import torch.nothing", 1, "No module named 'torch.nothing'"),
        ("from torch import nothing", 1, "the script went on without "),
    ],
    ids=[
        *("other kernels", "fails later", "fails by another import", "lacks a package"),
        *("lacks a module", "lacks two", "lacks a project's part", "says so itself"),
        *("lacks a part", "lacks a name"),
    ],
)
def test_a_guarded_import_that_failed_is_named(
    tmp_path: Path, more: str, code: int, stated: str
) -> None:
    run = emulate_text(tmp_path, "guarded.py", GUARDED + more, "--world-size", "1", check=True)
    assert run.code == code, run.output
    assert run.output.count(stated) == 1, run.output
    assert ("pip install" in run.output) == ("_of" in more), run.output


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("fla.ops", "flash-linear-attention"),
        ("some_other", "some-other"),
        ("jaraco.text.layouts", "jaraco-text"),
        ("pkg_resources", "'setuptools<81'"),
        ("warp", "warp-lang"),
    ],
)
def test_packages_that_are_named_otherwise(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = how_to_install(ModuleNotFoundError("", name=module))
    assert line is not None
    assert line.endswith(f"-m pip install {package}")


def test_what_the_script_brings_itself_is_not_looked_for_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "src" / "own_trainer").mkdir(parents=True)
    (tmp_path / "src" / "own_trainer" / "data.py").touch()
    monkeypatch.chdir(tmp_path)
    line = how_to_install(ModuleNotFoundError("", name="own_trainer.data"))
    assert line == f"own_trainer is the script's own: run with PYTHONPATH={tmp_path / 'src'}"


def test_what_the_net_did_not_bring_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreached(*_: object) -> None:
        raise URLError("no such name")

    def load_model(repo_id: str) -> None:
        try:
            unreached()
        except URLError:
            raise OSError("weights are missing")  # noqa: B904

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.hub.urlopen", unreached)
    kept = str(tmp_path / "weights.pth")
    cases: tuple[tuple[Callable[[], object], str | None], ...] = (
        (lambda: load_model("someone/model"), f"a folder {tmp_path / 'someone/model'} is taken"),
        (lambda: torch.hub.download_url_to_file("http://a/b", kept), f"any values, as {kept}"),
        (lambda: torch.hub.download_url_to_file("http://a/b", kept, "8f2c"), "checksum"),
        (lambda: Path("not_there").read_bytes(), None),
    )
    for load, stated in cases:
        with pytest.raises(OSError, match=r"missing|[Nn]o such") as raised:
            load()
        line = how_to_bring(raised.value)
        assert line is None if stated is None else stated in str(line)
