"""A tracking store for the tests of this folder."""

import uuid
from dataclasses import replace

import pytest

from trainscout.optimizer.tracking.settings import TrackingSettings


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """One store for all: MLflow takes seconds to create its tables."""
    directory = tmp_path_factory.mktemp("mlflow")
    return TrackingSettings(uri=f"sqlite:///{directory}/deep/mlflow.db")


@pytest.fixture
def fresh(store):
    """The same database, an experiment of its own."""
    return replace(store, experiment=uuid.uuid4().hex)
