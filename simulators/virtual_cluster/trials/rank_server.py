"""A prepared process that forks itself into one rank after another, of whatever launch.

    python -m trainscout.simulators.virtual_cluster.trials.rank_server OPTIONS

It installs the emulation and imports what all launches need once. Each line on standard input is a
``RankRequest``; each answer a line with what became of the rank (``RankAnswer``).
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.command_line import OK
from trainscout.simulators.predictor.io.own_process import end_with_parent
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.prepared import (
    fork_rank,
    preload_modules,
)
from trainscout.simulators.virtual_cluster.emulation.rank_process import (
    RankOptions,
    run_script,
    start,
)
from trainscout.simulators.virtual_cluster.traces.events import Header
from trainscout.simulators.virtual_cluster.traces.files import TraceWriter

MODULE = "trainscout.simulators.virtual_cluster.trials.rank_server"


@dataclass(frozen=True)
class ServerOptions:
    """What every rank of every launch has in common."""

    world_size: int
    local_world_size: int
    gpu: str
    preload: tuple[str, ...]


@dataclass(frozen=True)
class RankRequest:
    """One rank of one launch. ``only_set_up``: up to its first forward pass, for the communicators
    alone. ``output``: file for what the script prints."""

    rank: int
    script: tuple[str, ...]
    environment: dict[str, str]
    trace: str
    output: str
    steps: int
    only_set_up: bool = False


def main(arguments: list[str]) -> int:
    """Serve until there are no more requests."""
    end_with_parent()
    fields = json.loads(arguments[0])
    options = ServerOptions(**{**fields, "preload": tuple(fields["preload"])})
    # Whatever modules print while they are imported, or scripts later, goes elsewhere.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    try:
        virtual = _prepared(options)
    except InputError as error:
        print(json.dumps({"refused": str(error)}), file=answers)
        return 2
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        request = RankRequest(**{**asked, "script": tuple(asked["script"])})
        child = fork_rank(partial(_run, options, request, virtual))
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), file=answers)
    return OK


def _prepared(options: ServerOptions) -> Any:
    from trainscout.simulators.virtual_cluster.emulation.sink import ListSink

    virtual = start(_rank_options(options, 0, (), os.devnull), ListSink())
    preload_modules(options.preload)
    return virtual


def _rank_options(
    options: ServerOptions, rank: int, script: tuple[str, ...], trace: str
) -> RankOptions:
    return RankOptions(
        world_size=options.world_size,
        rank=rank,
        local_world_size=options.local_world_size,
        gpu=options.gpu,
        memory_bytes=None,
        trace=Path(trace),
        check=False,
        moe_imbalance="",
        payloads=None,
        without=(),
        script=script,
    )


def _run(options: ServerOptions, request: RankRequest, virtual: Any) -> int:
    """Be one rank, in a forked process; the script's exit code."""
    from trainscout.simulators.virtual_cluster.emulation.set_up import UntilForward
    from trainscout.simulators.virtual_cluster.emulation.sink import FileSink

    output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request.environment)
    random.seed(0)
    path, header = Path(request.trace), _header(options, request, virtual)
    sink: Any
    if request.only_set_up:
        sink = UntilForward(path, header)
    else:
        sink = FileSink(TraceWriter(path, header))
    virtual.restart(sink, world_size=options.world_size, rank=request.rank)
    recorder = virtual.state.recorder
    recorder.most_steps = request.steps
    code = run_script(request.script, virtual.state)
    if recorder.has_enough:
        # Whatever the script made of being ended.
        code = OK
    virtual.close()
    return code


def _header(options: ServerOptions, request: RankRequest, virtual: Any) -> Header:
    return Header(
        world_size=options.world_size,
        rank=request.rank,
        local_world_size=options.local_world_size,
        gpu=options.gpu,
        memory_bytes=int(virtual.state.capacity_bytes),
        command=request.script,
        versions={},
    )


def to_json(value: ServerOptions | RankRequest) -> str:
    """As one argument, or one line, of the server."""
    return json.dumps(asdict(value))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
