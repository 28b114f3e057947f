"""What differs between two runs of one study, from the records they wrote (``study.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """One difference.

    ``kind``: ``answer`` (a model's chosen cell is another), ``target`` (met or missed now), or of
    a cell ``recipe``, ``days``, ``usd``, ``fits``, ``no_longer_fits``, ``status`` (from nothing
    fits to failed or back), ``added`` or ``removed``. ``where`` names the model or the cell;
    ``share`` is by what share of its former value a figure moved.
    """

    kind: str
    where: str
    before: str | None
    after: str | None
    share: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], threshold: float
) -> tuple[Change, ...]:
    """Differences between two runs, those of the answers first.

    Args:
        before, after: the records of two runs.
        threshold: days and dollars that moved by no more than this share are the same.
    """
    return (*_model_changes(before, after), *_cell_changes(before, after, threshold))


def _model_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    then = {each["model"]: each for each in before["models"]}
    found = []
    for now in after["models"]:
        model = now["model"]
        if model not in then:
            continue
        if now["answer"] != then[model]["answer"]:
            found.append(Change("answer", model, then[model]["answer"], now["answer"]))
        targets = {each["name"]: each for each in then[model]["targets"]}
        for target in now["targets"]:
            name = target["name"]
            if name in targets and bool(target["met_by"]) != bool(targets[name]["met_by"]):
                then_words, now_words = _met(targets[name]), _met(target)
                found.append(Change("target", f"{model}, {name}", then_words, now_words))
    return found


def _met(target: Mapping[str, Any]) -> str:
    return "met" if target["met_by"] else "not met"


def _cell_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], threshold: float
) -> list[Change]:
    then = {cell["key"]: cell for cell in before["cells"]}
    now = {cell["key"]: cell for cell in after["cells"]}
    found = []
    for key, cell in now.items():
        if key not in then:
            found.append(Change("added", key, None, cell["status"]))
            continue
        old = then[key]
        if cell["status"] != old["status"]:
            found.append(Change(_status_kind(old, cell), key, old["status"], cell["status"]))
        elif cell["status"] == "fits":
            found += _figure_changes(key, old, cell, threshold)
    gone = [key for key in then if key not in now]
    return found + [Change("removed", key, then[key]["status"], None) for key in gone]


def _status_kind(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if after["status"] == "fits":
        return "fits"
    return "no_longer_fits" if before["status"] == "fits" else "status"


def _figure_changes(
    key: str, before: Mapping[str, Any], after: Mapping[str, Any], threshold: float
) -> list[Change]:
    found = []
    if after["recipe"] != before["recipe"]:
        then_words, now_words = before["recipe_words"], after["recipe_words"]
        found.append(Change("recipe", key, then_words, now_words))
    for figure, words in (("days", "{:,.2f} days"), ("usd", "${:,.2f}")):
        old, new = before[figure], after[figure]
        # GPUs of one's own may cost nothing: no share of that can be told.
        share = new / old - 1 if old else None
        if abs(new - old) > threshold * abs(old):
            found.append(Change(figure, key, words.format(old), words.format(new), share))
    return found
