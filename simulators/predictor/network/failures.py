"""Links that fail while somebody sends over them."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError, require_positive


@dataclass(frozen=True)
class Failure:
    """A link that goes down, or slows down, while packets cross it."""

    link: str
    """Its name (``leaf0-spine3``), or a switch's (``spine3``): both directions fail."""
    at_s: float
    """When."""
    rate: float = 0.0
    """What is left of its rate: 0 is a link that is down."""
    detected_s: float = 1e-3
    """How long after that flows are routed over what is left. Switches that route every packet
    avoid their own ports at once."""
    until_s: float | None = None
    """When it is whole again (None: never)."""

    def check(self, field: str) -> None:
        """Refuse what cannot happen.

        Raises:
            InputError: naming the field.
        """
        for name in ("at_s", "detected_s"):
            require_positive(f"{field}.{name}", getattr(self, name), allow_zero=True)
        if not 0 <= self.rate < 1:
            raise InputError(f"{field}.rate", self.rate, "is no failure", "0 (down) to below 1")
        if self.until_s is not None and not self.until_s > self.at_s:
            allowed = f"after at_s={self.at_s:g}"
            raise InputError(f"{field}.until_s", self.until_s, "is no later time", allowed)
