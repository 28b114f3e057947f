"""What is said of a launch that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainscout.simulators.virtual_cluster.trials.ranks import _why

AT = 'File "configurator.py", line 42, in <module>'


@pytest.mark.parametrize(
    ("last", "stated"),
    [
        ("AssertionError", f"AssertionError ({AT})"),
        ("ValueError: no such model", "ValueError: no such model"),
    ],
)
def test_an_error_without_a_message_is_told_by_its_place(
    tmp_path: Path, last: str, stated: str
) -> None:
    output = tmp_path / "output"
    output.write_text(f"Traceback (most recent call last):\n  {AT}\n    assert fits\n{last}\n")
    assert str(_why(3, 1, output)) == f"rank 3 ends with exit code 1: {stated}"
