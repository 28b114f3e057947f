"""A finished search as the record that a tracker keeps."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.question import Declared
from optimizer.tracking import SearchRecord
from optimizer.tracking.metrics import flat_params
from optimizer.trial import SearchResult
from reports.files import recipe_dict
from reports.verification import verification_metrics
from simulators.traced.verification import Verification


def search_record(
    result: SearchResult,
    declared: Declared,
    *,
    settings: Mapping[str, Any],
    top_k: int,
    group: str,
    directory: Path,
    files: Sequence[Path],
    checks: Sequence[Verification] = (),
) -> SearchRecord:
    """What to track: the best ``top_k`` and every Pareto recipe become child runs, with what
    tracing them found (``checks``).

    ``settings`` is the whole configuration as plain values; ``group`` names the searches that
    belong together; ``directory`` is the search's, and has the ``files``.
    """
    kept = {trial.number: trial for trial in (*result.best[:top_k], *result.pareto)}
    tags = {
        "model": declared.model.name,
        "cluster": declared.cluster.name,
        "gpu": declared.gpu.name,
        "group": group,
        "config_hash": config_hash(settings),
        "stopped": result.stopped,
    }
    commit = git_commit(Path(__file__).parent)
    if commit is not None:
        tags["mlflow.source.git.commit"] = commit
    return SearchRecord(
        name=f"{declared.model.name} on {declared.cluster.name}",
        result=result,
        kept=[(t, recipe_dict(t.recipe, declared.job)) for t in kept.values()],
        params=flat_params(settings),
        tags=tags,
        directory=directory,
        artifacts=files,
        metrics={
            trial.number: verification_metrics(check)
            for trial in kept.values()
            for check in checks
            if check.recipe == trial.recipe
        },
    )


def config_hash(settings: Mapping[str, Any]) -> str:
    """Equal settings, equal hash: the first 16 hex digits of a SHA-256."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def git_commit(directory: Path) -> str | None:
    """The commit checked out at ``directory``; None outside a repository or without git."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=directory, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None
