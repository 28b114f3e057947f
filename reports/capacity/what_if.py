"""What a study's changes mean, in words: their names are the user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def format_what_if(name: str, what_ifs: Mapping[str, Mapping[str, Any]]) -> str:
    """``3 x the GPUs (cluster_x3)``: what a change does, and its name in the study.

    Args:
        name: of an effect; those the study does not declare say what they do.
        what_ifs: the fields of each declared ``WhatIf``.
    """
    change = what_ifs.get(name)
    if change is None:
        return name
    parts = [f"on {change['cluster']}"] if change["cluster"] else []
    if change["size"] != 1:
        parts.append(f"{change['size']:g} x the GPUs")
    if change["network"] != 1:
        parts.append(f"{change['network']:g} x the network")
    return f"{', '.join(parts) or 'no change'} ({name})"
