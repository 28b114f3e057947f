"""The page about Python and the notebook run as one session each, and show what they say."""

from __future__ import annotations

import json

import pytest

from tests.docs.blocks import FILE, OUTPUT, PYTHON, ROOT, blocks
from tests.docs.python_session import Session, code_cells, run_notebook
from tests.docs.test_commands_run import assert_shown
from trainscout.optimizer.options import ExecutorOptions

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Workers do not change an answer, and take longer to start than these searches take.
    serial = ExecutorOptions("serial")
    monkeypatch.setattr("trainscout.api.ask.executor_options", lambda *_: serial)


def test_the_page_is_one_session(tmp_path):
    session, shown = Session(), ""
    for block in blocks("docs/python.md"):
        if block.kind == FILE:
            assert block.file is not None
            (tmp_path / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == PYTHON:
            shown, _ = session.run(block.text)
        else:
            assert block.kind == OUTPUT
            assert_shown(block, shown)


def test_the_notebook_runs_and_shows_what_it_has_shown():
    kept = json.loads(NOTEBOOK.read_text("utf-8"))
    again = json.loads(NOTEBOOK.read_text("utf-8"))
    run_notebook(again)
    for before, now in zip(code_cells(kept), code_cells(again), strict=True):
        assert kinds(before) == kinds(now), "".join(now["source"])
    assert NOTEBOOK.stat().st_size < 60_000


def kinds(cell):
    """What a cell shows, without the figures, which change as the predictor learns."""
    return [(each["output_type"], sorted(each.get("data", ()))) for each in cell["outputs"]]
