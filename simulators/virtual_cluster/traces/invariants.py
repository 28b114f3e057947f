"""What every healthy training trace has in common: guards against silent nonsense.

Emulated data is not computed, so a script can take a wrong turn without failing: skip its training
loop, fall back to slow paths, keep what it should have freed. Each check here looks for one such
turn and says what it found, where, and what usually causes it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError

from . import events
from .collate.communication import communication, site_text
from .collate.matching import check_order, match
from .fused import Held
from .vocabulary import tensors

# A step may keep a little more than the one before: a list of losses, a larger scratch buffer.
GROWTH_BYTES = 1 << 20
GROWTH_SHARE = 0.001
# As many equal small kernels in an optimizer step are a loop over parameters.
LOOP_LENGTH = 100
# Violations that no order of streams unknown here could excuse.
ERRORS = frozenset(("unknown peer", "unknown handle"))
# What optimizers do to each parameter, unless to all at once. Norms are not among them: some
# frameworks clip gradients one by one on a GPU too.
_OF_ONE = ("add_", "addcdiv_", "addcmul_", "div_", "lerp_", "mul", "mul_", "sqrt", "sub_")
_PER_PARAMETER = frozenset(f"aten.{name}" for name in _OF_ONE)


@dataclass(frozen=True)
class Finding:
    """A broken invariant: which, where, what was found, and what usually causes it."""

    invariant: str
    rank: int | None
    where: str
    problem: str
    likely_cause: str
    certain: bool = True
    """Whether it cannot be right; else it may be what the script means to do."""

    def __str__(self) -> str:
        who = "" if self.rank is None else f"rank {self.rank}, "
        return f"{self.invariant}: {who}{self.where}: {self.problem}; {self.likely_cause}"


def check_trace(trace: events.Trace) -> tuple[Finding, ...]:
    """The broken invariants of one rank, none if it is sound."""
    return tuple(itertools.chain(*(check(trace) for check in _CHECKS)))


def check_together(traces: Sequence[events.Trace]) -> tuple[Finding, ...]:
    """The broken invariants of what some or all ranks of one job do together."""
    found = []
    launched = [communication(trace) for trace in traces]
    matching = match(launched)
    for order in () if matching.mismatches else check_order(launched):
        why = "on a GPU the job hangs" if order.hangs else "NCCL does not promise progress then"
        where = "; ".join(order.launches)
        problem = "ranks wait for each other" if order.hangs else "launched in different orders"
        found.append(Finding("collectives' order", None, where, problem, why, order.hangs))
    for mismatch in matching.mismatches:
        where = f"{mismatch.communicator}, call {mismatch.sequence}"
        problem = f"{mismatch.field} differs: {mismatch.first}; {mismatch.second}"
        cause = "ranks took different branches on values that one of them could not know"
        if mismatch.guessed:
            cause += ", or got sizes from them: trainscout live runs ranks together"
        sure = not mismatch.guessed
        found.append(Finding("collectives match", None, where, problem, cause, sure))
    return tuple(found)


def _steps(trace: events.Trace) -> Iterator[Finding]:
    """Training really ran: forward, backward and an optimizer step."""
    launched: Counter[str] = Counter()
    entered, phase = False, events.SETUP
    for event in trace.events:
        if isinstance(event, events.Phase):
            # A hook of a gradient may take the step: the backward pass goes on around it.
            hooked = (phase, event.phase) == (events.OPTIMIZER, events.BACKWARD)
            phase = events.OPTIMIZER if hooked else event.phase
            entered |= phase == events.OPTIMIZER
        elif isinstance(event, events.Op | events.HostWork):
            launched[phase] += 1
    stepped = bool(launched[events.OPTIMIZER])
    rank = trace.header.rank
    for name in (events.FORWARD, events.BACKWARD):
        if not launched[name]:
            problem = f"no operation was launched in any {name} pass"
            # Models without modules, or without gradients of autograd's, train as well.
            cause = _skipped(trace)
            yield Finding("iterations", rank, "whole trace", problem, cause, not stepped)
    if not stepped:
        problem = "no optimizer step launched any operation"
        host = "its states are on the host, where nothing is launched, or " if entered else ""
        cause = f"{host}{_skipped(trace)}; for what updates without an optimizer, --no-check"
        yield Finding("optimizer step", rank, "whole trace", problem, cause, not entered)


def _skipped(trace: events.Trace) -> str:
    """Where the script may have taken the wrong turn: its last reads of unknown values."""
    sites = _sites(trace)
    reads = [
        f"{event.operation}={event.value} at {_place(sites, event.site)}"
        for event in trace.events
        if isinstance(event, events.ValueRead) and event.grade == "invented"
    ]
    if not any(isinstance(event, events.Op) for event in trace.events):
        return "nothing ran on a GPU, as where a script chooses the CPU"
    if not reads:
        return "the script ended before training, or trains in a way that is not recognised"
    places = "; ".join(list(dict.fromkeys(reads))[-3:])
    return f"the script may have branched on values that nobody could know: {places}"


def _parameters(trace: events.Trace) -> Iterator[Finding]:
    """The parameters are on the device and whole."""
    rank = trace.header.rank
    live = Held()
    for event in trace.events:
        live.follow(event)
        if isinstance(event, events.Parameters):
            break
    else:
        return
    where = "as the first optimizer step begins"
    gone = [storage for storage in event.storages if storage not in live.bytes]
    if gone:
        problem = f"{len(gone)} of {len(event.storages)} storages of parameters are not allocated"
        cause = "parameters were made on the host and never moved, or freed behind their modules"
        yield Finding("parameters", rank, where, problem, cause)
    held = sum(live.bytes.get(storage, 0) for storage in event.storages)
    if not gone and held < event.bytes:
        problem = f"parameters of {event.bytes} bytes are held in {held} bytes of device memory"
        cause = "their storages were resized away and not brought back"
        yield Finding("parameters", rank, where, problem, cause)


def _memory(trace: events.Trace) -> Iterator[Finding]:
    """From the second step on, each ends with the memory the one before ended with, unless it is
    the first to update some parameters, whose state it makes, or the only one that took more and
    not the last: what is made once, as errors that compression of gradients feeds back."""
    ends: dict[int, int] = {}
    # Parameters that no step has updated yet, and steps that are the first to.
    idle: set[int] = set()
    makes_state: set[int] = set()
    live = Held()
    inside: int | None = None
    for event in trace.events:
        live.follow(event)
        if isinstance(event, events.Phase):
            if inside is not None:
                ends[inside] = live.total_bytes
            inside = event.step if event.phase == events.OPTIMIZER else None
        elif isinstance(event, events.Parameters):
            idle = set(event.storages)
        elif idle and inside is not None and isinstance(event, events.Op):
            updated = {each.storage for each in tensors(event.inputs)} & idle
            makes_state |= {inside} if updated else set()
            idle -= updated
    if inside is not None:
        ends[inside] = live.total_bytes
    steps = sorted(ends)
    grown = [
        (before, after)
        for before, after in itertools.pairwise(steps[1:])
        if after not in makes_state
        and ends[after] - ends[before] > max(GROWTH_BYTES, GROWTH_SHARE * ends[before])
    ]
    if len(grown) == 1 and grown[0][1] != steps[-1]:
        return
    for before, after in grown:
        problem = f"{ends[after] - ends[before]} bytes more are allocated than after step {before}"
        cause = "something keeps tensors of a step alive: a list of losses with their graphs, "
        cause += "a work or hook that never ends, gradients that are not reset"
        where = f"end of step {after}"
        yield Finding("memory returns", trace.header.rank, where, problem, cause, False)


def _loops(trace: events.Trace) -> Iterator[Finding]:
    """Optimizers handle all parameters at once, as on a GPU."""
    counts: dict[int, Counter[str]] = {}
    phase, step = events.SETUP, 0
    for event in trace.events:
        if isinstance(event, events.Phase):
            phase, step = event.phase, event.step
        elif phase != events.OPTIMIZER or not isinstance(event, events.Op):
            continue
        elif event.name.rpartition(".")[0] in _PER_PARAMETER:
            counts.setdefault(step, Counter())[event.name] += 1
    for step, names in counts.items():
        name, count = names.most_common(1)[0]
        if count >= LOOP_LENGTH:
            problem = f"{name} was launched {count} times"
            cause = "the optimizer or gradient clipping goes one parameter at a time: written so, "
            cause += "foreach=False, or torch no longer takes emulated tensors for foreach kernels"
            where = f"optimizer of step {step}"
            yield Finding("foreach kernels", trace.header.rank, where, problem, cause, False)
            return


def _works(trace: events.Trace) -> Iterator[Finding]:
    """Every communication is waited for, by a stream or by the host, but for one whose result
    nobody uses (``Join`` tells others that a rank goes on)."""
    open_works: dict[int, events.Collective | events.PointToPoint] = {}
    used: set[int | None] = set()
    for event in trace.events:
        if isinstance(event, events.Collective | events.PointToPoint):
            open_works[event.work] = event
        elif isinstance(event, events.WorkWait):
            open_works.pop(event.work, None)
        elif isinstance(event, events.Synchronise) and event.scope == "device":
            open_works.clear()
        elif open_works and isinstance(event, events.Op):
            used.update(each.storage for each in tensors(event.inputs))
    open_works = {
        number: each
        for number, each in open_works.items()
        if isinstance(each, events.PointToPoint) or not each.outputs or used & {*each.outputs}
    }
    if open_works:
        sites = _sites(trace)
        first = next(iter(open_works.values()))
        problem = f"{len(open_works)} communications are never waited for, the first a "
        problem += f"{first.kind} of group {first.group}"
        cause = "a handle of an asynchronous call was dropped: its result is used too early"
        where = _place(sites, first.site)
        yield Finding("works end", trace.header.rank, where, problem, cause, False)


def _calls(trace: events.Trace) -> Iterator[Finding]:
    """A rank uses only communicators it is in, and none of their calls is lost."""
    rank, size = trace.header.rank, trace.header.world_size
    groups = (event for event in trace.events if isinstance(event, events.Group))
    for group in groups:
        # As torch describes it.
        if group.description == "default_pg" and len(group.ranks) != size:
            problem = f"the script's world has {len(group.ranks)} ranks, the job {size}"
            cause = "it asks another launcher than torchrun, as of MPI"
            yield Finding("world", rank, "whole trace", problem, cause, False)
    try:
        communication(trace)
    except InputError as error:
        cause = "calls were recorded twice or not at all, or the group made before the trace began"
        yield Finding("collectives match", rank, "whole trace", error.problem, cause)


def _violations(trace: events.Trace) -> Iterator[Finding]:
    """Nothing was done that a GPU would punish; uses of the same streams are one finding."""
    sites = _sites(trace)
    alike: dict[tuple[str, str], list[events.Violation]] = {}
    for event in trace.events:
        if isinstance(event, events.Violation):
            message = re.sub(r" of \d+ bytes", "", event.message)
            alike.setdefault((event.kind, message), []).append(event)
    for (kind, _), (first, *others) in alike.items():
        error = kind in ERRORS
        cause = "on a GPU this is an error" if error else "on a GPU this may be a race"
        more = f" (and {len(others)} more like it)" if others else ""
        where, problem = _place(sites, first.site), first.message + more
        yield Finding(kind, trace.header.rank, where, problem, cause, error)


def _sites(trace: events.Trace) -> dict[int, events.Site]:
    return {event.number: event for event in trace.events if isinstance(event, events.Site)}


def _place(sites: Mapping[int, events.Site], number: int | None) -> str:
    return site_text(sites, number) or "unknown place"


_CHECKS = (_steps, _parameters, _memory, _loops, _works, _calls, _violations)
