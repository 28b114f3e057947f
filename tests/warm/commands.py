"""What commands import when they start or on the way, and no test replaces."""

import mlflow.store.tracking.sqlalchemy_store
import mlflow.tracking  # noqa: F401

import tests.warm.processes  # noqa: F401
import trainscout.cli
import trainscout.commands.explain
import trainscout.commands.optimize
import trainscout.commands.plan
import trainscout.commands.simulate  # noqa: F401
