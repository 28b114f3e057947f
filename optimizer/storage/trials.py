"""Simulated recipes kept in an Optuna storage, so that a killed search loses none of them.

A storage holds one study per question and one trial per simulated recipe: knobs as parameters,
the recipe and the whole prediction as user attributes. Any Optuna tool can read it. A trial is
written in one piece, when its recipe has been simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal

import optuna

from trainscout.optimizer.executors.base import Outcome
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.space import Indices, Space
from trainscout.optimizer.storage.backends import FIELD, damaged, file_of, open_storage
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.output import fingerprint
from trainscout.simulators.predictor.io.values import recorded
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe

Mode = Literal["new", "resume", "join"]
"""``new`` insists on a search that is not there yet, ``resume`` on one that is; ``join`` takes
either."""

_FORMAT = 2


def check_storage(location: str, question: Mapping[str, Any], mode: Mode) -> None:
    """Refuse a storage that a search of ``question`` cannot use; creates no study in it."""
    file = file_of(location)
    if file is None or file.exists():
        _refuse_mismatch(location, open_storage(location), question, mode)
    elif mode == "resume":
        raise InputError("resume", True, f"there is no search in {location}")
    elif not (directory := file.absolute().parent).is_dir():
        raise InputError(FIELD, location, f"{directory} is not a directory", "an existing one")


class TrialStore:
    """The stored trials of one question, those that other processes add included.

    Args:
        location: a path to a journal file, or a database URL (``sqlite:///search.db``).
        question: what identifies the search, JSON-ready; another question is refused.
        read: a recipe from what ``dataclasses.asdict`` made of it.

    Raises:
        InputError: when the store cannot be read or written, or ``mode`` is not met.
    """

    def __init__(
        self,
        location: str,
        question: Mapping[str, Any],
        space: Space,
        objective: Objective,
        mode: Mode,
        read: Callable[[Mapping[str, Any]], Recipe] = lambda record: Recipe(**record),
    ) -> None:
        self._read_recipe = read
        self.location = location
        self.name = _study_name(question)
        self.known: dict[Recipe, Outcome] = {}
        self._failures: dict[Recipe, tuple[str, Outcome]] = {}
        self._read = 0
        self._objective = objective
        self._distributions: dict[str, Any] = {
            knob.name: optuna.distributions.IntDistribution(0, len(knob.choices) - 1)
            for knob in space.knobs
        }
        self.storage = open_storage(location)
        found = _refuse_mismatch(location, self.storage, question, mode)
        try:
            self._study = (
                optuna.load_study(storage=self.storage, study_name=self.name)
                if found
                else self._create(question)
            )
            self.refresh()
        except Exception as error:  # whatever a damaged file or a database makes a backend raise
            raise damaged(location, error) from error

    def _create(self, question: Mapping[str, Any]) -> optuna.Study:
        ways = ["minimize" if each.minimise else "maximize" for each in self._objective.measures]
        # Another process may be creating it at this moment.
        study = optuna.create_study(
            storage=self.storage, study_name=self.name, directions=ways, load_if_exists=True
        )
        study.set_user_attr("question", question)
        return study

    def add(self, indices: Indices, recipe: Recipe, outcome: Outcome, owner: str) -> None:
        """Append a simulated recipe; it is on disk when this returns.

        Raises:
            OSError, optuna.exceptions.StorageInternalError: when the store has become unwritable.
        """
        self._study.add_trial(self._trial(indices, recipe, outcome, owner))
        if outcome.resolved:
            self.known.setdefault(recipe, outcome)

    def refresh(self) -> None:
        """Learn what has been added, here or elsewhere.

        Two processes may have simulated a recipe when one was taken for dead: the first counts.
        """
        trials = self._study.get_trials(deepcopy=False)
        for trial in trials[self._read :]:
            attributes = trial.user_attrs
            recipe = self._read_recipe(attributes["recipe"])
            if recipe in self.known:
                continue
            if trial.state == optuna.trial.TrialState.COMPLETE:
                prediction = recorded(Prediction, attributes["prediction"])
                outcome = Outcome(prediction, duration_s=float(attributes["duration_s"]))
                self.known[recipe] = outcome
            else:
                outcome = Outcome(None, attributes["error"], float(attributes["duration_s"]))
                if outcome.resolved:
                    self.known[recipe] = outcome
                self._failures[recipe] = (attributes["owner"], outcome)
        self._read = len(trials)

    def failed_at(self, recipe: Recipe, owner: str) -> Outcome | None:
        """The failure that ``owner`` met; those of earlier processes are to be tried again."""
        failed_by, outcome = self._failures.get(recipe, (None, None))
        return outcome if failed_by == owner else None

    def _trial(self, indices: Indices, recipe: Recipe, outcome: Outcome, owner: str) -> Any:
        prediction = outcome.prediction
        attributes: dict[str, Any] = {
            "recipe": asdict(recipe),
            "duration_s": outcome.duration_s,
            "owner": owner,
        }
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


def _study_name(question: Mapping[str, Any]) -> str:
    return f"trainscout-{_FORMAT}-{fingerprint(question)}"


def _refuse_mismatch(location: str, storage: Any, question: Mapping[str, Any], mode: Mode) -> bool:
    """Whether the storage holds this search already, when ``mode`` allows what is."""
    try:
        present = optuna.get_all_study_names(storage)
    except Exception as error:
        raise damaged(location, error) from error
    found, address = _study_name(question) in present, location
    if mode == "resume" and not found:
        raise InputError(
            "resume",
            True,
            f"{address} holds another search: the model, cluster, training, space, "
            "objective, simulator, sampler, search settings but budgets, or seed differ, "
            "or another version of Trainscout started it"
            if present
            else f"there is no search in {address}",
            "the declarations it was started with, or another storage",
        )
    if mode == "new" and found:
        raise InputError(
            FIELD,
            address,
            "already holds this search",
            "resume=true to continue it, join=true to share it, or another storage",
        )
    return found
