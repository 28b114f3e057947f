"""From step time to calendar time: failures, checkpoints and restarts.

Failures come at random at a constant rate (exponentially distributed gaps of mean M). A run writes
a checkpoint of delta seconds after every tau seconds of work; a failure costs the work since the
last one and R seconds until the run goes on, during which it can fail again. Then the expected
time for tau seconds of work is M exp(R/M) (exp((tau + delta)/M) - 1), which is exact (Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22, 2006). Its minimum per second of work is at
tau = M (1 + W(-exp(-1 - delta/M))), W being Lambert's function; for small delta/M that is Young's
sqrt(2 delta M) (Communications of the ACM 17, 1974).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError, require_positive


@dataclass(frozen=True)
class Reliability:
    """How often a run is interrupted, and what an interruption costs."""

    gpu_mtbf_hours: float | None = None
    """Mean time between failures of one GPU, with its share of all else."""
    node_mtbf_hours: float | None = None
    """Of one node, instead; with neither nothing fails."""
    checkpoint_write_s: float = 0.0
    """How long training stands still for a checkpoint."""
    detection_s: float = 0.0
    """Between a failure and its detection."""
    restart_s: float = 0.0
    """Between its detection and the first step after it; failed nodes are replaced."""
    checkpoint_interval_s: float | None = None
    """Between checkpoints, in seconds of work (None: the optimal one)."""
    source: str = ""
    """Where the figures come from."""

    def check(self) -> None:
        """Refuse impossible figures."""
        for name in ("gpu_mtbf_hours", "node_mtbf_hours", "checkpoint_interval_s"):
            if getattr(self, name) is not None:
                require_positive(f"goodput.{name}", getattr(self, name))
        for name in ("checkpoint_write_s", "detection_s", "restart_s"):
            require_positive(f"goodput.{name}", getattr(self, name), allow_zero=True)
        if self.gpu_mtbf_hours is not None and self.node_mtbf_hours is not None:
            problem = "is given beside goodput.gpu_mtbf_hours"
            raise InputError(
                "goodput.node_mtbf_hours", self.node_mtbf_hours, problem, "one of both"
            )
        if self.fails and self.checkpoint_write_s == 0:
            problem = "would make checkpoints free, and their best interval none"
            raise InputError("goodput.checkpoint_write_s", 0.0, problem, "a finite number > 0")

    @property
    def fails(self) -> bool:
        return self.gpu_mtbf_hours is not None or self.node_mtbf_hours is not None

    def mtbf_s(self, num_gpus: int, num_nodes: int) -> float:
        """Seconds between failures of a whole cluster, whose parts fail independently."""
        if self.gpu_mtbf_hours is not None:
            return self.gpu_mtbf_hours * 3600 / num_gpus
        if self.node_mtbf_hours is not None:
            return self.node_mtbf_hours * 3600 / num_nodes
        return math.inf


@dataclass(frozen=True)
class Goodput:
    """``share`` of calendar time that is training which lasts.

    ``mtbf_s`` and ``checkpoint_interval_s`` are None where nothing fails, or no checkpoint is
    written.
    """

    share: float
    mtbf_s: float | None = None
    checkpoint_interval_s: float | None = None


def goodput(reliability: Reliability, num_gpus: int, num_nodes: int) -> Goodput:
    """The goodput of a cluster.

    Raises:
        InputError: for a cluster that fails before it has restarted and written a checkpoint,
            more often than not.
    """
    mtbf_s = reliability.mtbf_s(num_gpus, num_nodes)
    write_s, interval_s = reliability.checkpoint_write_s, reliability.checkpoint_interval_s
    if math.isinf(mtbf_s):
        if interval_s is None:
            return Goodput(1.0)
        return Goodput(interval_s / (interval_s + write_s), None, interval_s)
    lost_s = reliability.detection_s + reliability.restart_s
    if interval_s is None:
        interval_s = best_interval_s(write_s, mtbf_s)
    if lost_s + interval_s + write_s > _MOST_MTBFS * mtbf_s:
        field = "gpu_mtbf_hours" if reliability.gpu_mtbf_hours is not None else "node_mtbf_hours"
        problem = (
            f"lets {num_gpus} GPUs fail every {mtbf_s:,.0f} s, too often for "
            f"{lost_s + write_s:,.0f} s of restarting and writing a checkpoint"
        )
        raise InputError(f"goodput.{field}", getattr(reliability, field), problem, "more hours")
    share = 1 / expected_stretch(interval_s, write_s, lost_s, mtbf_s)
    return Goodput(share, mtbf_s, interval_s)


# Beyond, a run makes next to no progress: exp(-5) of its attempts get to a checkpoint.
_MOST_MTBFS = 5.0


def expected_stretch(interval_s: float, write_s: float, lost_s: float, mtbf_s: float) -> float:
    """Expected seconds of calendar time for one second of work (module docstring)."""
    segment = math.expm1((interval_s + write_s) / mtbf_s)
    return mtbf_s * math.exp(lost_s / mtbf_s) * segment / interval_s


def best_interval_s(write_s: float, mtbf_s: float) -> float:
    """Seconds of work between checkpoints that make ``expected_stretch`` smallest."""
    from scipy.special import lambertw

    ratio = write_s / mtbf_s
    if ratio < _NEXT_TO_FREE:
        # Lambert's function near its branch point, where its argument's digits say nothing.
        root = math.sqrt(-2 * math.expm1(-ratio))
        return mtbf_s * root * (1 - root / 3)
    return mtbf_s * (1 + float(lambertw(-math.exp(-1 - ratio)).real))


_NEXT_TO_FREE = 1e-8
