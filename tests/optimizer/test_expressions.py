import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.optimizer.expressions import NotWholeError, parse
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp * pp - 1", 7),
        ("tp + pp * 5 // 3", 7),
        ("tp % 3", 1),
        ("tp > 1 and mode == 'full'", True),
        ("not (tp >= 5 or pp != 2)", True),
        ("flag == true", False),
        ("nothing == null", True),
        ("12 / tp", 3),
    ],
)
def test_values(text, expected):
    names = {"tp": 4, "pp": 2, "mode": "full", "flag": False, "nothing": None}
    assert parse("f", text, names)(names) == expected


def test_division_is_exact_or_refused():
    half = parse("f", "a / b", {"a", "b"})
    for a, b in ((5, 2), (1, 0)):
        with pytest.raises(NotWholeError):
            half({"a": a, "b": b})


@given(st.integers(-1000, 1000), st.integers(1, 50))
def test_exact_division_inverts_multiplication(a, b):
    assert parse("f", "(a * b) / b", {"a", "b"})({"a": a, "b": b}) == a


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "tp.real",
        "[tp]",
        "tp ** 9",
        "lambda: tp",
        "1.5",
        "1 < tp < 3",
        "f'{tp}'",
        "tp[0]",
        "(",
        "",
        "tp + " * 200 + "1",
        None,
        3,
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(InputError):
        parse("space.derived.x", text, {"tp", "pp"})


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(InputError) as refused:
        parse("space.derived.x", "num_gpu + 1", {"num_gpus", "tp"})
    assert refused.value.nearest == "num_gpus"


def test_a_conditional_reads_only_the_branch_it_takes():
    expression = parse(
        "space.derived.pp", "null if pp == 1 else num_layers / pp", {"pp", "num_layers"}
    )
    assert expression({"pp": 1, "num_layers": 7}) is None
    assert expression({"pp": 7, "num_layers": 7}) == 1


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("tp > 'a'", {"tp": 1}),
        ("etp > 1", {"etp": None}),
        ("recompute + 1", {"recompute": "full"}),
        # Text that may be multiplied is a way to fill the memory.
        ("'ab' * tp", {"tp": 3}),
        ("tp % 'x'", {"tp": 3}),
    ],
)
def test_text_and_null_have_no_arithmetic_and_no_order(text, values):
    with pytest.raises(InputError) as refused:
        parse("space.constraints[0]", text, set(values))(values)
    assert refused.value.field == "space.constraints[0]"


def test_a_condition_without_a_whole_value_does_not_hold():
    fits = parse("f", "a / b >= 2", {"a", "b"})
    assert fits.holds({"a": 4, "b": 2})
    assert not fits.holds({"a": 2, "b": 2})
    assert not fits.holds({"a": 5, "b": 2})
    assert not fits.holds({"a": 5, "b": 0})


def test_a_derived_name_reads_what_it_stands_for_and_no_more():
    half = parse("derived.half", "a // 2", {"a", "b"})
    assert parse("f", "half + 1", {"a"}, {"half": half}).names == {"a"}
    assert parse("f", "half + 1", {"a"}, {"half": half})({"a": 4}) == 3
    with pytest.raises(InputError, match="rests on a"):
        parse("f", "half + 1", {"b"}, {"half": half})
