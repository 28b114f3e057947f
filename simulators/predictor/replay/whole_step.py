"""What it costs a step that all of its communication shares one network.

Predictions price every communication as slowed by its own dimension alone (``congestion``). Here
the step is played once over: gradients, pipeline transfers and experts' exchanges of all ranks on
one engine, each beginning when what it waits for has ended (``step_activities``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.network.choice import CongestedNetwork
from trainscout.simulators.predictor.network.together.activities import WORK, alone
from trainscout.simulators.predictor.network.together.play import PlayedTogether, play_together
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.calibration import Calibration, factors_of
from trainscout.simulators.predictor.workload.program import Workload
from trainscout.simulators.predictor.workload.schedules.schedule import warmup_passes

from .assemble import Assembler
from .congestion import Congestion
from .engine import Floats, run
from .prices import Pricer
from .steady import Step, replay_step
from .step_activities import StepActivities, step_activities

# Laying out the tasks of more ranks would take minutes by itself.
MOST_TASKS = 500_000


@dataclass(frozen=True)
class Slowdown:
    """One communicator's ``messages`` in the part of the step that was played: how long they take
    in sum ``alone_s`` and ``together_s``, from begin to end."""

    communicator: str
    messages: int
    alone_s: float
    together_s: float


@dataclass(frozen=True, eq=False)
class WholeStep:
    """A step's seconds if nothing shares links (``alone_s``), if only what one dimension sends
    does (``apart_s``), and if all of it does (``together_s``); ``priced_s`` is what predictions go
    by, the factor of every dimension's slowest group for all of it.

    ``played_micro_batches`` of ``micro_batches`` were played, the rest goes on as those in the
    middle did. ``reached``: the share of that which the budget let be played; where it is below 1,
    ``together_s`` counts what was late by then and is a lower bound. ``busy``, shape (links,): the
    share of the played time that each link's bytes take at its rate.
    """

    alone_s: float
    priced_s: float
    apart_s: float
    together_s: float
    micro_batches: int
    played_micro_batches: int
    reached: float
    slowdowns: tuple[Slowdown, ...]
    flows: int
    network: Network
    busy: Floats
    cpu_s: float

    @property
    def cost(self) -> float:
        """Share by which sharing links makes the step longer."""
        return self.together_s / self.apart_s - 1


def whole_step(
    job: Job, workload: Workload, of: CongestedNetwork, calibration: Calibration | None = None
) -> WholeStep | None:
    """Play a valid job's step over a network that all of its communication shares.

    None: it has more tasks over all replicas than ``MOST_TASKS``, and was not.

    Raises:
        InputError: when failed links or missing tiers leave GPUs without a path.
    """
    found = unhurried_step(job, workload, of, calibration)
    if found is None:
        return None
    unhurried, made, congestion = found
    scale = 1.0 if calibration is None else calibration.scale_of(job)
    count = unhurried.simulated_micro_batches
    budget_s = math.inf if of.choice.budget_s is None else of.choice.budget_s
    network = congestion.model.network
    settings = of.choice
    played = play_together(made.activities, network, settings, budget_s / 2)
    left_s = budget_s - played.cpu_s
    apart = play_together(made.activities, network, settings, left_s, apart=True)
    # Both are asked how late they are by the same time.
    ended = np.isfinite(played.end_s) & np.isfinite(apart.end_s)
    start_s, end_s = alone(made.activities)
    priced = replay_step(job, _assembler(job, workload, Congestion(job, of), calibration).assemble)
    late_s, apart_late_s = (
        _late_s(job, made, each, ended, end_s, unhurried) for each in (played, apart)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        busy = played.link_bytes / network.rate_bytes_per_s / played.now_s
    return WholeStep(
        alone_s=unhurried.step_time_s * scale,
        priced_s=priced.step_time_s * scale,
        apart_s=(unhurried.step_time_s + apart_late_s) * scale,
        together_s=(unhurried.step_time_s + late_s) * scale,
        micro_batches=unhurried.micro_batches,
        played_micro_batches=count,
        reached=1.0 if ended.all() else float(end_s[ended].max(initial=0.0) / end_s.max()),
        slowdowns=_slowdowns(made, played, end_s - start_s),
        flows=played.flows,
        network=network,
        busy=np.where(played.link_bytes > 0, busy, 0.0),
        cpu_s=played.cpu_s,
    )


def unhurried_step(
    job: Job, workload: Workload, of: CongestedNetwork, calibration: Calibration | None = None
) -> tuple[Step, StepActivities, Congestion] | None:
    """A valid job's step with nothing shared, as replayed and as activities to be played; None:
    these would be too many."""
    congestion = Congestion(job, of, alone=True)
    assembler = _assembler(job, workload, congestion, calibration)
    step = replay_step(job, assembler.assemble)
    program = assembler.assemble(step.simulated_micro_batches)
    if len(program.tasks.work) * job.dp > MOST_TASKS:
        return None
    return step, step_activities(assembler, program, run(program.tasks), congestion), congestion


def _assembler(
    job: Job, workload: Workload, congestion: Congestion, calibration: Calibration | None
) -> Assembler:
    factors = factors_of(calibration)
    pricer = Pricer.of(job, workload.communicators, factors, network=congestion)
    return Assembler(job, workload, pricer)


def _late_s(
    job: Job,
    made: StepActivities,
    played: PlayedTogether,
    ended: NDArray[np.bool_],
    end_s: Floats,
    unhurried: Step,
) -> float:
    """How much later the whole step ends: what was played, and as much for every micro-batch left
    out as those in the middle were later than alone."""
    if not ended.all():
        # Known so far: what the last activities that ended were late by.
        latest = int(np.argmax(np.where(ended, end_s, -1.0)))
        return float(max(played.end_s[latest] - end_s[latest], 0.0))
    late_s = float(played.end_s.max() - end_s.max())
    left_out = unhurried.micro_batches - unhurried.simulated_micro_batches
    if not left_out:
        return late_s
    recipe, count = job.recipe, unhurried.simulated_micro_batches
    passes = made.pass_ends.shape[-1]
    warmup = max(1, warmup_passes(job.schedule, 0, recipe.pp, recipe.vpp, count))
    # An equal number of periods between both ends.
    period = passes // count * (recipe.pp if recipe.vpp > 1 else 1)
    span = (passes - 2 * warmup) // period * period
    stop = passes - warmup - 1
    first, last = made.pass_ends[:, :, stop - span], made.pass_ends[:, :, stop]
    behind_s = played.end_s - end_s
    later_s = float((behind_s[last] - behind_s[first]).mean())
    per_micro_batch_s: float = later_s / (span / passes * count)
    return late_s + per_micro_batch_s * left_out


def _slowdowns(
    made: StepActivities, played: PlayedTogether, alone_s: Floats
) -> tuple[Slowdown, ...]:
    names = np.array(made.communicator)
    ended = np.isfinite(played.end_s) & (made.activities.message != WORK)
    found = []
    for name in dict.fromkeys(names[made.activities.message != WORK].tolist()):
        own = ended & (names == name)
        took_s = float((played.end_s[own] - played.start_s[own]).sum())
        found.append(Slowdown(name, int(own.sum()), float(alone_s[own].sum()), took_s))
    return tuple(found)
