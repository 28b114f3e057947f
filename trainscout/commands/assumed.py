"""What of a question nobody gave, so that reports can mark it as assumed."""

from __future__ import annotations

import re

from omegaconf import DictConfig

from trainscout.conf.build import given_overrides
from trainscout.conf.catalogue import command_defaults, load_catalogue
from trainscout.simulators.predictor.question.question import Question

FIELDS = ("global_batch_size", "tokens", "sequence_length")


def assumed_fields(config: DictConfig, question: Question) -> frozenset[str]:
    """Those of ``FIELDS`` that the command line does not give, nor a training or a model of the
    user's own; and ``model`` and ``cluster``, where it names none."""
    stated = [re.sub(r"^\++", "", each) for each in given_overrides(config)]
    names = {each.split("=")[0] for each in stated}
    chosen = [each.partition("=")[2] for each in stated if each.startswith("training=")]
    own = any(name not in load_catalogue().trainings for name in chosen)
    found = set() if own else {"global_batch_size", "tokens"}
    groups = {name.partition(".")[0] for name in names}
    found |= {"model", "cluster"} - groups
    if question.training.sequence_length is not None:
        found |= set() if own else {"sequence_length"}
    elif "model.sequence_length" not in names:
        found |= {"sequence_length"} if question.model.name in load_catalogue().models else set()
    return frozenset(name for name in found if f"training.{name}" not in names)


def unchanged_fields(question: Question) -> frozenset[str]:
    """Those of ``FIELDS`` that are what they are where nobody says another: of a value, nobody
    knows who gave it."""
    default = load_catalogue().trainings[command_defaults("config")[1]["training"]]
    return frozenset(
        name for name in FIELDS if getattr(question.training, name) == getattr(default, name)
    )
