"""What a job's software was declared to do otherwise than it ships, and no launch file says."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import fields

from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.dialects.setting import Setting
from trainscout.simulators.predictor.question.framework import Framework, named_framework
from trainscout.simulators.predictor.question.job import Job

# What a framework is called and has, and what every launch file exports.
_NO_SETTING = frozenset(
    (
        "name",
        "space",
        "source",
        "code",
        "launch",
        "alternatives",
        "supersedes",
        "lacks",
        "schedules",
    )
) | {"expandable_segments"}


def facts_of(table: Iterable[Setting]) -> frozenset[str]:
    """Fields of a framework that rows of a dialect say."""
    of_framework = (row.source for row in table if isinstance(row.source, str))
    return frozenset(
        name.removeprefix("framework.") for name in of_framework if name.startswith("framework.")
    )


def unsaid_facts(job: Job, said: Container[str]) -> list[str]:
    """Fields of the software, but those that launch files have ``said``, that are not as they ship
    under its name, in words."""
    declared = named_framework(job.framework, job.recipe.framework)
    frameworks = load_catalogue().frameworks
    if declared.name not in frameworks:
        return []
    ships, names = frameworks[declared.name], (each.name for each in fields(Framework))
    return [
        f"framework.{name}={value} (it ships with {getattr(ships, name)}, and has no setting)"
        for name in names
        if name not in said and name not in _NO_SETTING
        if (value := getattr(declared, name)) != getattr(ships, name)
    ]
