"""Size bands that errors are reported by."""

from __future__ import annotations

KIB = 1024
# Upper ends of the bands in bytes, and their names.
BANDS = (
    (16 * KIB, "<=16KiB"),
    (256 * KIB, "16-256KiB"),
    (4096 * KIB, "256KiB-4MiB"),
    (65536 * KIB, "4-64MiB"),
)
LAST_BAND = ">64MiB"
BAND_NAMES = (*(name for _, name in BANDS), LAST_BAND)


def size_band(size_bytes: int) -> str:
    """The band of the size that nccl-tests prints."""
    return next((name for most, name in BANDS if size_bytes <= most), LAST_BAND)
