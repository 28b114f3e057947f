"""Measured kernels of many sources in one file: ``trainscout kernels list``, ``add``, ``export``.

The database is a file as ``trainscout measure`` writes it, which ``simulator.measured_kernels=``
reads. Every row keeps its ``source`` and names the file that it ``came_from``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.measurements import (
    FORMAT,
    VERSION,
    read_measurements,
    rows_text,
)
from trainscout.simulators.predictor.io.output import check_output, make_folder, write_output
from trainscout.simulators.predictor.io.terminal import plain_table, show
from trainscout.simulators.predictor.kernels.measured import CLASSES
from trainscout.simulators.predictor.kernels.measured_rows import (
    COLUMNS,
    match_gpu,
    read_tables,
    sustained,
    unusable,
)
from trainscout.simulators.predictor.question.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

CAME_FROM = "came_from"
Row = dict[str, Any]


def listing(arguments: Sequence[str]) -> int:
    """``trainscout kernels list``."""
    parser = command_parser(
        "kernels list",
        "List what tables of measured kernels hold: by GPU and class, where each row came from, "
        "how many of its kernels can be used, and how many were timed hot.",
        "trainscout kernels list measured/*.csv\ntrainscout kernels list kernels.json --json",
    )
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE")
    parser.add_argument("--json", action="store_true", help="as one JSON list")
    options = parser.parse_args(arguments)
    found = contents([(path, *each) for path in options.tables for each in read_tables(path)])
    if options.json:
        print(json.dumps(found, indent=2))
        return OK
    table = plain_table("gpu", "class", "source", "file", "#rows", "#usable", "#hot")
    for each in found:
        table.add_row(*map(str, each.values()))
    show(table)
    return OK


def contents(tables: Sequence[tuple[Path, str, pd.DataFrame]]) -> list[Row]:
    """Rows by GPU (as declared, else as named), class, source and file."""
    gpus = load_catalogue().gpus
    found: list[Row] = []
    for path, kind, rows in tables:
        rows = rows.assign(
            usable=unusable(kind, rows) == "",
            hot=sustained(rows),
            named=[match_gpu(str(name), gpus)[0] or str(name) for name in rows["gpu"]],
            origin=_column(rows, "source"),
            file=_column(rows, CAME_FROM).where(_column(rows, CAME_FROM) != "", path.name),
        )
        for (gpu, source, file), own in rows.groupby(["named", "origin", "file"], sort=True):
            counts = {"rows": len(own), "usable": int(own["usable"].sum())}
            about = {"gpu": gpu, "class": kind, "source": source, "file": file}
            found.append(about | counts | {"hot": int((own["hot"] & own["usable"]).sum())})
    return sorted(found, key=lambda each: tuple(map(str, each.values())))


def _column(rows: pd.DataFrame, name: str) -> pd.Series[str]:
    import pandas as pd

    if name not in rows.columns:
        return pd.Series("", index=rows.index)
    return rows[name].astype(object).fillna("").astype(str)


def add(arguments: Sequence[str]) -> int:
    """``trainscout kernels add``."""
    parser = command_parser(
        "kernels add",
        "Add tables of measured kernels to a database: rows that are there already are not added "
        "again, and each says which file it came from.",
        "trainscout kernels add measured/h100/*.csv --to ours.json\n"
        "trainscout kernels add compared/measured_kernels/*.csv h100.json --to ours.json",
    )
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE")
    parser.add_argument("--to", required=True, type=Path, metavar="FILE", help="the database")
    options = parser.parse_args(arguments)
    check_output("--to", options.to, options.tables)
    content: Row = {"format": FORMAT, "version": VERSION}
    if options.to.exists():
        content = read_measurements("--to", options.to)
    kept: dict[str, list[Row]] = content.setdefault("kernels", {})
    added = dict.fromkeys(CLASSES, 0)
    for path in options.tables:
        for kind, rows in read_tables(path):
            if kind not in CLASSES:
                raise InputError("table", path, f"holds {kind}", CLASSES)
            own = kept.setdefault(kind, [])
            known = {_identity(row) for row in own}
            for row in _plain(rows):
                row.setdefault(CAME_FROM, path.name)
                if _identity(row) not in known:
                    known.add(_identity(row))
                    own.append(row)
                    added[kind] += 1
    write_output("--to", options.to, json.dumps(content, indent=1) + "\n")
    print(", ".join(f"{count} {kind}" for kind, count in added.items()), f"added to {options.to}")
    return OK


def _plain(rows: pd.DataFrame) -> list[Row]:
    """Rows as JSON has them, without blanks and what reading added."""
    rows = rows.drop(columns="unreadable")
    return [
        {str(name): value for name, value in row.items() if value is not None and value != ""}
        for row in json.loads(rows.to_json(orient="records"))
    ]


def _identity(row: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in row.items() if k != CAME_FROM}, sort_keys=True)


def export(arguments: Sequence[str]) -> int:
    """``trainscout kernels export``."""
    parser = command_parser(
        "kernels export",
        "Write the tables of a database as CSV files, one a class, of one GPU or of all.",
        "trainscout kernels export ours.json --output tables\n"
        "trainscout kernels export ours.json --output tables --gpu h100",
    )
    parser.add_argument("database", type=Path, metavar="FILE")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument("--gpu", metavar="NAME", help="declared GPU whose rows are written")
    options = parser.parse_args(arguments)
    tables = _of_gpu(options, read_measurements("database", options.database).get("kernels"))
    make_folder("--output", options.output)
    for kind, rows in tables.items():
        path = options.output / f"{kind}.csv"
        write_output("--output", path, rows_text(rows).replace("\r\n", "\n"))
        print(f"{path}: {len(rows)} rows")
    return OK


def _of_gpu(options: argparse.Namespace, tables: object) -> dict[str, list[Row]]:
    """The tables that have rows of the GPU asked for; refuses none."""
    gpus = load_catalogue().gpus
    wanted = None if options.gpu is None else gpus.chosen("--gpu", options.gpu).name
    found: dict[str, list[Row]] = {}
    for kind, rows in tables.items() if isinstance(tables, dict) else ():
        if kind in COLUMNS and rows_text(rows):
            own = [
                row for row in rows if wanted in (None, match_gpu(str(row.get("gpu")), gpus)[0])
            ]
            found |= {kind: own} if own else {}
    if not found:
        problem = f"holds no kernels{'' if wanted is None else f' of {wanted}'}"
        raise InputError("database", options.database, problem, "what kernels list shows")
    return found
