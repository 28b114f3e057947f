"""Megatron-LM's argument parser, rebuilt from the table of its definitions beside this file.

Megatron-LM itself is on no package registry.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

TABLE = Path(__file__).with_name("megatron_arguments.csv")


def _layer_pattern(text: str) -> list[int]:
    # Megatron evaluates it, after checking that it is made of these characters only.
    assert set(text) <= set("0123456789[],()+*")
    return list(eval(text))


_KINDS = {"int": int, "float": float, "str": str, "pattern": _layer_pattern}


def table() -> list[dict[str, str]]:
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def parser() -> argparse.ArgumentParser:
    """Takes the arguments Megatron-LM takes; what is not given is not in the namespace."""
    made = argparse.ArgumentParser(
        allow_abbrev=False, argument_default=argparse.SUPPRESS, exit_on_error=False
    )
    for row in table():
        if row["kind"] in ("flag", "off"):
            action = "store_true" if row["kind"] == "flag" else "store_false"
            made.add_argument(row["option"], dest=row["dest"], action=action)
        else:
            made.add_argument(
                row["option"],
                dest=row["dest"],
                type=_KINDS[row["kind"]],
                nargs=row["nargs"] or None,
                choices=row["choices"].split() or None,
            )
    return made
