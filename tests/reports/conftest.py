"""Megatron-Core beside Transformer Engine's own Python, where no process is emulated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_transformer_engine() -> Iterator[None]:
    """Without its library it refuses to be imported, by an error that Megatron-Core lets pass."""
    modules: dict[str, Any] = sys.modules
    kept = modules.pop("transformer_engine", None)
    modules["transformer_engine"] = None
    yield
    del modules["transformer_engine"]
    if kept is not None:
        modules["transformer_engine"] = kept
