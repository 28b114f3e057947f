"""One run of a study at a time."""

import subprocess
import sys

import pytest

from tests.e2e.commands import ROOT
from trainscout.planning.lock import check_free, only_run
from trainscout.simulators.predictor.question.errors import InputError


def test_a_second_run_is_refused_and_told_by_whom(tmp_path):
    with only_run(tmp_path, 0):
        for again in (lambda: check_free(tmp_path), lambda: only_run(tmp_path, 0).__enter__()):
            with pytest.raises(InputError, match=r"is being run by process \d+ on .*wait_s="):
                again()
    with only_run(tmp_path, 0):
        pass
    check_free(tmp_path)


def test_a_directory_without_runs_is_free_and_stays_empty(tmp_path):
    check_free(tmp_path)
    check_free(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_goes_with_its_process(tmp_path):
    program = (
        "import os, pathlib\nfrom trainscout.planning.lock import only_run\n"
        f"only_run(pathlib.Path({str(tmp_path)!r}), 0).__enter__()\nos._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 9
    with only_run(tmp_path, 0):
        pass
