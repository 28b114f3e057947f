"""The conventions for unknown values are those that the documentation shows."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

from tests.e2e.commands import ROOT
from trainscout.simulators.virtual_cluster.emulation.values.defaults import (
    ASSUMED_SHARE,
    EXACT_ELEMENTS,
    FINITE,
    FOLLOWED_ELEMENTS,
    INVENTED,
    SOUND,
)
from trainscout.simulators.virtual_cluster.traces.invariants import (
    GROWTH_BYTES,
    GROWTH_SHARE,
    LOOP_LENGTH,
)

PAGE = (ROOT / "docs" / "emulation.md").read_text(encoding="utf-8")


def test_the_documented_conventions_are_those_in_use() -> None:
    table = PAGE.partition("| what is read |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `?(\w+)`? \| (\S+) \|$", table, re.MULTILINE)
    assert dict(rows) == {
        name: repr(value) for name, value in {**INVENTED, **FINITE, **SOUND}.items()
    }


def test_the_documented_limits_are_those_in_use() -> None:
    assert f"at most {EXACT_ELEMENTS} elements" in PAGE
    assert f"of at most {FOLLOWED_ELEMENTS >> 20} Mi" in PAGE
    assert f"{ASSUMED_SHARE:.0%} of the".replace("%", " %") in PAGE
    assert f"{GROWTH_BYTES >> 20} MiB or {GROWTH_SHARE:.1%}".replace("%", " %") in PAGE
    assert f"one small kernel {LOOP_LENGTH} times" in PAGE
