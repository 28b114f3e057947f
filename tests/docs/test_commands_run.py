"""Every command that the documentation shows is run, page by page, as a reader would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import FILE, OUTPUT, PYTHON, ROOT, SHELL, Block, blocks, pages
from tests.warm import client
from tests.warm.session import environment, warm_python

# Pages that look at what searches have left in MLflow; elsewhere searches do without, which
# saves creating a database for every page.
TRACKED = ("docs/mlflow.md",)

# One session from its first block to its last (test_python.py); what other pages show of it is
# the same, and run there.
SESSIONS = ("docs/python.md",)
RUN_IN_SESSIONS = {block.text for page in SESSIONS for block in blocks(page)}

TO_RUN = [
    page
    for page in pages()
    if page not in SESSIONS
    and any(block.kind in (SHELL, PYTHON) and not block.not_run for block in blocks(page))
]


@pytest.fixture(scope="module", name="clone")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as ``git clone`` leaves it: results and caches stay behind."""
    clone = tmp_path_factory.mktemp("clone") / "trainscout"
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()]
    ignore = shutil.ignore_patterns(".git", ".ci", *ignored)
    shutil.copytree(ROOT, clone, symlinks=True, ignore=ignore)
    return clone


@pytest.fixture(name="workplace")
def fresh(clone: Path) -> Iterator[Path]:
    """The clone as it was, so that no page leans on what another has left."""
    before = set(clone.iterdir())
    yield clone
    for path in set(clone.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("page", TO_RUN)
def test_a_pages_commands_run(page, workplace):
    shown = ""
    of_page = [block for block in blocks(page) if block.text not in RUN_IN_SESSIONS]
    for block, after in zip(of_page, [*of_page[1:], None], strict=True):
        if block.kind == FILE:
            assert block.file is not None
            path = workplace / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == OUTPUT:
            assert_shown(block, shown)
        elif not block.not_run:
            output_shown = after is not None and after.kind == OUTPUT
            shown = run_block(block, workplace, output_shown)


def run_block(block: Block, workplace: Path, output_shown: bool) -> str:
    """Run a block in ``workplace``; returns what it printed."""
    if block.kind == SHELL:
        command = ["bash", "-euo", "pipefail", "-c", block.text]
    else:
        command = ["python", "-c", block.text]
    # As wide as the terminal that the pages were written at.
    variables = environment() | {"COLUMNS": "120"}
    variables["DOCUMENTED_PYTHON"] = sys.executable
    variables["WARM_CLIENT"] = client.__file__
    variables[client.COMMANDS] = warm_python()
    places = (Path(__file__).parent / "bin", Path(sys.executable).parent)
    variables["PATH"] = os.pathsep.join([*map(str, places), variables["PATH"]])
    if block.page in TRACKED:
        variables["DOCUMENTED_TRACKING"] = "1"
    if output_shown:
        variables["DOCUMENTED_OUTPUT"] = "1"
    done = subprocess.run(
        command,
        cwd=workplace,
        env=variables,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    stated = f"{block}\n{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == block.exit_code, stated
    return done.stdout


def assert_shown(block: Block, shown: str) -> None:
    """Every line of an output is what the commands before it printed, in the same order."""
    left = [" ".join(line.split()) for line in shown.splitlines()]
    for line in filter(None, (" ".join(line.split()) for line in block.text.splitlines())):
        if line == "...":
            continue
        assert line in left, f"{block}: not shown (any more): {line}"
        left = left[left.index(line) + 1 :]


def test_most_pages_have_commands_that_run():
    assert len(TO_RUN) >= 8


def test_an_output_that_is_not_shown_is_noticed():
    block = Block("page.md", 1, OUTPUT, "best  1\n...\nworst 3\n")
    assert_shown(block, "best 1\nnext 2\nworst 3\n")
    with pytest.raises(AssertionError, match="worst 3"):
        assert_shown(block, "worst 3\nbest 1\n")
