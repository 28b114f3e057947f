"""Random numbers that belong to a port: what others do, and when, makes no difference to them."""

from __future__ import annotations

from numba import njit

from .engine_arrays import DRAWS


@njit(cache=True)
def _mix(x):  # type: ignore[no-untyped-def]
    """Spread 32 bits over 32 bits (multiply and fold, after Wang)."""
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@njit(cache=True)
def draw(port, ports, seed):  # type: ignore[no-untyped-def]
    """A port's next number in [0, 1)."""
    ports[port, DRAWS] += 1
    x = _mix((_mix((seed + port) & 0xFFFFFFFF) + ports[port, DRAWS]) & 0xFFFFFFFF)
    return x / 4294967296.0
