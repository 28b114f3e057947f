from dataclasses import dataclass

from trainscout.reference.docstrings import field_docs


@dataclass
class Shop:
    """A shop. Sells things.

    ``rent`` is what it costs (in dollars; see ``owner``); ``owner``: who pays. With ``open`` it
    sells: ``kind`` None means bread. ``kind``: ``bread`` is the usual; ``cake`` needs ``open``.
    Both are baked. Half of the ``rent`` goes to ``landlord``.
    """

    rent: float
    owner: str
    open: bool
    kind: str | None
    landlord: str
    name: str


def test_each_field_gets_the_clauses_that_begin_with_it():
    docs = field_docs(Shop)
    # Semicolons in parentheses do not end a clause, and the name is not repeated.
    assert docs["rent"] == "What it costs (in dollars; see `owner`)."
    assert docs["owner"] == "Who pays."
    assert docs["open"].startswith("With `open` it sells: ")


def test_a_value_in_backticks_and_what_follows_go_on_with_the_field():
    kind = field_docs(Shop)["kind"]
    assert kind.endswith("`bread` is the usual; `cake` needs `open`. Both are baked.")


def test_a_field_that_no_clause_begins_with_is_explained_where_it_is_mentioned():
    assert field_docs(Shop)["landlord"] == "Half of the `rent` goes to `landlord`."


def test_a_field_that_is_not_mentioned_is_left_out():
    assert "name" not in field_docs(Shop)


def test_periods_inside_a_sentence_end_nothing():
    @dataclass
    class Cited:
        """``rate`` follows Al-Fares et al. 2008, section 4.1. It is small (eq. 3). Or not."""

        rate: float

    assert field_docs(Cited)["rate"] == (
        "`rate` follows Al-Fares et al. 2008, section 4.1. It is small (eq. 3). Or not."
    )
