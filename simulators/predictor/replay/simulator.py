"""The default simulator: built-in workload, priced blocks, replayed timeline."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.collectives.price import open_connections
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES
from trainscout.simulators.predictor.memory import footprint
from trainscout.simulators.predictor.memory.bands import FITS
from trainscout.simulators.predictor.network.choice import CongestedNetwork
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.calibration import Calibration, factors_of
from trainscout.simulators.predictor.uncertainty.fabric import on_slow_network, share_between
from trainscout.simulators.predictor.uncertainty.factors import SHARES
from trainscout.simulators.predictor.uncertainty.interval import LEVEL, error_bar
from trainscout.simulators.predictor.workload.communicators import paired
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.program import Workload

from .assemble import Assembler, Program
from .assumptions import assumptions_of
from .network_doubt import network_doubt, slow_network_doubt
from .priced import BUBBLE, COMPUTE, EVIDENCE, HOST, OPTIMIZER, PART_INDEX, PARTS, STRAGGLERS
from .prices import Pricer
from .steady import Step, replay_step

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable

    from .rules import Rules

# The part that waits for the training's data loader.
WAITING = "waiting_for_data"
# A part smaller than this fraction of the step is rounding left over from subtractions.
ROUNDING = 1e-12


class ReplaySimulator:
    """Block-level replay of the Megatron-style workload, as calibrated or as it comes."""

    name = "replay"

    def __init__(
        self,
        calibration: Calibration | None = None,
        measured: MeasuredTable | None = None,
        network: CongestedNetwork | None = None,
    ) -> None:
        self._calibration = calibration
        self._measured = measured
        self._network = network
        self._rules: Rules | None = None

    def obeying(self, rules: Rules) -> Self:
        """The same simulator, with dependencies of the user's own in every step."""
        simulator = copy(self)
        simulator._rules = rules
        return simulator

    def simulate(self, job: Job) -> Prediction:
        """Predict one step of a valid job (see ``Simulator.simulate``).

        Raises:
            InputError: for a job on another GPU than the calibration's.
        """
        if self._calibration is None or not self._calibration.runs:
            prediction = self.without_error_bar(job)
            slow = on_slow_network(job)
            slow_s = 0.0 if slow is None else self._ready_s(slow)
            seconds, parts = _unwaiting(prediction)
            bar_s = _fed(job, error_bar(job, seconds, parts, slow_s))
            stated = (*prediction.assumptions, *slow_network_doubt(prediction.step_time_s, slow_s))
            return replace(prediction, interval_s=bar_s, assumptions=stated)
        prediction, shares = self.with_shares(job)
        seconds, parts = _unwaiting(prediction)
        low, high = self._calibration.interval(job, shares, LEVEL)
        bar_s = error_bar(job, seconds, parts)
        # Own runs make nothing less sure than it is without them.
        most = math.sqrt(bar_s[1] / bar_s[0])
        if high / low > most**2:
            low, high = 1 / most, most
        return replace(prediction, interval_s=_fed(job, (seconds * low, seconds * high)))

    def workload(self, job: Job) -> Workload:
        """What is replayed: from the built-in source unless a subclass has another."""
        return build_workload(job)

    def without_error_bar(self, job: Job) -> Prediction:
        """As ``simulate``, but needs no residuals: what they are made with."""
        workload, pricer, step = self._played(job)
        prediction = _predict(job, workload, pricer, step, self._scale(job), self._network)
        stated = network_doubt(
            job,
            prediction,
            switches=self._network is not None,
            calibrated=self._calibration is not None,
        )
        if self._calibration is not None:
            stated += (self._calibration.words,)
        if self._network is not None:
            stated += (self._network.words,)
        if self._rules is not None:
            stated += ("dependencies by rules of your own",)
        if self._measured is not None:
            from trainscout.simulators.predictor.kernels.measured import doubts

            stated += doubts(job.gpu, self._measured)
        if not stated:
            return prediction
        return replace(prediction, assumptions=(*prediction.assumptions, *stated))

    def step_time_s(self, job: Job) -> float:
        """Seconds of a step as ``simulate`` predicts them, and nothing else."""
        return max(self._ready_s(job), job.loading_s)

    def _ready_s(self, job: Job) -> float:
        """Seconds of a step whose data is there at once."""
        return self._played(job)[2].step_time_s * self._scale(job)

    def _played(self, job: Job) -> tuple[Workload, Pricer, Step]:
        if self._calibration is not None:
            self._calibration.check_gpu(job.gpu)
        workload = self.workload(job)
        pricer = self._pricer(job, workload)
        return workload, pricer, self._replay(job, Assembler(job, workload, pricer))

    def _scale(self, job: Job) -> float:
        return 1.0 if self._calibration is None else self._calibration.scale_of(job)

    def _replay(self, job: Job, assembler: Assembler) -> Step:
        if self._rules is None:
            return replay_step(job, assembler.assemble)
        from .rules import FIELD, ruled

        def assemble(micro_batches: int) -> Program:
            assert self._rules is not None
            return ruled(assembler.assemble(micro_batches), assembler, self._rules)

        try:
            # What is awaited may lie any number of micro-batches behind.
            return replay_step(job, assemble, full=True)
        except RuntimeError as error:
            problem = f"operations wait for each other: {error}"
            raise InputError(FIELD, "edges", problem) from error

    def with_shares(self, job: Job) -> tuple[Prediction, tuple[float, ...]]:
        """As ``without_error_bar``, and which share of the step (but for its bubble) each of
        ``factors.SHARES`` has."""
        prediction, workload = self.without_error_bar(job), self.workload(job)
        streaming = _streaming_share(workload, self._pricer(job, workload))
        return prediction, _shares(job, prediction, streaming)

    def _pricer(self, job: Job, workload: Workload) -> Pricer:
        factors = factors_of(self._calibration)
        return Pricer.of(job, workload.communicators, factors, self._measured, self._network)


def _predict(
    job: Job,
    workload: Workload,
    pricer: Pricer,
    step: Step,
    scale: float,
    network: CongestedNetwork | None,
) -> Prediction:
    groups = workload.communicators.values()
    connections = open_connections(groups, paired(job), job.gpu, job.network)
    memory = footprint(job, workload, connections)
    ready_s = step.step_time_s * scale
    seconds = max(ready_s, job.loading_s)
    parts = _stage_parts(step) * scale
    critical = int(parts[:, PART_INDEX[BUBBLE]].argmin())
    breakdown = {
        name: float(part)
        for name, part in zip(PARTS, parts[critical], strict=True)
        if part > ROUNDING * seconds
    }
    if seconds > ready_s:
        breakdown[WAITING] = seconds - ready_s
    flops = step_flops(job)
    peak = job.gpu.peak(job.precision) * job.world_size * seconds
    tokens_per_s = job.tokens_per_step / seconds
    cost = seconds * job.world_size * job.gpu.price_usd_per_hour / 3600
    shares, estimated = _evidence(job, workload, pricer, step)
    return Prediction(
        step_time_s=seconds,
        mfu=flops.model / peak,
        mfu_causal=flops.causal / peak,
        hfu=flops.hardware / peak,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / job.world_size,
        cost_per_step_usd=cost,
        cost_per_billion_tokens_usd=cost / job.tokens_per_step * 1e9,
        cost_of_run_usd=cost / job.tokens_per_step * job.training.tokens,
        fits=memory.band == FITS,
        memory=memory,
        breakdown_s=breakdown,
        critical_stage=critical,
        evidence_share=shares,
        estimated_operations=estimated,
        assumptions=assumptions_of(job, breakdown.get(HOST, 0.0) / seconds, network),
    )


def _unwaiting(prediction: Prediction) -> tuple[float, dict[str, float]]:
    """A step's seconds and parts, were data there at once."""
    parts = dict(prediction.breakdown_s)
    return prediction.step_time_s - parts.pop(WAITING, 0.0), parts


def _fed(job: Job, interval_s: tuple[float, float]) -> tuple[float, float]:
    """An interval of steps that wait for their data, which takes what it is declared to."""
    return max(interval_s[0], job.loading_s), max(interval_s[1], job.loading_s)


def _stage_parts(step: Step) -> np.ndarray:
    """Seconds by part of each stage's compute stream, shape (stages, parts); those of a stage sum
    to the step time."""
    program = step.program
    parts: np.ndarray = np.array(program.pass_part_s) * step.micro_batches
    return parts + np.array(program.end_part_s) + step.idle_part_s


def _streaming_share(workload: Workload, pricer: Pricer) -> float:
    """Share of the kernels' seconds of all stages that only stream memory."""
    kernel_s = np.zeros(len(KERNEL_CLASSES))
    for stage in workload.stages:
        for run in stage.runs:
            for block in (run.forward, run.backward):
                kernel_s += pricer.block(block).kernel_s[0] * run.count
    total = float(kernel_s.sum())
    streaming = sum(kernel_s[KERNEL_CLASSES.index(name)] for name in ("norm", "streaming"))
    return float(streaming) / total if total else 0.0


def _shares(job: Job, prediction: Prediction, streaming: float) -> tuple[float, ...]:
    """``ReplaySimulator.with_shares``, with ``streaming`` of its kernels' time."""
    parts, seconds = prediction.breakdown_s, prediction.step_time_s
    busy = 1 - parts.get(BUBBLE, 0.0) / seconds
    communication_s = sum(s for part, s in parts.items() if part.endswith("_communication"))
    between = share_between(job, seconds, parts)
    shares = {
        "memory_time": (parts.get(COMPUTE, 0.0) * streaming + parts.get(OPTIMIZER, 0.0)) / seconds,
        "node_time": communication_s / seconds - between,
        "network_time": between,
        "host_time": parts.get(HOST, 0.0) / seconds,
        "straggler_time": parts.get(STRAGGLERS, 0.0) / seconds,
    }
    return tuple(min(1.0, max(0.0, shares[name] / busy)) for name in SHARES)


def _evidence(
    job: Job, workload: Workload, pricer: Pricer, step: Step
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Share of all stages' priced seconds by evidence, and what was only estimated."""
    estimated: set[str] = set()
    evidence_s: list[np.ndarray] = []
    counts: list[int] = []
    places: dict[int, range] = {}
    for stage in workload.stages:
        if id(stage) not in places:
            for run in stage.runs:
                for priced in (pricer.block(run.forward), pricer.block(run.backward)):
                    estimated |= priced.estimated
                    evidence_s.append(priced.evidence_s)
                    counts.append(run.count * job.num_micro_batches)
            places[id(stage)] = range(len(counts) - 2 * len(stage.runs), len(counts))
    passes_s = np.array(evidence_s).reshape(-1, len(EVIDENCE)) * np.array(counts)[:, None]
    program = step.program
    estimated.update(*(table.estimated for table in program.tables))
    slots = program.structure.slot[program.structure.others]
    other_s = np.concatenate([table.slot_evidence_s for table in program.tables])[slots]
    # What ZeRO 2 and 3 exchange for every micro-batch, replayed or not; the rest happens once.
    repeats = np.concatenate([table.slot_repeats for table in program.tables])[slots]
    times = np.where(repeats, step.micro_batches / step.simulated_micro_batches, 1.0)
    order = [place for stage in workload.stages for place in places[id(stage)]]
    totals = np.concatenate((passes_s[order], other_s * times[:, None])).sum(axis=0)
    total = float(totals.sum()) or 1.0
    shares = {str(grade): float(t) / total for grade, t in zip(EVIDENCE, totals, strict=True)}
    return shares, tuple(sorted(estimated))
