from dataclasses import dataclass, field

from trainscout.reference.settings import field_docs


@dataclass
class Shop:
    """A shop. Sells things."""

    rent: float
    """What it costs (in dollars;
    see ``owner``)."""
    owner: str
    open: bool = field(default=True)
    """None means ``owner`` decides."""
    kind: str | None = None
    # A comment is not a docstring.

    def sell(self) -> None:
        """Not a field."""


def test_a_field_is_explained_by_the_docstring_under_it():
    assert field_docs(Shop) == {
        "rent": "What it costs (in dollars; see `owner`).",
        "open": "`null` means `owner` decides.",
    }
