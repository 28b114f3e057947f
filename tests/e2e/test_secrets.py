"""Passwords and tokens that settings hold stand in no output and no file of a command."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.e2e.commands import SMALLEST, files_in, run
from trainscout.optimizer.tracking.spool import SPOOL

MARK = "MARKEDSECRET"
# Port 9 of this machine: nobody listens.
SERVER = f"http://me:{MARK}@127.0.0.1:9"

FAKE = "simulator.name=tests.optimizer.fake_simulator:FakeSimulator"
TINY = [*SMALLEST, FAKE, "search=grid", "search.n_trials=4", "space.knobs.recompute=full"]


def holding(place: Path) -> list[str]:
    return [name for name, content in files_in(place).items() if MARK.encode() in content]


def test_of_a_search_that_cannot_be_tracked(tmp_path):
    where = (f"tracking.uri={SERVER}", "hydra.run.dir=here")
    done = run("optimize.py", *TINY, *where, cwd=tmp_path, code=1)
    assert "not tracked" in done.stderr
    assert MARK not in done.stdout + done.stderr
    assert "me:***@127.0.0.1" in (tmp_path / "here/report.html").read_text()
    assert "me:***@127.0.0.1" in (tmp_path / "here/.hydra/config.yaml").read_text()
    # What waits to be tracked has to know where; only its owner reads it.
    assert holding(tmp_path) == [f"here/{SPOOL}"]
    waiting = tmp_path / "here" / SPOOL
    assert waiting.stat().st_mode & 0o077 == 0
    content = json.loads(waiting.read_text())
    assert MARK in content.pop("uri")
    assert MARK not in json.dumps(content)


def test_of_searches_of_a_multirun(tmp_path):
    (tmp_path / "mine/tracking").mkdir(parents=True)
    (tmp_path / "mine/tracking/ours.yaml").write_text(f"name: none\nuri: {SERVER}\n")
    settings = ["--config-dir", "mine", "tracking=ours", "hydra.sweep.dir=all", "seed=1,2"]
    typed = f"search.warm_start=http://me:{MARK}@host"
    done = run("optimize.py", "-m", *settings, *TINY, cwd=tmp_path, code=1)
    assert "#1" in done.stderr
    settings.append(typed)
    done.stderr += run("optimize.py", "-m", *settings, *TINY, cwd=tmp_path, code=2).stderr
    assert "me:***@host" in done.stderr
    assert MARK not in done.stdout + done.stderr
    assert holding(tmp_path) == ["mine/tracking/ours.yaml"]
    assert (tmp_path / "all/multirun.yaml").exists()


@pytest.mark.parametrize(
    "setting",
    [
        f"search.storage=postgresql://me:{MARK}@127.0.0.1:9/db",
        f"search.storage=oracle://me:{MARK}@host/db",
        f"tracking.uri=ftp://me:{MARK}@host",
        f"executor.address=http://me:{MARK}@host",
        f"+executor.options.password={MARK}",
        f"+webhook=https://host/{MARK}",
        "search.storage='http://me:MARKEDSECRET@host",
    ],
)
def test_of_a_search_that_is_refused(tmp_path, setting):
    done = run("optimize.py", *TINY, "tracking=none", setting, cwd=tmp_path, code=2)
    assert MARK not in done.stdout + done.stderr
    assert files_in(tmp_path) == {}


def test_of_settings_that_are_shown(tmp_path):
    done = run("optimize.py", *TINY, f"tracking.uri={SERVER}", "--cfg", "job", cwd=tmp_path)
    assert "me:***@127.0.0.1" in done.stdout
    assert MARK not in done.stdout


def test_of_a_study_with_a_webhook(tmp_path):
    (tmp_path / "mine/sweep").mkdir(parents=True)
    (tmp_path / "mine/sweep/ours.yaml").write_text(
        "name: ours\nmodels: [llama3_8b]\nclusters: [h100_64]\nnum_gpus: [8]\n"
        "training: {global_batch_size: 64, tokens: 1.0e+9}\ntargets: {day: {days: 1}}\n"
    )
    done = run(
        "plan.py",
        *("--config-dir", "mine", "sweep=ours", "search=grid", "n_jobs=1"),
        *("space=maya_table3", FAKE),
        "space.knobs.recompute=full",
        "tracking.uri=sqlite:///runs.db",
        f"webhook='http://127.0.0.1:9/services/{MARK}?token={MARK}'",
        cwd=tmp_path,
    )
    assert "was not told" in done.stderr, done.stderr
    assert MARK not in done.stdout + done.stderr
    assert holding(tmp_path) == []
    with sqlite3.connect(tmp_path / "runs.db") as tracked:
        found = tracked.execute("SELECT value FROM params WHERE key = 'webhook'").fetchall()
    assert found == [("http://127.0.0.1:9/***",)]
