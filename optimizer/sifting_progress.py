"""How far the sifting of a space is, and what ends it before that is done."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainscout.optimizer.known_best import KnownBest
from trainscout.optimizer.survey import INTERRUPTED
from trainscout.optimizer.trial import OnProgress, Progress


class UnprovedError(Exception):
    """A search is not to prove its answer, which has a sampler besides or was interrupted:
    ``why``, and what is ``known`` by then."""

    def __init__(self, why: str, known: KnownBest) -> None:
        super().__init__(why)
        self.why, self.known = why, known


class Standing:
    """Tells how far the sifting is, and ends it when it is late. How many passes there are is
    known once they are sampled."""

    def __init__(
        self,
        known: KnownBest,
        on_progress: OnProgress | None,
        within_s: float,
        interruptible: Callable[[], None],
    ) -> None:
        self._known, self._on_progress, self._within_s = known, on_progress, within_s
        self._interruptible = interruptible
        self._total = self._done = 0
        self._started_s = self._sampled_s = time.monotonic()

    def sampled(self, passes: int) -> None:
        self._total += passes
        self._sampled_s = time.monotonic()
        self._show(self._total, None, "groups of recipes sampled", None)

    def sifted(self, passes: int) -> None:
        self._done += passes
        now_s = time.monotonic()
        eta_s = (now_s - self._sampled_s) / max(1, self._done) * (self._total - self._done)
        eta_s = max(0.0, min(eta_s, self._started_s + self._within_s - now_s))
        self._show(self._done, self._total, "groups of recipes sifted", eta_s)

    def _show(self, done: int, total: int | None, counted: str, eta_s: float | None) -> None:
        elapsed_s, best = time.monotonic() - self._started_s, self._known.best
        try:
            self._interruptible()
            if self._on_progress is not None:
                self._on_progress(Progress(done, total, {}, best, elapsed_s, eta_s, counted))
        except KeyboardInterrupt:
            if best is None:
                raise
            raise UnprovedError(INTERRUPTED, self._known) from None
        if elapsed_s > self._within_s:
            why = f"it takes more than {self._within_s:g} s (search.proof_timeout_s, timeout_s)"
            raise UnprovedError(why, self._known)
