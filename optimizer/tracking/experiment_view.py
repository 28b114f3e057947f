"""How MLflow's own pages show an experiment of searches: as model training, with a view that opens
on what recipes are compared by."""

from __future__ import annotations

import json

_FIGURES = ("step_time_s", "mfu", "memory/headroom_gib", "cost_of_run_usd")
_COLUMNS = (
    *("attributes.`Created`", "tags.`recipe`", "metrics.`days`", "metrics.`usd`"),
    # Of recipes, and below ``best/`` of searches.
    *(f"metrics.`{prefix}{name}`" for name in _FIGURES for prefix in ("", "best/")),
)
_VIEW = {
    "searchFilter": "",
    "orderByKey": "attributes.start_time",
    "orderByAsc": False,
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "datasetsFilter": [],
    "modelVersionFilter": "All Runs",
    "selectedColumns": list(_COLUMNS),
    "columnOrder": [],
    "columnWidths": {},
    "runsExpanded": {},
    "runsPinned": [],
    "runsHidden": [],
    "runsVisibilityMap": {},
    "runsHiddenMode": "FIRST_10_RUNS",
    "viewMaximized": False,
    "runListHidden": False,
    "isAccordionReordered": False,
    "useGroupedValuesInCharts": True,
    "hideEmptyCharts": True,
    "groupBy": None,
    "autoRefreshEnabled": False,
}

EXPERIMENT_TAGS = {
    # Without it MLflow 3 guesses, and shows an empty experiment as a chat application's.
    "mlflow.experimentKind": "custom_model_development",
    # Opened by …/runs?workflowType=machine_learning&viewStateShareKey=trainscout.
    "mlflow.sharedViewState.trainscout": json.dumps(_VIEW),
}
"""Tags by which MLflow's pages know."""
