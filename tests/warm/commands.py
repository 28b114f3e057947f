"""What commands import when they start or on the way, and no test replaces."""

import mlflow.store.tracking.sqlalchemy_store
import mlflow.tracking  # noqa: F401
import scipy.special  # noqa: F401
from hydra.core.plugins import Plugins
from numba.core.registry import cpu_target

import tests.warm.processes  # noqa: F401
import trainscout.cli
import trainscout.commands.explain
import trainscout.commands.optimize
import trainscout.commands.plan
import trainscout.commands.simulate
import trainscout.optimizer.samplers.exact
import trainscout.optimizer.storage.backends
import trainscout.optimizer.storage.claims
import trainscout.optimizer.storage.trials
import trainscout.simulators.predictor.replay.congestion
import trainscout.simulators.predictor.replay.pass_timeline  # noqa: F401

# What both look for once a process, before the first command or compiled loop.
Plugins.instance()
cpu_target.target_context.refresh()
