"""The files that a run of a capacity study leaves behind, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainscout.planning.changes import Change
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import StudyOutcome
from trainscout.reports.capacity.page import study_page
from trainscout.reports.capacity.study_files import study_csv
from trainscout.reports.capacity.terminal_tables import (
    format_answer,
    format_change,
    format_goodput,
)
from trainscout.reports.launch import first_launch


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
            [format_goodput(outcome, reliability)],
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
            job = model.chosen.cell.declared.job(model.chosen.best.recipe)
            script = first_launch(job).script_text
            if script is not None:
                scripts[model.model] = script
    return scripts
