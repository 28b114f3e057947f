"""The server: imports what commands import, and becomes each of them in a fork.

``python -m tests.warm.server SOCKET IMPORTED...``; it imports when first asked, and ends with its
stdin, that is with who started it.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.warm.client import started_for_real


class Server:
    """Who asked for which process, until it ends."""

    def __init__(self, path: str, imported: Sequence[str]) -> None:
        self._to_import = list(imported)
        self._listener = socket.socket(socket.AF_UNIX)
        # There is nobody to call before it listens.
        self._listener.bind(f"{path}.new")
        self._listener.listen()
        os.rename(f"{path}.new", path)
        self._asking: dict[int, socket.socket] = {}
        self._parents: dict[int, int] = {}
        self._waiting = selectors.DefaultSelector()
        self._ended, ended = os.pipe()
        os.set_blocking(ended, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ended)
        for source in (self._listener, self._ended, sys.stdin.fileno()):
            self._waiting.register(source, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until stdin ends."""
        while True:
            for key, _ in self._waiting.select():
                if key.fileobj is self._listener:
                    self._begin()
                elif key.fileobj == self._ended:
                    os.read(self._ended, 4096)
                    self._tell_who_waits()
                elif isinstance(key.fileobj, socket.socket):
                    # Who asked has gone, or lost patience.
                    for pid, asking in self._asking.items():
                        if asking is key.fileobj:
                            os.kill(pid, signal.SIGKILL)
                    self._waiting.unregister(key.fileobj)
                else:
                    return

    def _begin(self) -> None:
        self._prepare()
        asking, _ = self._listener.accept()
        content, descriptors, _, _ = socket.recv_fds(asking, 4, 3)
        rest = bytearray()
        size = int.from_bytes(content, "big")
        while len(rest) < size:
            rest += asking.recv(size - len(rest))
        request = json.loads(rest)
        # Of one that has itself become another, and so is a child of this process's.
        parent = self._parents.get(request["pid"], request["parent"])
        pid = os.fork()
        if pid == 0:
            become(request, parent, descriptors)
        self._parents[pid] = parent
        for descriptor in descriptors:
            os.close(descriptor)
        self._asking[pid] = asking
        self._waiting.register(asking, selectors.EVENT_READ)

    def _prepare(self) -> None:
        if not self._to_import:
            return
        while self._to_import:
            importlib.import_module(self._to_import.pop(0))
        # A fork would have none of these threads.
        assert threading.active_count() == 1, threading.enumerate()
        # Collecting garbage would copy every page of it in every fork.
        gc.collect()
        gc.freeze()

    def _tell_who_waits(self) -> None:
        while self._asking:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            asking = self._asking.pop(pid)
            del self._parents[pid]
            if asking in self._waiting.get_map():
                self._waiting.unregister(asking)
                asking.sendall(os.waitstatus_to_exitcode(status).to_bytes(2, "big", signed=True))
            asking.close()


def become(request: dict[str, Any], parent: int, descriptors: Sequence[int]) -> None:
    """Be the process that was asked for, to its end, as if who asked had become it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)
    os.chdir(request["cwd"])
    os.getppid = lambda: parent
    before = os.environ.copy()
    os.environ.clear()
    os.environ.update(request["environment"])
    arguments = request["arguments"]
    if started_for_real(arguments, before):
        os.execv(sys.executable, [sys.executable, *arguments])
    # Those of the server have looked at what it was started with.
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace")
    # runpy warns of a module that is run when it was imported before.
    warnings.filterwarnings("ignore", ".* found in sys.modules after import", RuntimeWarning)
    code = 1
    try:
        code = ending(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ending(arguments: Sequence[str]) -> int:
    """Run a program as Python does, with what Python does in the end; its exit code."""
    code = run(arguments)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        return 120
    sys.stderr.flush()
    return code


def run(arguments: Sequence[str]) -> int:
    """Run a module, a line of code or a file as ``__main__``; its exit code."""
    own = os.environ.get("PYTHONPATH")
    places = own.split(os.pathsep) if own else []
    unsafe = arguments[0] != "-P"
    arguments = arguments[0 if unsafe else 1 :]
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            sys.path[:0] = [os.getcwd(), *places]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            sys.path[:0] = [*([""] if unsafe else []), *places]
            main = types.ModuleType("__main__")
            main.__builtins__ = builtins  # type: ignore[attr-defined]
            sys.modules["__main__"] = main
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = list(arguments)
            sys.path[:0] = [str(Path(arguments[0]).resolve().parent), *places]
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return int(leaving.code or 0) & 0xFF
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Serve, then end at once: some of what was imported prints that it leaks when taken apart."""
    Server(sys.argv[1], sys.argv[2:]).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
