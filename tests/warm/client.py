"""Asks the server for a process; as a program, is that process for whoever started it.

Only the standard library's smallest modules: it starts in the place of every ``python`` that
documented commands call.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence

COMMANDS, RANKS = "WARM_PYTHON", "WARM_RANKS"
"""Environment variables: the sockets of the server of commands and that of emulated ranks."""


def started_for_real(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this is about how Python itself starts, which a fork is too late for."""

    def of_python(variables: Mapping[str, str]) -> dict[str, str]:
        read = {name: text for name, text in variables.items() if name.startswith("PYTHON")}
        return {name: text for name, text in read.items() if name != "PYTHONPATH"}

    plain = bool(arguments) and (arguments[0] in ("-m", "-c", "-P") or arguments[0][0] != "-")
    return not plain or of_python(os.environ) != of_python(environment)


def run_warm(
    address: str,
    arguments: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    timeout_s: float | None = None,
) -> int:
    """Run ``python arguments`` with these three descriptors; its exit code, as Popen has it.

    Raises:
        TimeoutError: when it takes longer; it is killed.
    """
    request = {"arguments": list(arguments), "cwd": cwd, "environment": dict(environment)}
    request |= {"pid": os.getpid(), "parent": os.getppid()}
    content = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(timeout_s)
        server.connect(address)
        socket.send_fds(server, [len(content).to_bytes(4, "big")], list(descriptors))
        server.sendall(content)
        code = server.recv(2)
    if len(code) < 2:
        raise ChildProcessError("the server of warm processes has ended")
    return int.from_bytes(code, "big", signed=True)


if __name__ == "__main__":
    _code = run_warm(
        sys.argv[1],
        sys.argv[2:],
        cwd=os.getcwd(),
        environment=os.environ,
        descriptors=(0, 1, 2),
    )
    sys.exit(_code if _code >= 0 else 128 - _code)
