"""Many kernels in, many prices out: operations grouped by class, one formula each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Kernel

from .batch_prices import CODE, KernelPrices, price_batch
from .batches import Batch, batches_of

if TYPE_CHECKING:
    from .measured import MeasuredTable


def price_kernels(
    gpu: Gpu, ops: Sequence[Kernel], measured: MeasuredTable | None = None
) -> KernelPrices:
    """Price every kernel on one GPU that runs nothing else, at its power limit.

    ``measured`` (``measured.load_measured``) takes precedence over the formulas.

    Raises:
        InputError: for a precision the GPU does not have, an unknown layout, pass or
            streaming class, or something that is not a kernel.
    """
    seconds = np.zeros(len(ops))
    memory_bound = np.zeros(len(ops))
    evidence = np.zeros(len(ops), dtype=np.int8)
    for positions, batch in batches_of(ops):
        prices = price_batch(gpu, batch)
        if measured is not None:
            prices = _corrected(prices, gpu, batch, measured)
        seconds[positions] = prices.seconds
        memory_bound[positions] = prices.memory_bound
        evidence[positions] = prices.evidence
    return KernelPrices(seconds, evidence, memory_bound)


def _corrected(
    prices: KernelPrices, gpu: Gpu, batch: Batch, measured: MeasuredTable
) -> KernelPrices:
    factors, hit = measured.correct(gpu, batch)
    return KernelPrices(
        prices.seconds * factors,
        np.where(hit, np.int8(CODE[Evidence.MEASURED]), prices.evidence),
        np.minimum(prices.memory_bound / factors, 1.0),
    )
