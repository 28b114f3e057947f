"""Traces of a job's ranks, played on one engine.

Every class of ranks is played once: its host, its streams and its communicators, with the prices
that built-in workloads have. What the frameworks overlap, bucket and prefetch is in the traces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.network.topology.wiring import build_network
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.replay.engine import run
from trainscout.simulators.predictor.replay.network_doubt import stated_share
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.rules import Rules
from trainscout.simulators.predictor.uncertainty.calibration import Calibration
from trainscout.simulators.predictor.uncertainty.factors import AS_IT_COMES
from trainscout.simulators.predictor.workload.ir import Collective
from trainscout.simulators.virtual_cluster.allocator.allocator_settings import AllocatorSettings
from trainscout.simulators.virtual_cluster.traces.collate.collated import Collated, collate
from trainscout.simulators.virtual_cluster.traces.collate.communication import ranks_text
from trainscout.simulators.virtual_cluster.traces.collate.probe import untraced_peers
from trainscout.simulators.virtual_cluster.traces.events import (
    OPTIMIZER,
    HostGap,
    HostWork,
    Phase,
    Trace,
)
from trainscout.simulators.virtual_cluster.traces.lowering.regions import lower_events
from trainscout.simulators.virtual_cluster.walk.host import HostCost
from trainscout.simulators.virtual_cluster.walk.rendezvous import SEND_RECV

from .answer import Replay, TracedStep, answer
from .breakdown import Played
from .issue import Issued, RankIssue
from .program import NO_CONTENT, Contents, Priced, Program
from .rendezvous import JobRendezvous
from .rules import FIELD, add_rules
from .sharing import SETTLED, SharedTimes, Wire, run_shared
from .window import Window, launched, unlike, windows

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable

HOSTS = ("declared", "traced")


def replay_ranks(
    traces: Sequence[Trace],
    gpu: Gpu,
    cluster: Cluster,
    framework: Framework = UNDECLARED,
    *,
    host: str = "declared",
    calibration: Calibration | None = None,
    measured: MeasuredTable | None = None,
    allocator: AllocatorSettings | None = None,
    model_flops: float | None = None,
    rules: Rules | None = None,
    switches: SwitchFabric | None = None,
) -> TracedStep:
    """Predict one step of a job from the traces of all its ranks, or of some of each class.

    The last step traced counts (where steps repeat a pattern, all of it); the one before it is
    played as a run-up. Ranks fill the nodes of the cluster in order, of which as many are used as
    the job needs.

    Args:
        traces: of one job.
        gpu, cluster: what it shall run on; the traces may come from another GPU.
        framework: whose declared host times to use, or of its alternatives those of the one
            whose code launches (``Catalogue.framework_of_script``); by default the driver's own.
        host: "declared", or "traced": the CPU seconds in the traces, emulation's among them,
            where they have any.
        calibration, measured: as in ``ReplaySimulator``.
        allocator: settings of PyTorch's allocator, by default as the framework has them.
        model_flops: of one step of the whole job, for the MFU.
        rules: dependencies besides those of the traces (``execution.rules``).
        switches: whose links all communication shares; None: none slows another.

    Raises:
        InputError: as ``collate``, ``windows`` and ``lower_events``; for a job that does not fit
            on the cluster or runs nothing, kernels the GPU has not, and ranks that wait for each
            other.
    """
    require_choice("host", host, HOSTS)
    factors = AS_IT_COMES
    if calibration is not None:
        calibration.check_gpu(gpu)
        factors = calibration.factors_on(framework)
    job = collate(traces)
    cluster = used_part(cluster, job.world_size)
    windowed = windows(job.traces)
    happened = (event for trace in job.traces.values() for event in trace.events)
    cpu = host == "traced" and any(isinstance(event, HostGap) for event in happened)
    cost = HostCost.of(framework, cluster, gpu, cpu=cpu, factor=factors.host_time)
    program, contents = Program(), Contents()
    stated = stated_share(cluster, switches=switches is not None)
    if switches is not None:
        network = build_network(cluster, gpu, switches)
        # What oversubscription costs the links say.
        cluster = dataclasses.replace(cluster, oversubscription=1.0)
    rendezvous = JobRendezvous(job, cluster, program, contents, switches is not None)
    issued: dict[int, Issued] = {}
    charged: dict[str, HostCost] = {}
    for place, (rank, trace) in enumerate(job.traces.items()):
        window = windowed[rank]
        lowered = lower_events(trace.events, window.start, window.stop)
        issue = RankIssue(rank, place, program, rendezvous, contents, cost)
        issued[rank] = issue.play(trace.events, lowered, window)
        charged[issue.cost.framework] = issue.cost
    rendezvous.price_collectives()
    if not contents.items:
        raise InputError("traces.steps", "the last", "runs nothing on the device")
    added = 0 if rules is None else add_rules(rules, job.traces, issued, program)
    pricer = Pricer(gpu, cluster, framework, rendezvous.communicators, factors, measured)
    priced = contents.price(pricer)
    tasks = program.freeze(priced)
    shared = None
    try:
        if switches is None:
            times = run(tasks)
        else:
            wires = _wires(rendezvous, priced)
            shared = run_shared(tasks, wires, network)
            times = shared.times
    except RuntimeError as error:
        problem = "; ".join(map(str, job.order_problems[:1])) or str(error)
        if added and not job.order_problems:
            problem = f"operations wait for each other: {error}"
            raise InputError(FIELD, "edges", problem) from error
        # Where only some ranks were traced, those that they stand for may do something else.
        others = None if job.world_size == len(job.traces) else "more ranks, as of run --rank auto"
        raise InputError("traces", "communication", f"never ends: {problem}", others) from error
    columns = np.array(program.role), np.array(program.part), np.array(program.content)
    played = Played(tasks, times, *columns)
    replay = Replay(job, gpu, cluster, issued, played, priced, contents, pricer.excess)
    return answer(
        replay,
        groups_of=rendezvous.groups_of,
        allocator=allocator
        or AllocatorSettings(expandable_segments=framework.expandable_segments),
        model_flops=model_flops,
        assumptions=(
            *_assumptions(job, gpu, framework, charged, rendezvous, added, stated),
            *_between_steps(issued.values(), next(iter(windowed.values()))),
            *_of_earlier_steps(job.traces, windowed),
            *(() if shared is None or switches is None else (_of_sharing(shared, switches),)),
        ),
        counted=next(iter(windowed.values())),
    )


def _wires(rendezvous: JobRendezvous, priced: Priced) -> list[Wire]:
    """All communication of a program, as what shares links."""
    found = []
    for task, ends in rendezvous.ends.items():
        content = rendezvous.program.content[task]
        if content != NO_CONTENT:
            op, price = rendezvous.contents.items[content], priced.prices[content]
            kind = op.kind if isinstance(op, Collective) else SEND_RECV
            found.append(Wire(task, kind, price.algorithm, price.latency_s, ends))
    return found


def _of_sharing(shared: SharedTimes, switches: SwitchFabric) -> str:
    """What sharing links came to, in words."""
    words = f"communication shares the links of {switches.name}: "
    words += f"{shared.flows:,} flows, what is traced {shared.times.end.max() * 1e3:,.2f} ms, "
    words += f"{shared.alone_s * 1e3:,.2f} ms where nothing is shared"
    if shared.moved > SETTLED:
        words += f"; after {shared.rounds} rounds ends still move by {shared.moved:.1%}"
    return words


def used_part(cluster: Cluster, world_size: int) -> Cluster:
    """The nodes of a cluster that a job of ``world_size`` fills.

    Raises:
        InputError: when there are too few GPUs.
    """
    if world_size > cluster.num_gpus:
        problem = f"is more than the {cluster.num_gpus} GPUs of {cluster.name}"
        raise InputError("traces.world_size", world_size, problem)
    if world_size < cluster.gpus_per_node:
        return dataclasses.replace(cluster, num_nodes=1, gpus_per_node=world_size)
    return dataclasses.replace(cluster, num_nodes=-(-world_size // cluster.gpus_per_node))


def _between_steps(issued: Iterable[Issued], window: Window) -> Iterator[str]:
    """How many updates count, or that a script did in the one what it does every so many steps."""
    if window.updates > 1:
        of = "their mean is stated" if window.steps > 1 else "together they are a step"
        yield f"every {window.updates} updates of parameters do the same again: {of}"
        return
    if window.by_turns:
        yield (
            "the last step updates other tensors than those before: where optimizers step by "
            "turns (a GAN's), it is one's part alone; trace more steps (run --steps 4)"
        )
    now, before = max((len(each.step), len(each.run_up)) for each in issued)
    if before and now > 1.5 * before:
        yield (
            f"the last step launches {now:,} kernels, the one before {before:,}: what a script "
            "does now and then (validation, generated text) counts in full; a step more may be "
            "without"
        )


_TWICE = (
    ", unless all of it is traced twice (run --steps); trainscout live prints the script's own "
    "times"
)


def _of_earlier_steps(
    traces: Mapping[int, Trace], windowed: Mapping[int, Window]
) -> Iterator[str]:
    """That steps before did in forward passes, or communicated, what those that count do not, or
    worked on much more or less.

    First steps too: text is sampled before the first of several updates. What they alone do, such
    as make an optimizer's state, is no forward pass, and may communicate.
    """
    for rank, trace in traces.items():
        window = windowed[rank]
        work = launched(trace, window.last)
        earlier, counted = work[: -window.updates], work[-window.updates :]
        most = max(range(len(earlier)), key=lambda step: earlier[step].forward, default=0)
        now = sum(step.forward for step in counted)
        if earlier and earlier[most].forward > 1.5 * now > 0:
            yield (
                f"forward passes of step {most} launch {earlier[most].forward:,} operations, "
                f"those of the last {now:,}: what comes before several updates (sampled text) or "
                f"every so many steps is no part of the step time{_TWICE}"
            )
            return
        most = max(range(len(earlier)), key=lambda step: earlier[step].communications, default=0)
        now = max(step.communications for step in counted)
        if most and earlier[most].communications > 1.5 * now:
            yield (
                f"step {most} launches {earlier[most].communications:,} communications, the last "
                f"{now:,}: what happens every so many steps (weights are averaged) is no part of "
                f"the step time{_TWICE}"
            )
            return
        for step, each in list(enumerate(earlier))[2:]:
            for name in unlike(each, counted[-1]):
                if all(each.others[name] > of.others[name] for of in counted):
                    yield (
                        f"step {step} runs {name} {each.others[name]:,} times, the last "
                        f"{counted[-1].others[name]:,}: what an optimizer or checkpoint does "
                        f"every so many steps is no part of the step time{_TWICE}"
                    )
                    return
        # Where they run other passes (evaluation, but for the first), length is not what differs.
        last, passes = counted[-1].written, counted[-1].forward
        sizes = {
            at: each.written for at, each in enumerate(earlier) if 1.5 * each.forward > passes
        }
        most = max(sizes, key=lambda step: abs(sizes[step] - last), default=-1)
        if window.updates == 1 and last and abs(sizes.get(most, last) - last) > 0.2 * last:
            yield (
                f"step {most} works on {sizes[most] / last:.3g} times as many elements as the "
                "last, which alone is timed: where steps differ in length (packed or padded text) "
                "trainscout live prints each one's time"
            )
            return


def _assumptions(
    job: Collated,
    gpu: Gpu,
    framework: Framework,
    charged: Mapping[str, HostCost],
    rendezvous: JobRendezvous,
    added: int,
    network: str | None,
) -> tuple[str, ...]:
    """What is taken for granted beyond prices, in words; ``network``: of that between nodes."""
    assumed = []
    traced_on = sorted({trace.header.gpu for trace in job.traces.values()} - {gpu.name})
    if traced_on:
        assumed.append(f"traced on {', '.join(traced_on)}: what the code asked of that GPU stays")
    assumed += [cost.words(framework.name) for cost in charged.values()]
    events = [event for trace in job.traces.values() for event in trace.events]
    if any(isinstance(each, HostWork) for each in events):
        memory_s = next(iter(charged.values())).memory_s
        assumed.append(
            f"host: its CPU reads and writes its memory at {1e-9 / memory_s:.3g} GB/s a GPU, "
            "ranks being bound to cores of their own"
        )
    if not any(isinstance(each, Phase) and each.phase == OPTIMIZER for each in events):
        assumed.append("all that was traced is one step: no optimizer took any")
    if len(job.traces) < job.world_size:
        few = f"{len(job.traces)} of {job.world_size:,} ranks"
        assumed.append(f"traced: {few}; the others do as those they are like")
    if len(job.traces) == 1 and (peers := untraced_peers(list(job.traces.values()))):
        (rank,) = job.traces
        assumed.append(
            f"rank {rank} sends to or receives from {ranks_text(peers)}, which are taken to do as "
            f"it does: where these are stages of a pipeline, trace them too (run --rank auto)"
        )
    if rendezvous.unmatched_transfers:
        count = rendezvous.unmatched_transfers
        assumed.append(f"{count} sends or receives have no other side and wait for nobody")
    if count := rendezvous.unnamed_groups:
        shown = "shown as dp communication whatever they are for"
        assumed.append(f"groups: {count} without a name, {shown}")
    if added:
        assumed.append(f"{added:,} dependencies by rules of your own")
    if network is not None:
        assumed.append(network)
    return tuple(assumed)
