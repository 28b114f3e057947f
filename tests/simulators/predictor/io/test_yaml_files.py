"""YAML as users write it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainscout.simulators.predictor.io.yaml_files import parse_yaml, read_yaml
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e12", 1e12),
        ("80.0e-6", 80e-6),
        ("-3.5E+2", -350.0),
        (".5e1", 5.0),
        ("2024-01-31", "2024-01-31"),
        ("1e", "1e"),
        ("12", 12),
        ("off", False),
        ("{a: 1, b: {a: 2}}", {"a": 1, "b": {"a": 2}}),
    ],
)
def test_values_are_those_that_hydra_reads(text: str, value: object) -> None:
    found = parse_yaml(text, "file", "x.yaml")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"a: 1\na: 2\n", b"\xff\xfe\x00", b"!!python/object:os.system x", b"[" * 5000],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"--mine=.*x\.yaml: cannot be read"):
        read_yaml(file, "--mine")


def test_missing_and_large_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_yaml(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("# " + "x" * 100)
    with pytest.raises(InputError, match="too large"):
        read_yaml(tmp_path / "x.yaml", largest_bytes=100)
