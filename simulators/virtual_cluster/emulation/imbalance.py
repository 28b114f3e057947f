"""How popular experts are, as who starts a script declares it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.moe.popularity import read_histograms
from trainscout.simulators.predictor.moe.router import Router
from trainscout.simulators.predictor.question.errors import InputError


@dataclass(frozen=True)
class Imbalance:
    """Popularity of experts, in the terms of ``trainscout moe``.

    Choices among ``num_experts`` are a router's. ``hot_ratio`` of the experts together receive
    ``hot_weight`` of all routings; which ones is drawn with ``seed``, in each layer anew.
    ``histogram`` are measured routings per (layer, expert) in their place. Layers count in the
    order in which their routers first run on a rank.
    """

    num_experts: int
    hot_ratio: float = 0.0
    hot_weight: float | None = None
    seed: int = 0
    histogram: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def parse(cls, text: str) -> Imbalance:
        """``num_experts=64,hot_ratio=0.125,hot_weight=0.5,seed=0`` or ``histogram=loads.csv``.

        Raises:
            InputError: for an unknown name, a value that is no number, experts that cannot be so
                popular, or a file that is no histogram.
        """
        settings: dict[str, str] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name in settings:
                raise InputError("moe_imbalance", part, "is given twice")
            settings[name] = value
        if "histogram" in settings:
            if len(settings) > 1:
                problem = "has a histogram and more: the histogram says it all"
                raise InputError("moe_imbalance", text, problem)
            measured = read_histograms(Path(settings["histogram"]))
            return cls(len(measured[0]), histogram=measured)
        made = typed_value(cls, "moe_imbalance", settings)
        made.router(top_k=1).check()
        return made

    def router(self, top_k: int) -> Router:
        """The router of this popularity."""
        return Router(
            num_experts=self.num_experts,
            top_k=top_k,
            hot_ratio=self.hot_ratio,
            hot_weight=self.hot_weight,
            seed=self.seed,
            measured=self.histogram,
        )
