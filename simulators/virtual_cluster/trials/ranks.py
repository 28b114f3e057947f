"""The ranks of a launch that must be traced, and their traces, by way of a prepared process."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from trainscout.simulators.predictor.io.own_process import own_process, packed
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.launch import ScriptQuestion, Start
from trainscout.simulators.virtual_cluster.emulation.launch.rank_process import (
    RankOptions,
    RanksOptions,
)
from trainscout.simulators.virtual_cluster.live.rank_process import rank_environment
from trainscout.simulators.virtual_cluster.traces.collate.probe import (
    alike,
    choose_ranks,
    further_ranks,
)
from trainscout.simulators.virtual_cluster.traces.events import Group, PointToPoint, Trace
from trainscout.simulators.virtual_cluster.traces.files import read_trace, trace_path

from .rank_server import MODULE, READY, RankRequest

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory\. Tried to allocate ([\d.]+) (\w+)\. GPU \d+ has a total capacity of "
    r"[\d.]+ \w+ of which ([\d.]+) (\w+) is free"
)


class InvalidLaunchError(RuntimeError):
    """The script refuses its settings, or does what no GPU would take. One line."""


class OutOfMemoryLaunchError(RuntimeError):
    """The script ran out of device memory, by at least ``missing_bytes``."""

    def __init__(self, rank: int, missing_bytes: int) -> None:
        super().__init__(f"rank {rank} runs out of memory")
        self.missing_bytes = missing_bytes


class PreparedRanks:
    """Traces ranks of launches of one question, one at a time.

    Raises:
        InputError: when the emulation cannot be had, or a module cannot be imported.
    """

    def __init__(self, question: ScriptQuestion) -> None:
        self._question = question
        per_node = question.quantities["gpus_per_node"]
        self._job = RankOptions(
            *(question.world_size, 0, per_node, question.gpu.name, ()),
            steps=question.steps,
            host_times=question.host == "traced",
        )
        options = RanksOptions((self._job,), preload=question.preload)
        self._process = subprocess.Popen(
            own_process(MODULE, packed(options)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=rank_environment(),
            encoding="utf-8",
        )
        # Which ranks stand for a job whose first rank has these communicators.
        self._chosen: dict[tuple[Group, ...], tuple[int, ...]] = {}
        # Of those, and of whether the first sends: where all ranks were seen to do the same.
        self._alike: set[tuple[tuple[Group, ...], bool]] = set()
        self._ends_s = 0.0
        ready = self._answer()
        if ready != READY:
            self.close()
            raise InputError("--preload", ",".join(question.preload), ready)

    def close(self) -> None:
        """End the prepared process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def trace(self, start: Start, ends_s: float) -> list[Trace]:
        """The traces of the ranks that stand for the whole job, ended at ``ends_s`` of
        ``time.monotonic``.

        Raises:
            InvalidLaunchError, OutOfMemoryLaunchError: when a rank does not run to its end.
        """
        self._ends_s = ends_s
        with tempfile.TemporaryDirectory(prefix="trainscout-launch-") as folder:
            words = _with_files(start, Path(folder))
            _payloads(folder).mkdir()
            if self._question.ranks is not None:
                ranks: Sequence[int] = self._question.ranks
                return [self._traced(start, words, rank, folder) for rank in ranks]
            first = self._traced(start, words, 0, folder)
            groups = tuple(each for each in first.events if isinstance(each, Group))
            if groups not in self._chosen:
                self._chosen[groups] = self._choose(start, words, groups, folder)
            traces, others = [first], [rank for rank in self._chosen[groups] if rank]
            traces += [self._traced(start, words, rank, folder) for rank in others]
            # Where no group is called a pipeline, what is done tells of others.
            key = groups, any(isinstance(each, PointToPoint) for each in first.events)
            if others or key in self._alike:
                return traces
            while more := further_ranks(traces).ranks:
                traces += [self._traced(start, words, rank, folder) for rank in more]
            if alike(traces):
                self._alike.add(key)
                return [first]
            return traces

    def _choose(
        self, start: Start, words: Sequence[str], first: Iterable[Group], folder: str
    ) -> tuple[int, ...]:
        def groups_of(rank: int) -> Iterable[Group]:
            if rank == 0:
                return first
            trace = self._traced(start, words, rank, folder, only_set_up=True)
            return [each for each in trace.events if isinstance(each, Group)]

        try:
            return choose_ranks(self._question.world_size, groups_of).ranks
        except InputError as error:
            raise InputError("--rank", "auto", error.problem, "the ranks to trace") from error

    def _traced(
        self,
        start: Start,
        words: Sequence[str],
        rank: int,
        folder: str,
        *,
        only_set_up: bool = False,
    ) -> Trace:
        path, output = trace_path(Path(folder), rank), Path(folder) / "output"
        # Ranks are told what those before them sent.
        sent = _payloads(folder)
        options = replace(self._job, rank=rank, script=tuple(words), trace=path, payloads=sent)
        within_s = max(1.0, self._ends_s - time.monotonic())
        environment = dict(start.environment)
        request = RankRequest(options, environment, str(output), within_s, only_set_up)
        assert self._process.stdin is not None
        self._process.stdin.write(packed(request) + "\n")
        self._process.stdin.flush()
        code = int(self._answer())
        if code == 0 and path.is_file():
            return read_trace(path)
        raise _why(rank, code, output)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that ranks are forked from has ended")
        return line.rstrip("\n")


def _payloads(folder: str) -> Path:
    return Path(folder) / "payloads"


def _with_files(start: Start, folder: Path) -> list[str]:
    """The words, with its configuration files written and named."""
    words = list(start.words)
    for name, content in start.files:
        path = folder / name
        path.write_text(content, encoding="utf-8")
        words = [word.replace(f"{{{name}}}", str(path)) for word in words]
    return words


def _why(rank: int, code: int, output: Path) -> RuntimeError:
    text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    found = _OUT_OF_MEMORY.search(text)
    if found is not None:
        wanted, free = (int(float(found[at]) * _UNITS.get(found[at + 1], 1)) for at in (1, 3))
        return OutOfMemoryLaunchError(rank, max(1, wanted - free))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    stated = lines[-1] if lines else "nothing was printed"
    if code == -signal.SIGALRM:
        return InvalidLaunchError(f"rank {rank} takes too long: {stated[:300]}")
    places = [line for line in lines if line.startswith('File "')]
    if places and stated.isidentifier():  # An error without a message.
        stated += f" ({places[-1]})"
    return InvalidLaunchError(f"rank {rank} ends with exit code {code}: {stated[:300]}")
