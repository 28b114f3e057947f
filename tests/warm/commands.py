"""What commands import and read when they start or on the way, and no test replaces."""

import contextlib
import io
import logging
import tempfile

import mlflow.store.tracking.sqlalchemy_store
import mlflow.tracking  # noqa: F401
import scipy.special  # noqa: F401
from numba.core.registry import cpu_target

import tests.warm.processes  # noqa: F401
import trainscout.cli
import trainscout.commands.explain
import trainscout.commands.plan
import trainscout.optimizer.storage.backends
import trainscout.optimizer.storage.claims
import trainscout.simulators.predictor.replay.congestion
import trainscout.simulators.predictor.replay.pass_timeline

# What is looked for once a process, before the first compiled loop.
cpu_target.target_context.refresh()

# The declarations, the tables of prices and of earlier runs, and the settings: a search and a
# prediction read them once a process.
_SMALL = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64"]
_SEARCH = ["space=maya_table3", "search.n_trials=2", "executor=serial", "tracking=none"]
for _words in (["simulate", *_SMALL, "recipe.tp=8"], ["optimize", *_SMALL, *_SEARCH]):
    with (
        tempfile.TemporaryDirectory() as _folder,
        contextlib.chdir(_folder),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        assert trainscout.cli.main(_words) == 0
logging.getLogger().handlers.clear()
