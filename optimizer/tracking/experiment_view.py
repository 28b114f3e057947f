"""How MLflow's own pages show an experiment of searches: as model training, with a view that opens
on what recipes are compared by."""

from __future__ import annotations

import json

SHARED_VIEW = {
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
    f"mlflow.sharedViewState.{SHARED_VIEW}": json.dumps(_VIEW),
}
"""Tags by which MLflow's pages know."""
