import os
from pathlib import Path

import pytest

from trainscout.simulators.predictor.io import cache_folder as module
from trainscout.simulators.predictor.io.cache_folder import cache_folder, keep_compiled


def test_it_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINSCOUT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "trainscout"
    monkeypatch.setenv("TRAINSCOUT_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"


def test_without_a_writable_home_a_private_folder_is_taken_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRAINSCOUT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0
    assert cache_folder() == folder
    assert capsys.readouterr().err.count("TRAINSCOUT_CACHE=") == 1


def test_a_folder_that_others_may_write_in_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINSCOUT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    planted = tmp_path / f"trainscout-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    assert cache_folder() != planted


def test_compiled_code_goes_to_the_cache_where_ours_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")  # so that it is put back
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("TRAINSCOUT_CACHE", str(tmp_path))
    keep_compiled()
    assert "NUMBA_CACHE_DIR" not in os.environ
    monkeypatch.setattr(module, "__file__", str(tmp_path / "missing" / "cache_folder.py"))
    keep_compiled()
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path / "numba")
