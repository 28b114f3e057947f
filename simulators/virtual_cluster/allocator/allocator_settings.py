"""How PyTorch's CUDA caching allocator is set up: sizes it works in and PYTORCH_CUDA_ALLOC_CONF.

Facts from PyTorch's documentation ("Memory management" in the CUDA notes) and the constants of
its public headers (``c10/core/AllocatorConfig.h``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from trainscout.simulators.predictor.question.errors import InputError, require_choice

MIB = 2**20
# Every block is a multiple of this.
BLOCK_BYTES = 512
# Requests up to this size come from the small pool, in segments of ``SMALL_SEGMENT_BYTES``.
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
# Larger ones share segments of ``large_segment_bytes``; from ``OWN_SEGMENT_BYTES`` on a request
# gets one of its own size, rounded up to ``SEGMENT_ROUNDING_BYTES``.
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
SEGMENT_ROUNDING_BYTES = 2 * MIB

FIELD = "PYTORCH_CUDA_ALLOC_CONF"
_OPTIONS = (
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "expandable_segments",
)
# Options that concern host memory, locks or the allocator's back end: nothing counted here.
_IGNORED = (
    "backend", "pinned_use_cuda_host_register", "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb", "pinned_use_background_threads",
    "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb",
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse",
)  # fmt: skip
# Divisions of powers of two may be declared per size from 1 MiB to 64 GiB.
_LARGEST_INTERVAL_MB = 65536


@dataclass(frozen=True)
class AllocatorSettings:
    """One process's settings; the defaults are PyTorch's.

    ``large_segment_bytes``: segments that requests below 10 MiB share, and the pages of those that
    expand.
    ``max_split_bytes``: free blocks of at least this size are not split (None: all are).
    ``max_rounding_bytes``: such a block serves only requests that leave less of it unused.
    ``power2_divisions``: (upper bound of the request in bytes, divisions) by size; a request is
    rounded up to one of that many steps between powers of two (0 or 1: not). The last pair
    serves whatever is larger. ``collection_threshold``: share of the allowed memory beyond
    which old free segments are given back (0: never; works only under a memory fraction).
    """

    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    max_split_bytes: int | None = None
    max_rounding_bytes: int = LARGE_SEGMENT_BYTES
    power2_divisions: tuple[tuple[int, int], ...] = ()
    collection_threshold: float = 0.0
    expandable_segments: bool = False

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; an empty text is the defaults.

        Raises:
            InputError: for an unknown option or a value PyTorch would refuse.
        """
        values: dict[str, object] = {}
        for name, value in _options(text):
            if name in _IGNORED:
                if name == "backend" and value != "native":
                    raise InputError(f"{FIELD}.backend", value, "is not modelled", "native")
                continue
            require_choice(FIELD, name, _OPTIONS)
            if name == "large_segment_size_mb":
                least = OWN_SEGMENT_BYTES // MIB + 1
                values["large_segment_bytes"] = _mebibytes(name, value, least)
            elif name == "max_split_size_mb":
                values["max_split_bytes"] = _mebibytes(name, value, LARGE_SEGMENT_BYTES // MIB + 1)
            elif name == "max_non_split_rounding_mb":
                values["max_rounding_bytes"] = _mebibytes(name, value, 21)
            elif name == "roundup_power2_divisions":
                values["power2_divisions"] = _divisions(value)
            elif name == "garbage_collection_threshold":
                values["collection_threshold"] = _threshold(value)
            else:
                require_choice(f"{FIELD}.{name}", value, ("True", "False"))
                values["expandable_segments"] = value == "True"
        return cls(**values)  # type: ignore[arg-type]

    def rounded(self, requested_bytes: int) -> int:
        """Bytes of the block that serves a request."""
        if self.power2_divisions:
            divisions = self._divisions_of(requested_bytes)
            if divisions > 1 and requested_bytes > BLOCK_BYTES * divisions:
                step = (1 << (requested_bytes.bit_length() - 1)) // divisions
                return -(-requested_bytes // step) * step
        return max(BLOCK_BYTES, -(-requested_bytes // BLOCK_BYTES) * BLOCK_BYTES)

    def _divisions_of(self, requested_bytes: int) -> int:
        # A request belongs to the interval of the power of two below it.
        floor = 1 << max(0, requested_bytes.bit_length() - 1)
        for bound, divisions in self.power2_divisions:
            if floor <= bound:
                return divisions
        return self.power2_divisions[-1][1]

    def segment_bytes(self, block_bytes: int) -> int:
        """Bytes asked of the device for a block that no free one can serve."""
        if block_bytes <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < OWN_SEGMENT_BYTES:
            return self.large_segment_bytes
        return -(-block_bytes // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES

    @cached_property
    def never_splits_from(self) -> float:
        """``max_split_bytes``, infinite when every block may be split."""
        return float("inf") if self.max_split_bytes is None else self.max_split_bytes


def _options(text: str) -> list[tuple[str, str]]:
    """``name:value`` pairs; a value may be a list in brackets that has commas of its own."""
    compact = re.sub(r"\s+", "", text)
    pairs = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", compact):
        name, colon, value = part.partition(":")
        if not colon or not value:
            raise InputError(FIELD, part, "is not an option", "name:value,name:value")
        pairs.append((name, value))
    return pairs


def _mebibytes(name: str, value: str, least: int) -> int:
    if not value.isdigit() or int(value) < least:
        raise InputError(f"{FIELD}.{name}", value, "is out of range", f"an integer >= {least}")
    return int(value) * MIB


def _threshold(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1.0:
        allowed = "a fraction between 0 and 1"
        raise InputError(f"{FIELD}.garbage_collection_threshold", value, "is no fraction", allowed)
    return number


def _divisions(value: str) -> tuple[tuple[int, int], ...]:
    """``4`` for all sizes, or ``[256:1,>:8]``: divisions of requests up to so many MiB."""
    if not value.startswith("["):
        return ((_LARGEST_INTERVAL_MB * MIB, _power_of_two(value)),)
    pairs = []
    for item in value.strip("[]").split(","):
        bound, colon, divisions = item.partition(":")
        if not colon or (bound != ">" and not bound.isdigit()):
            raise InputError(f"{FIELD}.roundup_power2_divisions", item, "is not MiB:divisions")
        limit = _LARGEST_INTERVAL_MB if bound == ">" else int(bound)
        pairs.append((limit * MIB, _power_of_two(divisions)))
    return tuple(sorted(pairs))


def _power_of_two(value: str) -> int:
    number = int(value) if value.isdigit() else 0
    if number < 1 or number & (number - 1):
        allowed = "a power of two"
        raise InputError(f"{FIELD}.roundup_power2_divisions", value, "is not allowed", allowed)
    return number
