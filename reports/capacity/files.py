"""The files that a run of a capacity study leaves behind, by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from trainscout.planning.changes import Change
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import StudyOutcome
from trainscout.reports.capacity.page import study_page
from trainscout.reports.capacity.study_files import FORMAT, study_csv
from trainscout.reports.capacity.terminal_tables import (
    format_answer,
    format_change,
    format_clusters,
    format_goodput,
)
from trainscout.reports.launch.directory import first_launch
from trainscout.simulators.predictor.io.output import json_text, write_texts


def study_texts(
    outcome: StudyOutcome,
    record: Mapping[str, Any],
    reliability: Reliability,
    found: Sequence[Change] | None,
    *,
    report: str,
    settings: str,
) -> dict[str, str]:
    """Everything but the record itself.

    Args:
        outcome: what was found.
        record: what ``study_record`` made of it.
        reliability: behind its calendar days.
        found: the differences from the run before; None when there was none.
        report: as on a terminal.
        settings: the whole configuration as YAML.
    """
    scripts = launch_scripts(outcome)
    texts = {
        "report.txt": report,
        "study.csv": study_csv(record),
        "report.html": study_page(
            record,
            [format_answer(model, outcome) for model in outcome.models],
            [*format_clusters(outcome), format_goodput(outcome, reliability)],
            None if found is None else [format_change(change) for change in found],
            scripts,
        ),
        "settings.yaml": settings,
        # A model may be declared in a directory of its group: team/ours_9b.
        **{f"launch_{name.replace('/', '_')}.sh": text for name, text in scripts.items()},
    }
    if found is not None:
        texts["changes.json"] = json.dumps([c.to_json() for c in found], indent=1) + "\n"
    return texts


def launch_scripts(outcome: StudyOutcome) -> dict[str, str]:
    """What starts each model's answer, by model; none where no framework starts it."""
    scripts = {}
    for model in outcome.models:
        if model.chosen is not None:
            job = model.chosen.cell.question.job(model.chosen.best.recipe)
            script = first_launch(job).script_text
            if script is not None:
                scripts[model.model] = script
    return scripts


STUDY = "study.json"
CELLS = "cells"
_STAMP = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-\d+)?")


def new_directory(study: Path, now: datetime) -> Path:
    """Make a run's directory below its study's; a number distinguishes those of one second."""
    stamp = now.strftime("%Y-%m-%d_%H-%M-%S")
    directory, number = study / stamp, 1
    while True:
        try:
            directory.mkdir(parents=True)
            return directory
        except FileExistsError:
            number += 1
            directory = study / f"{stamp}-{number}"


def last_record(study: Path, name: str) -> dict[str, Any] | None:
    """The record of the latest finished run of the study of that name, which may share its
    directory with others; None when there is none that can be read."""
    found = study.glob(f"*/{STUDY}")
    for path in sorted(
        found, key=lambda it: (it.stat().st_mtime_ns, it.parent.name), reverse=True
    ):
        if not _STAMP.fullmatch(path.parent.name):
            continue
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            continue
        if record.get("name") == name:
            return record
    return None


def save_run(directory: Path, record: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Write a run's files by name; the record last, since a run that has it is finished."""
    write_texts(directory, {**texts, STUDY: json_text(record, 1)})
