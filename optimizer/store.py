"""Simulated recipes on disk, so that a killed search loses only what was in flight.

An Optuna storage (a journal file, or any database URL) holds one study per question, one
trial per simulated recipe: knobs as parameters, the recipe and the whole prediction as user
attributes. Any Optuna tool can read it. It is written by one search at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna

from optimizer.executors import Outcome
from optimizer.objective import Objective
from optimizer.prediction_record import prediction_from_dict
from optimizer.space import Indices, Space
from simulators.errors import InputError
from simulators.job import Recipe

_FORMAT = 1
# Long enough for a live writer's append, short enough not to keep a resumed search waiting.
_STALE_LOCK_S = 5


def fingerprint(question: Mapping[str, Any]) -> str:
    """A short content hash of a JSON-ready description."""
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TrialStore:
    """The stored trials of one question.

    Args:
        location: a path to a journal file, or a database URL (``sqlite:///search.db``).
        question: what identifies the search, JSON-ready; another question is refused.
        resume: True continues a stored search, False insists on a new one.

    Raises:
        InputError: when the store cannot be read or written, when it already holds this
            question and ``resume`` is False, or holds only other questions and it is True.
    """

    def __init__(
        self,
        location: str,
        question: Mapping[str, Any],
        space: Space,
        objective: Objective,
        *,
        resume: bool,
    ) -> None:
        self._location = location
        self._space = space
        self._objective = objective
        self._distributions: dict[str, Any] = {
            knob.name: optuna.distributions.IntDistribution(0, len(knob.choices) - 1)
            for knob in space.knobs
        }
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        name = f"trainscout-{_FORMAT}-{fingerprint(question)}"
        try:
            storage = _open(location)
            present = optuna.get_all_study_names(storage)
            self._refuse_mismatch(name, present, resume)
            if name in present:
                self._study = optuna.load_study(storage=storage, study_name=name)
            else:
                ways = ["minimize" if m.minimise else "maximize" for m in objective.measures]
                self._study = optuna.create_study(
                    storage=storage, study_name=name, directions=ways
                )
                self._study.set_user_attr("question", question)
            self.restored = self._read()
        except InputError:
            raise
        except OSError as error:
            raise InputError("storage", location, f"cannot be opened: {error}") from error
        except Exception as error:  # whatever a damaged file makes a backend raise
            raise InputError(
                "storage",
                location,
                f"is damaged or not a search store ({type(error).__name__}: {error})",
                "delete or move it and search again without resume",
            ) from error

    def add(self, settled: Sequence[tuple[Indices, Recipe, Outcome]]) -> None:
        """Append simulated recipes; they are on disk when this returns.

        Raises:
            InputError: when the store has become unwritable.
        """
        try:
            for indices, recipe, outcome in settled:
                self._study.add_trial(self._trial(indices, recipe, outcome))
        except OSError as error:
            raise InputError("storage", self._location, f"cannot be written: {error}") from error

    def _trial(self, indices: Indices, recipe: Recipe, outcome: Outcome) -> Any:
        prediction = outcome.prediction
        attributes: dict[str, Any] = {"recipe": asdict(recipe), "duration_s": outcome.duration_s}
        state = optuna.trial.TrialState.COMPLETE
        values = None
        if prediction is None:
            state = optuna.trial.TrialState.FAIL
            attributes["error"] = outcome.error
        else:
            attributes["prediction"] = prediction.to_dict()
            values = list(self._objective.values(prediction))
        return optuna.trial.create_trial(
            state=state,
            values=values,
            params=dict(zip(self._distributions, indices, strict=True)),
            distributions=self._distributions,
            user_attrs=attributes,
        )

    def _read(self) -> dict[Recipe, Outcome]:
        """Predictions by recipe; failed trials are left out, to be tried again."""
        restored = {}
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state == optuna.trial.TrialState.COMPLETE:
                attributes = trial.user_attrs
                restored[Recipe(**attributes["recipe"])] = Outcome(
                    prediction_from_dict(attributes["prediction"]),
                    duration_s=float(attributes["duration_s"]),
                )
        return restored

    def _refuse_mismatch(self, name: str, present: Sequence[str], resume: bool) -> None:
        if resume and present and name not in present:
            raise InputError(
                "resume",
                True,
                f"{self._location} holds another search: the model, cluster, training, space, "
                "objective, simulator, sampler, batch size or seed differ",
                "the declarations it was started with, or another storage",
            )
        if not resume and name in present:
            raise InputError(
                "storage",
                self._location,
                "already holds this search",
                "resume=true to continue it, or another storage",
            )


def _open(location: str) -> Any:
    if "://" in location:
        return optuna.storages.RDBStorage(location)
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    path = Path(location)
    if path.exists():
        _drop_torn_line(path)
    lock = JournalFileSymlinkLock(location, grace_period=_STALE_LOCK_S)
    return optuna.storages.JournalStorage(JournalFileBackend(location, lock_obj=lock))


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line that a killed writer left unfinished.

    Raises:
        ValueError: when the file is no journal, before touching it.
    """
    with path.open("rb+") as journal:
        end = journal.seek(0, os.SEEK_END)
        if end == 0:
            return
        journal.seek(0)
        if "op_code" not in json.loads(journal.readline()):
            raise ValueError("its first line is no journal entry")
        while True:
            start = max(0, end - 65536)
            journal.seek(start)
            newline = journal.read(end - start).rfind(b"\n")
            if newline >= 0:
                journal.truncate(start + newline + 1)
                return
            if start == 0:
                raise ValueError("its first line is not finished")
            end = start
