"""The files that a run of a capacity study leaves behind, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from planning.changes import Change
from planning.goodput import Reliability
from planning.outcome import StudyOutcome
from reports.capacity.page import study_page
from reports.capacity.record import study_csv
from reports.capacity.tables import answer_words, change_words, goodput_words
from reports.launch import megatron_launch


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
    texts = {
        "report.txt": report,
        "study.csv": study_csv(record),
        "report.html": study_page(
            record,
            [answer_words(model, outcome) for model in outcome.models],
            [goodput_words(outcome, reliability)],
            None if found is None else [change_words(change) for change in found],
        ),
        "settings.yaml": settings,
        **launch_scripts(outcome),
    }
    if found is not None:
        texts["changes.json"] = json.dumps([c.to_json() for c in found], indent=1) + "\n"
    return texts


def launch_scripts(outcome: StudyOutcome) -> dict[str, str]:
    """The Megatron-LM command of each model's answer, by file name; none where Megatron-LM refuses
    the recipe."""
    scripts = {}
    for model in outcome.models:
        if model.chosen is not None:
            job = model.chosen.cell.declared.job(model.chosen.best.recipe)
            launch = megatron_launch(job)
            if not launch.impossible:
                # A model may be declared in a directory of its group: team/ours_9b.
                name = model.model.replace("/", "_")
                scripts[f"launch_{name}.sh"] = launch.script()
    return scripts
