"""What each figure of a prediction rests on, in one word and in a sentence.

Times are graded by where the prices of kernels and communication come from, memory by what the
allocator's figures are known to be worth, money by time and price together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.wording import format_percent, format_usd
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job


class Grade(StrEnum):
    """How well a figure is founded, best first; ``docs/concepts.md`` says what the words mean."""

    GIVEN = "given"
    MEASURED = "measured"
    FITTED = "fitted"
    ESTIMATED = "estimated"
    ASSUMED = "assumed"


# A kind of evidence that prices less than this share of the time does not decide its grade.
NOTABLE_SHARE = 0.05


@dataclass(frozen=True)
class Graded:
    """A figure's grade, and in a sentence what it comes from."""

    grade: Grade
    reason: str


@dataclass(frozen=True)
class Evidence:
    """The grades of one prediction's figures.

    ``time`` also founds MFU, HFU and tokens/s, which are FLOPs and tokens over it. ``allocated``
    is what tensors take, ``memory`` what the device must hold, reserve and context included.
    ``cost`` is no better founded than time and price.
    """

    time: Graded
    allocated: Graded
    memory: Graded
    price: Graded
    cost: Graded

    def of_figures(self) -> dict[str, str]:
        """The grade of each figure under its name in JSON."""
        grades = dict.fromkeys(_TIMES, self.time) | dict.fromkeys(_COSTS, self.cost)
        grades |= {"peak_allocated_bytes": self.allocated}
        grades |= dict.fromkeys(("peak_reserved_bytes", "headroom_bytes"), self.memory)
        return {name: graded.grade.value for name, graded in grades.items()}


_TIMES = (*("step_time_s", "mfu", "mfu_causal", "hfu"), *("tokens_per_s", "tokens_per_s_per_gpu"))
_COSTS = ("cost_per_step_usd", "cost_per_billion_tokens_usd", "cost_of_run_usd")


def evidence_of(prediction: Prediction, job: Job) -> Evidence:
    """What the figures of ``prediction``, the answer to ``job``, rest on."""
    time, price = _time(prediction), _price(job.gpu)
    worse = max(time, price, key=lambda graded: list(Grade).index(graded.grade))
    return Evidence(time=time, allocated=_ALLOCATED, memory=_MEMORY, price=price, cost=worse)


_ALLOCATED = Graded(
    Grade.FITTED,
    "tensors are counted shape by shape along the schedule, and held to published runs",
)
_MEMORY = Graded(
    Grade.ESTIMATED,
    "tensors are counted shape by shape, what the allocator reserves beyond them, the context "
    "and the buffers of communication are not",
)


def _time(prediction: Prediction) -> Graded:
    """The weakest kind of evidence that prices a notable share of the time."""
    shares = prediction.evidence_share
    notable = [grade for grade in Grade if shares.get(grade.value, 0.0) >= NOTABLE_SHARE]
    words = ", ".join(
        f"{format_percent(share)} {kind}" for kind, share in shares.items() if share > 0
    )
    # Without a priced kernel or message there is no evidence at all.
    grade = notable[-1] if notable else Grade.ESTIMATED
    return Graded(grade, f"kernels and communication are priced {words or 'by nothing known'}")


def _price(gpu: Gpu) -> Graded:
    hourly = f"{format_usd(gpu.price_usd_per_hour)} per GPU-hour"
    if price_is_assumed(gpu):
        return Graded(Grade.ASSUMED, f"{hourly} is no quote (gpu.price_usd_per_hour= gives yours)")
    return Graded(Grade.GIVEN, f"{hourly} is what was given")


def price_is_assumed(gpu: Gpu) -> bool:
    """Whether the price is the one that this GPU's declaration admits to assume."""
    if "assum" not in gpu.sources.get("price_usd_per_hour", ""):
        return False
    shipped = load_catalogue().gpus.get(gpu.name, gpu)
    return shipped.price_usd_per_hour == gpu.price_usd_per_hour
