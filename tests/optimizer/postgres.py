"""A PostgreSQL server of its own, for tests of searches that share one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator


def why_not() -> str | None:
    """Why no server can be started here, if so."""
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        return "needs PostgreSQL's initdb and pg_ctl"
    if importlib.util.find_spec("psycopg") is None:
        return "needs the postgres extra"
    return None if os.getuid() or _account() else "the server refuses root; needs its account"


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database, served while the context lasts."""
    account = {} if os.getuid() else {"user": _account()}
    directory = tempfile.mkdtemp(prefix="trainscout-postgres-", dir="/tmp")
    if account:
        shutil.chown(directory, account["user"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "cwd": directory, "check": True, **account}
    options = f"-p {port} -h 127.0.0.1 -k {directory} -c fsync=off"
    subprocess.run(["initdb", "-D", f"{directory}/db", "-A", "trust", "-U", "scout"], **quiet)
    command = ["pg_ctl", "-D", f"{directory}/db", "-l", f"{directory}/log"]
    subprocess.run([*command, "-w", "-o", options, "start"], **quiet)
    try:
        yield f"postgresql://scout@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*command, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(directory)


def _account() -> str | None:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return None
