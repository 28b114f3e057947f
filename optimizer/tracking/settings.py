"""Where searches are tracked; ``conf/tracking`` fills this in."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import (
    InputError,
    require_choice,
    require_positive,
)

URI_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")


@dataclass(frozen=True)
class TrackingSettings:
    """Where searches are kept."""

    name: str = "mlflow"
    """``mlflow`` or ``none``."""
    uri: str = "sqlite:///mlflow.db"
    """Any MLflow tracking URI."""
    experiment: str = "trainscout"
    """Its name in the tracking store."""
    timeout_s: float = 30.0
    """The longest the end of a search waits for the tracking store, in seconds."""

    def check(self) -> None:
        """Refuse what can be known to be wrong without opening the store."""
        require_choice("tracking.name", self.name, ("mlflow", "none"))
        require_positive("tracking.timeout_s", self.timeout_s)
        if not self.experiment.strip():
            raise InputError("tracking.experiment", self.experiment, "is empty", "a name")
        scheme = self.uri.partition(":")[0].partition("+")[0]
        if ":" not in self.uri or scheme not in URI_SCHEMES:
            raise InputError("tracking.uri", self.uri, "has no known scheme", URI_SCHEMES)
