"""Runs unmodified training code as one rank of a large job, on a machine without a GPU.

Needs torch (extra ``trace``); it is imported where used, so that importing this package is cheap.
"""

from __future__ import annotations

from .sink import ListSink, Sink
from .virtual_rank import VirtualRank, emulate

__all__ = ["ListSink", "Sink", "VirtualRank", "emulate"]
