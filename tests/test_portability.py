"""What keeps the main path running on macOS and Windows, seen from here."""

from __future__ import annotations

import ast
import csv
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.e2e.commands import ROOT, SMALL, SMALLEST, command, environment

PACKAGES = ("conf", "optimizer", "planning", "pruning", "reports", "simulators")
# Virtual GPUs are a shared library for Linux; its programs refuse other systems when they start.
LINUX_ONLY = tuple(
    f"simulators/virtual_cluster/{part}/" for part in ("emulation", "live", "trials")
)

MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
OS_NAMES = """
    chown chroot ctermid fchmod fork forkpty getegid geteuid getgid getgroups getloadavg getpgid
    getpgrp getpriority getresuid getuid killpg lchown mkfifo nice openpty posix_fallocate
    posix_spawn pread pwrite register_at_fork sched_getaffinity sched_setaffinity sched_yield
    sendfile setpgid setpriority setsid sysconf uname wait wait3 wait4 O_CLOEXEC O_DIRECTORY
    O_NOFOLLOW O_NONBLOCK O_SYNC WNOHANG"""
SIGNAL_NAMES = """
    SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 alarm
    getitimer pause pthread_kill pthread_sigmask setitimer sigpending sigwait siginterrupt"""
NAMES = {"os": OS_NAMES.split(), "signal": SIGNAL_NAMES.split()}
# Where they stand all the same: behind a look whether the system has them.
GUARDED = {
    ("optimizer/executors/worker.py", "fcntl"),
    ("optimizer/executors/worker.py", "os.getuid"),
    ("optimizer/executors/worker.py", "os.sched_getaffinity"),
    ("optimizer/executors/worker.py", "os.sched_setaffinity"),
    ("optimizer/executors/interrupts.py", "signal.pthread_sigmask"),
    ("optimizer/executors/worker.py", "resource"),
    ("optimizer/storage/backends.py", "fcntl"),
    ("optimizer/tracking/serve.py", "os.nice"),
    ("optimizer/tracking/serve.py", "signal.alarm"),
    ("simulators/predictor/io/cache_folder.py", "os.getuid"),
    ("simulators/predictor/io/own_process.py", "signal.SIGKILL"),
    ("simulators/predictor/io/second_core.py", "os.fork"),
    ("simulators/predictor/io/second_core.py", "os.sched_getaffinity"),
    # Only where virtual GPUs trace.
    ("simulators/virtual_cluster/traced/cache.py", "fcntl"),
    ("simulators/virtual_cluster/traced/tracer.py", "os.sysconf"),
}

# Takes away what Windows does not have, in every process that is started from here on.
WITHOUT = f"""
import os, signal, sys, subprocess, tempfile, threading, random
for module in {sorted(MODULES)!r}:
    sys.modules[module] = None
for owner, names in ((os, {NAMES["os"]!r}), (signal, {NAMES["signal"]!r})):
    for name in names:
        # The standard library needs these here; without SIGKILL a process would be asked to end
        # by SIGTERM, which workers leave to their search, where others have TerminateProcess.
        needed = ("uname", "O_CLOEXEC", "WNOHANG", "sysconf", "SIGKILL")
        if hasattr(owner, name) and name not in needed:
            delattr(owner, name)
"""
FORBIDDEN = re.compile(
    r'[<>:"\\|?*\x00-\x1f]|[ .]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE
)


def sources() -> list[PurePosixPath]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    named = [PurePosixPath(path.relative_to(ROOT).as_posix()) for path in files]
    named += [PurePosixPath(path.name) for path in ROOT.glob("*.py")]
    return sorted(path for path in named if not str(path).startswith(LINUX_ONLY))


@functools.cache
def parsed(path: PurePosixPath) -> list[ast.AST]:
    return list(ast.walk(ast.parse((ROOT / path).read_text("utf-8"))))


def posix_names(nodes: list[ast.AST]) -> Iterator[str]:
    """Modules and names that only some systems have."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from MODULES & {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from MODULES & {node.module}
            names = set(NAMES.get(node.module or "", ()))
            yield from (f"{node.module}.{each.name}" for each in node.names if each.name in names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = node.value.id
            yield from {f"{owner}.{node.attr}"} if node.attr in NAMES.get(owner, ()) else ()


def test_names_of_one_system_are_asked_for_before_they_are_used() -> None:
    found = {(str(path), name) for path in sources() for name in posix_names(parsed(path))}
    assert found == GUARDED


def unencoded(call: ast.Call) -> bool:
    """Whether a call opens text in whatever encoding the system has."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in given or None in given:
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in ("read_text", "write_text"):
        return len(call.args) < (1 if name == "read_text" else 2)
    if "text" in given or "universal_newlines" in given:
        return name in ("run", "Popen", "check_output")
    builtin = isinstance(call.func, ast.Name) and call.func.id == "open"
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    of_path = name == "open" and not (
        isinstance(owner, ast.Name)
        and owner.id in ("os", "gzip", "tarfile", "webbrowser", "_OPENER")
    )
    if name == "fdopen" or builtin or of_path:
        place = 0 if of_path else 1
        mode = call.args[place] if len(call.args) > place else given.get("mode")
        return not (isinstance(mode, ast.Constant) and "b" in str(mode.value))
    return False


def test_text_is_opened_in_an_encoding_of_its_own() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in sources()
        for node in parsed(path)
        if isinstance(node, ast.Call) and unencoded(node)
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "names", "plain"),
    [
        ("import fcntl", ["fcntl"], False),
        ("from os import fork", ["os.fork"], False),
        ("import os\nos.fork()", ["os.fork"], False),
        ("import signal\nsignal.alarm(1)", ["signal.alarm"], False),
        ("path.read_text()", [], True),
        ("path.read_text('utf-8')", [], False),
        ("path.write_text(text)", [], True),
        ("open(path)", [], True),
        ("open(path, 'rb')", [], False),
        ("path.open('w')", [], True),
        ("path.open('w', encoding='utf-8')", [], False),
        ("subprocess.run(command, text=True)", [], True),
    ],
)
def test_the_checks_see_what_they_are_for(text: str, names: list[str], plain: bool) -> None:
    nodes = list(ast.walk(ast.parse(text)))
    assert list(posix_names(nodes)) == names
    assert any(isinstance(node, ast.Call) and unencoded(node) for node in nodes) == plain


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes on a system with little of POSIX and an old code page."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(WITHOUT, "utf-8")
    told = {"PYTHONPATH": str(site), "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    return environment() | told


def run_there(program: str, *arguments: str, cwd: Path, there: dict[str, str]) -> str:
    done = subprocess.run(
        command(program, *arguments), cwd=cwd, env=there, capture_output=True, timeout=300
    )
    stated = done.stderr.decode("cp1252")
    assert done.returncode == 0, stated
    assert "Traceback" not in stated
    assert "not tracked" not in stated
    return done.stdout.decode("cp1252")


def test_a_system_without_fork_is_one(elsewhere: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "probe.py"
    program.write_text("import os, signal\nprint(hasattr(os, 'fork'))\nimport fcntl\n", "utf-8")
    done = subprocess.run(
        command(str(program)), env=elsewhere, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.stdout == "False\n"
    assert "import of fcntl halted" in done.stderr


def test_a_search_needs_no_more_than_every_system_has(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    asked = [*SMALLEST, "executor=loky", "executor.n_jobs=2", "search.n_trials=12"]
    asked.remove("executor=serial")
    run_there("optimize.py", *asked, cwd=tmp_path, there=elsewhere)
    assert (tmp_path / "mlflow.db").exists()
    # What was simulated is read, the rest simulated, here by no workers.
    more = [*SMALLEST, "search.n_trials=16", "resume=true", "tracking=none"]
    run_there("optimize.py", *more, cwd=tmp_path, there=elsewhere)
    (trials,) = (tmp_path / "outputs").rglob("trials.csv")
    with trials.open(encoding="utf-8", newline="") as file:
        assert sum(row["status"] != "invalid" for row in csv.DictReader(file)) == 16
    assert not unwritable_on_windows(tmp_path)
    for script in tmp_path.rglob("*.sh"):
        assert b"\r" not in script.read_bytes()


def unwritable_on_windows(directory: Path) -> list[str]:
    written = [path.relative_to(directory) for path in directory.rglob("*")]
    assert written
    return [str(path) for path in written if any(map(FORBIDDEN.search, path.parts))]


def test_a_study_needs_no_more_either(elsewhere: dict[str, str], tmp_path: Path) -> None:
    study = """
        name: ours
        models: [llama3_8b]
        clusters: [h100_64]
        num_gpus: [8, 16]
        training: {global_batch_size: 64, tokens: 1.0e+9}"""
    (tmp_path / "mine/sweep").mkdir(parents=True)
    (tmp_path / "mine/sweep/ours.yaml").write_text(study, "utf-8")
    asked = ["--config-dir", "mine", "sweep=ours", "space=maya_table3", "n_jobs=2"]
    run_there("plan.py", *asked, cwd=tmp_path, there=elsewhere)
    # Both sizes, and what the page asks besides.
    assert len(list((tmp_path / "plans/ours/cells").iterdir())) >= 2
    assert not unwritable_on_windows(tmp_path)


def test_a_name_that_a_code_page_lacks_is_shown_all_the_same(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    recipe = ["recipe.tp=8", "recipe.recompute=full", "model.name='\u6a21\u578b'"]
    shown = run_there("simulate.py", *SMALL[:-1], *recipe, cwd=tmp_path, there=elsewhere)
    assert "\\u6a21\\u578b" in shown
