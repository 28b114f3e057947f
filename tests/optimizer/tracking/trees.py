"""Runs as small as they can be, for tests of what logs them."""

from trainscout.optimizer.tracking.spool import RunTree, make_run


def tree(directory, *, digest=None, steps=5, **changes) -> RunTree:
    """A search with two recipes and its report in ``directory``, and a series of ``steps``."""
    report = directory / "report.txt"
    report.write_text("the report")
    tags = {"model": "tiny", "cluster": "pair", "group": "sweep-1"}
    parent = make_run(
        "tiny on pair",
        1000,
        3000,
        params={f"key{i}": "x" * 600 for i in range(150)} | {"seed": 0},
        metrics={"trials/oom": 2, "best/step_time_s": 2.0, "unknown": float("nan")},
        tags={**tags, "kind": "search", "nothing": None, "mlflow.note.content": "y" * 9000},
        series={"best_so_far/step_time_s": [(step, 1000.0 - step) for step in range(steps)]},
    )
    children = tuple(
        make_run(
            f"#{rank}",
            2000,
            3000,
            params={"tp": 8 // rank},
            metrics={"step_time_s": 2.0 * rank},
            tags={**tags, "kind": "recipe", "rank": rank},
        )
        for rank in (1, 2)
    )
    given = {"parent": parent, "children": children, "directory": directory}
    return RunTree(**{**given, "artifacts": (report,), "children_digest": digest, **changes})
