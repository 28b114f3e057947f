"""The names under which rows are summed up, and which of them tell error bars for themselves."""

from __future__ import annotations

import re
from pathlib import Path

from trainscout.simulators.predictor.io.yaml_files import read_yaml

from .rows import Row

_SOURCES = read_yaml(Path(__file__).with_name("sources.yaml"))
_SCALES = ((8, "1-8"), (64, "9-64"), (256, "65-256"), (1024, "257-1024"))
_LARGEST = "1025+"


def source_group(row: Row) -> str:
    """The publication a row comes from; its source column up to the first detail otherwise."""
    text = row.source.lower()
    for pattern, label in _SOURCES:
        if re.search(pattern, text):
            return str(label)
    head = re.split(r"[@:;(]| table ", row.source, maxsplit=1, flags=re.IGNORECASE)[0]
    return head.strip() or "unnamed"


def independent_source(row: Row) -> str:
    """What tells error bars for itself: the publication, and of MLPerf's submitters, who run the
    same containers, their round (``MLPerf 5.1, Dell``: what its label has before the comma)."""
    group = source_group(row)
    return group.split(", ")[0] if group.startswith("MLPerf ") else group


def scale_group(num_gpus: int | None) -> str:
    """GPUs, in powers of about four."""
    if num_gpus is None:
        return "unknown"
    return next((label for most, label in _SCALES if num_gpus <= most), _LARGEST)


def family_group(row: Row) -> str:
    """The name under which results of related models are summed up (``llama``, ``gpt``)."""
    match = re.match(r"[A-Za-z]+", row.model)
    word = "unnamed" if match is None else match[0].lower()
    return {"mt": "gpt", "turing": "gpt", "bloom": "gpt"}.get(word, word)
