"""What a comparison shows: lines of measured and predicted seconds, in words."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.kernels.observed import ObservedClass
from trainscout.simulators.predictor.replay.priced import HOST
from trainscout.simulators.virtual_cluster.profiles.comparison import Comparison
from trainscout.simulators.virtual_cluster.profiles.rows import MEMORY_BOUND, group_of
from trainscout.simulators.virtual_cluster.traces.kernel_classes import COMMUNICATION

NAMES = {"gemm": "matrix products", "point_to_point": "send and receive", "other": "other kernels"}
EXPOSED, GAPS, STEP = "exposed communication", "host gaps", "step"


@dataclass(frozen=True)
class Line:
    """Seconds a step under one name: measured and predicted (None: not comparable); ``alone``: of
    the same shapes, priced over measured, less 1 (None: no shape is known)."""

    name: str
    measured_s: float
    predicted_s: float | None
    alone: float | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        if self.predicted_s is None or not self.measured_s:
            return None
        return self.predicted_s / self.measured_s - 1


def class_lines(found: Comparison, observed: dict[str, ObservedClass]) -> list[Line]:
    """By class, then what overlapped and waited, then the step."""
    lines = [
        Line(
            NAMES.get(row.kernel_class, row.kernel_class),
            row.measured_s,
            row.predicted_s,
            _alone(row.kernel_class, observed),
        )
        for row in found.classes
    ]
    whole, parts = found.whole, found.prediction.breakdown_s
    exposed_s = sum(seconds for name, seconds in parts.items() if name.endswith("_communication"))
    occupied = found.profile.occupancy
    if occupied.communicating_s or exposed_s:
        lines.append(Line(EXPOSED, occupied.exposed_s, exposed_s if whole else None))
    lines.append(Line(GAPS, occupied.host_gap_s, parts.get(HOST, 0.0) if whole else None))
    step_s = found.prediction.step_time_s if whole else None
    return [*lines, Line(STEP, found.profile.step_s, step_s)]


def _alone(kernel_class: str, observed: dict[str, ObservedClass]) -> float | None:
    own = [each for name, each in observed.items() if group_of(name) == kernel_class]
    measured_s = sum(each.measured_s for each in own)
    return sum(each.priced_s for each in own) / measured_s - 1 if measured_s else None


def introduction(found: Comparison) -> list[str]:
    """What was profiled, how much of it was matched, what is left out."""
    profile = found.profile
    rank = "" if profile.rank is None else f", rank {profile.rank} of {profile.world_size}"
    steps = "1 step" if profile.steps == 1 else f"{profile.steps} steps"
    turn = f"{found.by_turn:.1%} in turn (no shapes recorded), " if found.by_turn else ""
    lines = [
        f"{profile.path.name}: {profile.gpu or 'unnamed GPU'}{rank}, stage {found.stage}, {steps} "
        f"({profile.found})",
        f"Matched with the prediction: {found.by_shape:.1%} of the device time by shape, {turn}"
        f"{found.by_place:.1%} by its place in a block",
    ]
    if profile.earlier:
        lines.append(f"Left out: {profile.earlier:,} kernels that belong to no whole step")
    missing = [
        *(f"all {name} passes" for name in ("forward", "backward") if name not in found.passes),
        *(() if "end" in found.passes else ("the optimizer",)),
        *found.absent,
    ]
    if missing:
        lines.append(f"Predicted, not in the profile, left out: {', '.join(missing)}")
    talks = any(row.kernel_class in COMMUNICATION for row in found.classes)
    if talks and not found.whole:
        lines.append("Exposed communication and the step compare only when all of it was profiled")
    return lines


def sentence(found: Comparison, observed: dict[str, ObservedClass]) -> str:
    """Where most of the difference is."""
    lines = [line for line in class_lines(found, observed) if line.predicted_s is not None]
    classes = [line for line in lines if line.name not in (EXPOSED, GAPS, STEP)]
    worst = max(classes, key=lambda line: abs((line.predicted_s or 0.0) - line.measured_s))
    apart_s = (worst.predicted_s or 0.0) - worst.measured_s
    more = "more" if apart_s > 0 else "less"
    text = f"{worst.name}: {abs(apart_s) * 1e3:.3g} ms {more} predicted than measured"
    if worst.name == MEMORY_BOUND and worst.alone is not None:
        text += f", the same shapes are priced {worst.alone:+.0%}"
    return f"Largest difference: {text}"
