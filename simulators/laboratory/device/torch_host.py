"""Seconds of the host: what launching costs before a device has anything to do."""

from __future__ import annotations

import statistics
from typing import Any

from trainscout.simulators.laboratory.device.timing import SAMPLES, HostClock

LAUNCHES = 1000


def host_seconds(torch: Any, device: str) -> dict[str, float]:
    """``launch_s``: of one small operation, called from Python, with gradients recorded;
    ``module_s``: of one linear module. The kernels are shorter than their launches, so that the
    host is what takes the time."""
    x = torch.ones(16, 16, device=device, requires_grad=True)
    module = torch.nn.Linear(16, 16, device=device)
    clock = HostClock()
    found = {}
    for name, call in (("launch_s", lambda: x + x), ("module_s", lambda: module(x))):
        clock.seconds(call, LAUNCHES)
        samples = [clock.seconds(call, LAUNCHES) / LAUNCHES for _ in range(SAMPLES)]
        found[name] = statistics.median(samples)
        if device != "cpu":
            torch.cuda.synchronize()
    return found
