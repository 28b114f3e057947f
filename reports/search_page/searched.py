"""What a report is made of: a finished search and how it was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trainscout.optimizer.trial import SearchResult, Trial
from trainscout.reports.tracker_runs import git_commit, product_version
from trainscout.simulators.predictor.io.output import fingerprint
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.registry import SimulatorSpec
from trainscout.simulators.virtual_cluster.traced.verification import Verification


@dataclass(frozen=True)
class SearchRequest:
    """How a search was asked for.

    ``command``: the command line; ``started``: when, in UTC; ``version``: of Trainscout, and
    ``commit`` of its repository, None where unknown; ``config_hash``: equal for equal settings.
    """

    command: str
    started: str
    config_hash: str
    seed: int
    version: str | None = None
    commit: str | None = None


def search_request(
    arguments: Sequence[str], settings: Mapping[str, Any], seed: int, result: SearchResult
) -> SearchRequest:
    """How the search that has just ended was asked for: by ``arguments`` on the command
    line, which made ``settings``."""
    started = datetime.now(UTC) - timedelta(seconds=result.wall_s)
    return SearchRequest(
        command=shlex.join(["trainscout", "optimize", *arguments]),
        started=f"{started:%Y-%m-%d %H:%M:%S} UTC",
        config_hash=fingerprint(settings),
        seed=seed,
        version=product_version(),
        commit=git_commit(Path(__file__).parent),
    )


@dataclass(frozen=True)
class Searched:
    """A finished search.

    ``shown``: the trials to decide between, the best first, or the front. ``launch_files``:
    name, relative to the report, to content; the first is shown open. ``relief``: sentences on
    what would help where nothing fits.
    """

    result: SearchResult
    question: Question
    simulator: SimulatorSpec
    shown: Sequence[Trial]
    request: SearchRequest
    launch_files: Mapping[str, str] = field(default_factory=dict)
    checks: Sequence[Verification] = ()
    relief: Sequence[str] = ()


def launch_texts(directory: Path, files: Iterable[Path]) -> dict[str, str]:
    """Content of ``files`` by name below ``directory``; of equal ones the first."""
    texts: dict[str, str] = {}
    for path in files:
        text = path.read_text(encoding="utf-8")
        if text not in texts.values():
            texts[path.relative_to(directory).as_posix()] = text
    return texts
