"""The learned correction of the physical slowdown: gradient-boosted trees, and where they hold.

The trees give log(measured / physical) from what the replay knows of a kernel and the
communication beside it. ``fitted/overlap.yaml`` says for which kernel classes that was better
than no correction on sources it had not seen, and the range of every feature it was trained
on; outside it the correction is 1. XGBoost is imported only when a class is corrected.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.interference.features import KERNEL_CLASSES, Floats
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

# What the replay knows of a block beside a communication.
KNOWN = (
    "kernel_class",
    "memory_throughput",
    "channels",
    "channel_share",
    "traffic_share",
    "sms",
    "dram_bytes_per_s",
)
# Beside the class itself: what has to lie in the range seen for it.
RANGED = ("memory_throughput", "channel_share", "traffic_share", "sms", "dram_bytes_per_s")
MODEL_FILE = "overlap.ubj"


@dataclass(frozen=True)
class Fitted:
    """Corrected classes, each with the (low, high) of ``RANGED`` it was trained on."""

    ranges: Mapping[str, Mapping[str, tuple[float, float]]]


def parse_fitted(content: Mapping[str, Any], where: str) -> Fitted:
    """The content of ``overlap.yaml``.

    Raises:
        InputError: when an entry is missing or names no kernel class.
    """
    try:
        ranges = {
            name: {key: (float(low), float(high)) for key, (low, high) in entry["range"].items()}
            for name, entry in content["classes"].items()
            if entry["uses"] == "learned"
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(where, error, "is not a file of a fitted overlap model") from error
    for name, entry in ranges.items():
        if name not in KERNEL_CLASSES or set(entry) != set(RANGED):
            raise InputError(where, name, "is not a fitted kernel class", KERNEL_CLASSES)
    return Fitted(ranges)


@functools.cache
def fitted() -> Fitted:
    """What the package ships."""
    file = _folder() / "overlap.yaml"
    return parse_fitted(read_yaml(file), file.name)


def _folder() -> Traversable:
    return resources.files("trainscout.simulators.predictor.interference") / "fitted"


def learned_classes() -> tuple[str, ...]:
    """Kernel classes whose physical slowdown is corrected."""
    return tuple(fitted().ranges)


def learned_factors(
    kernel_class: str,
    gpu: Gpu,
    memory_bound: NDArray[np.floating],
    channels: NDArray[np.integer] | NDArray[np.floating],
    comm_bytes_per_s: NDArray[np.floating],
) -> Floats:
    """Measured over physical slowdown of kernels i beside communications j, shape (c, k)."""
    bound, held = np.asarray(memory_bound, np.float64), np.asarray(channels, np.float64)
    traffic = np.asarray(comm_bytes_per_s, np.float64)
    key = (bound.tobytes(), held.tobytes(), traffic.tobytes())
    sizes = (gpu.sms, gpu.memory_bandwidth_bytes_per_s)
    return _factors(kernel_class, *sizes, *key)


@functools.lru_cache(maxsize=4096)
def _factors(
    kernel_class: str, sms: int, dram_bytes_per_s: float, bound: bytes, held: bytes, traffic: bytes
) -> Floats:
    rows, channels = np.frombuffer(bound), np.frombuffer(held)
    first, second = (
        grid.ravel() for grid in np.meshgrid(rows, np.arange(len(channels)), indexing="ij")
    )
    second = second.astype(np.int64)
    columns = {
        "kernel_class": np.full(len(first), float(KERNEL_CLASSES.index(kernel_class))),
        "memory_throughput": first,
        "channels": channels[second],
        "channel_share": channels[second] / sms,
        "traffic_share": np.frombuffer(traffic)[second] / dram_bytes_per_s,
        "sms": np.full(len(first), float(sms)),
        "dram_bytes_per_s": np.full(len(first), dram_bytes_per_s),
    }
    ranges = fitted().ranges[kernel_class]
    inside = np.ones(len(first), dtype=np.bool_)
    for name, (low, high) in ranges.items():
        inside &= (columns[name] >= low) & (columns[name] <= high)
    factors = np.ones(len(first))
    if inside.any():
        matrix = np.column_stack([columns[name] for name in KNOWN])
        factors[inside] = np.exp(_booster().inplace_predict(matrix[inside]))
    pairs: Floats = factors.reshape(len(rows), len(channels))
    pairs.setflags(write=False)
    return pairs


@functools.cache
def _booster() -> Any:
    booster = import_xgboost().Booster()
    booster.load_model(bytearray((_folder() / MODEL_FILE).read_bytes()))
    booster.set_param({"nthread": 1})
    return booster


def import_xgboost() -> Any:
    """The library, which only learned slowdowns need.

    Raises:
        InputError: when it is not installed.
    """
    try:
        import xgboost
    except ImportError as error:
        raise InputError("xgboost", "", "is not installed", "pip install -e '.[fit]'") from error
    return xgboost
