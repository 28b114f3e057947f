"""Errors a user sees: what is wrong, where, and what would be right."""

from __future__ import annotations

import pickle

import pytest

from trainscout.simulators.predictor.question.errors import (
    InputError,
    nearest_name,
    require_choice,
    require_positive,
)


def test_text_names_field_value_problem_nearest_and_allowed() -> None:
    error = InputError("model", "gpt175", "is unknown", ["gpt175b", "llama3_8b"])
    assert error.nearest == "gpt175b"
    assert str(error) == (
        "model=gpt175: is unknown; did you mean 'gpt175b'? (allowed: gpt175b, llama3_8b)"
    )


def test_a_range_offers_no_nearest_name() -> None:
    error = InputError("recipe.tp", 3, "is out of range", "1..8")
    assert error.nearest is None
    assert str(error) == "recipe.tp=3: is out of range (allowed: 1..8)"


def test_a_given_nearest_name_wins_over_spelling() -> None:
    error = InputError("search", "tpee", "is unknown", ["tpe", "gp"], nearest="gp")
    assert "did you mean 'gp'" in str(error)


def test_survives_a_process_boundary() -> None:
    error = InputError("model", "gpt175", "is unknown", ["gpt175b", "llama3_8b"])
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, InputError)
    assert str(copy) == str(error)
    assert (copy.field, copy.value, copy.nearest) == ("model", "gpt175", "gpt175b")


def test_nearest_name_is_none_when_nothing_is_close() -> None:
    assert nearest_name("zzzz", ["gpt175b"]) is None
    assert nearest_name("gpt175", []) is None


def test_a_beginning_is_nearer_than_a_misspelling() -> None:
    assert nearest_name("A100", ["h100", "a100_40_pcie", "a100_80"]) == "a100_80"
    assert nearest_name("tp", ["pp", "tpe_search"]) == "pp"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -1, 0, "8", None])
def test_require_positive_refuses(value: object) -> None:
    with pytest.raises(InputError, match=r"^sizes\.x=.*> 0"):
        require_positive("sizes.x", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, 0.5, 10**30])
def test_require_positive_accepts(value: float) -> None:
    require_positive("sizes.x", value)


def test_zero_only_when_allowed() -> None:
    require_positive("sizes.x", 0, allow_zero=True)
    with pytest.raises(InputError, match=">= 0"):
        require_positive("sizes.x", -0.1, allow_zero=True)


def test_require_choice() -> None:
    require_choice("precision", "bf16", ("bf16", "fp16"))
    with pytest.raises(InputError, match="did you mean 'bf16'"):
        require_choice("precision", "bf61", ("bf16", "fp16"))
