"""Results take the place of a file in one step, and never that of what they were made from."""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from trainscout.simulators.predictor.io.output import (
    check_output,
    show_text,
    write_output,
    write_whole,
)
from trainscout.simulators.predictor.question.errors import InputError


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "half \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.txt"]


def test_files_follow_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    write_whole(path, "text")
    beside = tmp_path / "beside.txt"
    beside.write_text("text")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check_output("--json", pipe)
    write_output("--json", pipe, "through\n")
    reader.join(timeout=30)
    assert read == ["through\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_a_link_goes_on_to_name_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("kind", ["itself", "symbolic", "hard", "roundabout"])
def test_what_is_read_is_not_written_over(tmp_path: Path, kind: str) -> None:
    table, output = tmp_path / "table.csv", tmp_path / "output"
    table.write_text("measured")
    if kind == "symbolic":
        output.symlink_to(table)
    elif kind == "hard":
        output.hardlink_to(table)
    else:
        (tmp_path / "folder").mkdir()
        output = tmp_path / "folder" / ".." / "table.csv" if kind == "roundabout" else table
    with pytest.raises(InputError, match=r"--json=.*same file as .*table\.csv"):
        check_output("--json", output, [None, table])
    check_output("--json", tmp_path / "another", [table])
    assert table.read_text() == "measured"


def test_two_results_in_one_file_are_refused_before_it_exists(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="same file"):
        check_output("--html", tmp_path / "out", [tmp_path / "out"])


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "no" / "out.json"):
        with pytest.raises(InputError, match=r"--json=.*cannot be written"):
            check_output("--json", place)
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(InputError, match=r"--json=.*cannot be written"):
        write_output("--json", circle / "out", "text")


def test_a_reader_that_has_left_ends_the_output_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = io.TextIOWrapper(os.fdopen(writing, "wb"))
    monkeypatch.setattr(sys, "stdout", stream)
    show_text("nobody reads this\n")
    # What Python does once more when it exits.
    stream.flush()
