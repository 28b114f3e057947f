"""How far a collective's price may be off, from what the fit leaves unexplained."""

from __future__ import annotations

import math

from trainscout.simulators.predictor.collectives.graph import Wiring, wiring_of
from trainscout.simulators.predictor.collectives.size_bands import BAND_NAMES, size_band
from trainscout.simulators.predictor.collectives.transport import FABRICS, left_out_error
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Communicator

# Each architecture's rings and all-to-alls by the others' median: 4 to 10 % off at 256 MiB, 6 to
# 48 % at 1 to 16 MiB, 18 % in the middle.
OF_THE_MEDIAN = 0.18


def collective_uncertainty(
    size_bytes: int, communicator: Communicator, gpu: Gpu, cluster: Cluster
) -> float:
    """Typical relative error of the price of a call of ``size_bytes``.

    The median error on clusters left out of the fit, averaged over them, for the transport that
    limits the call and the size's band. A band without measurements takes the nearest one's,
    a fabric without any the worst of the others'. Links without fits add what pricing one
    architecture's by the median of the others costs.
    """
    wiring = wiring_of(communicator, gpu, cluster)
    error = _of_transport(size_bytes, wiring)
    return math.hypot(error, OF_THE_MEDIAN) if wiring.unfitted else error


def _of_transport(size_bytes: int, wiring: Wiring) -> float:
    if not wiring.multi_node:
        return _error("nvlink" if wiring.link == "nvlink" else "pcie", size_bytes)
    if left_out_error(wiring.fabric):
        return _error(wiring.fabric, size_bytes)
    return max(_error(fabric, size_bytes) for fabric in FABRICS if left_out_error(fabric))


def _error(transport: str, size_bytes: int) -> float:
    errors, wanted = left_out_error(transport), BAND_NAMES.index(size_band(size_bytes))
    nearest = min(errors, key=lambda band: abs(BAND_NAMES.index(band) - wanted))
    return errors[nearest]
