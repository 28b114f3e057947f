from dataclasses import dataclass, field

import pytest

from trainscout.reference.settings import as_written, settings
from trainscout.simulators.predictor.question.errors import require_choice, require_positive


@dataclass(frozen=True)
class Oven:
    """``heat_s``: how long; ``mode``: how; ``trays``: which ones; ``loaves``: how many."""

    heat_s: float
    mode: str = "top"
    trays: tuple[int, ...] = (1, 2)
    loaves: int | None = None
    labels: dict[str, float] = field(default_factory=dict)

    def check(self) -> None:
        require_positive("oven.heat_s", self.heat_s)
        require_choice("oven.mode", self.mode, ("top", "bottom"))
        if self.loaves is not None:
            require_positive("oven.loaves", self.loaves, allow_zero=True)


@pytest.fixture(name="rows")
def made():
    return {row.name: row for row in settings("oven", Oven(3.0), Oven.check)}


def test_ranges_and_choices_are_what_the_check_allows(rows):
    assert rows["oven.heat_s"].values == "number > 0, s"
    assert rows["oven.mode"].values == "`bottom`, `top`"
    assert rows["oven.loaves"].values == "integer >= 0"


def test_what_nothing_checks_is_its_type(rows):
    assert rows["oven.trays"].values == "list of integers"
    assert rows["oven.labels"].values == "names to numbers"


def test_defaults_are_as_a_user_writes_them(rows):
    assert rows["oven.heat_s"].default == ""
    assert rows["oven.trays"].default == "`[1, 2]`"
    assert rows["oven.loaves"].default == "`null`"


@pytest.mark.parametrize(
    ("value", "written"),
    [(True, "true"), (6.4e7, "6.4e+07"), ("", '""'), ({"a": [None, 2]}, "{a: [null, 2]}")],
)
def test_values_are_written_as_on_the_command_line(value, written):
    assert as_written(value) == written
