"""What was made of launch arguments, for people and for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from trainscout.reports.launch_import.read import ImportedLaunch
from trainscout.simulators.predictor.io.terminal import labelled


def imported_report(imported: ImportedLaunch, *, everything: bool = False) -> RenderableType:
    """What was read, and every argument that was not; those without effect are only counted
    unless ``everything`` is asked for."""
    reading = imported.reading
    lines: list[tuple[str, str]] = [
        (
            f"{imported.framework}:",
            f"{len(reading.used)} arguments understood, from {imported.origin}",
        )
    ]
    lines += [("Note:", note) for note in reading.notes]
    lines += [
        ("Not modelled:", f"{argument} (assumed: {assumed})")
        for argument, assumed in reading.not_modelled
    ]
    for unknown in reading.unknown:
        meant = f"; did you mean {unknown.nearest}?" if unknown.nearest else ""
        lines.append(("Unknown:", f"{unknown.argument}{meant}"))
    if reading.no_effect:
        names = [argument.split(" ")[0] for argument in reading.no_effect]
        words = ", ".join(reading.no_effect if everything else names)
        lines.append(("No effect:", f"{words}"))
    styles = {"Unknown:": "yellow", "Not modelled:": "yellow"}
    rows = ((Text(label, style=styles.get(label, "")), words) for label, words in lines)
    return Group(labelled(rows, gap=1), Text())


def imported_record(imported: ImportedLaunch) -> dict[str, Any]:
    """JSON-ready: the declarations and the recipe that were read, and what was not understood."""
    question = imported.question
    return {
        "framework": imported.framework,
        "origin": imported.origin,
        "model": dataclasses.asdict(question.model),
        "training": dataclasses.asdict(question.training),
        "num_gpus": question.cluster.num_gpus,
        "recipe": dataclasses.asdict(imported.recipe),
        **dataclasses.asdict(imported.reading),
    }
