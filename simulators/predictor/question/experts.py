"""Experts of a model's layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainscout.simulators.predictor.moe.popularity import MOST_EXPERTS, check_popularity

from .errors import InputError, require_choice, require_positive

DISPATCHERS = ("alltoall", "allgather", "deepep")


@dataclass(frozen=True)
class Moe:
    """Mixture-of-experts part of a model; token counts and sizes are per layer."""

    num_experts: int
    """Routed experts of a layer."""
    top_k: int
    """How many of them a token goes to."""
    ffn_hidden_size: int
    """One expert's inner width."""
    shared_ffn_hidden_size: int = 0
    """The summed inner width of the shared experts (0 for none)."""
    latent_size: int | None = None
    """Width that tokens are projected to before they travel to routed experts, and from which they
    are projected back after (LatentMoE, Nemotron 3 Super); None: they travel as they are."""
    num_dense_layers: int = 0
    """So many layers, the first ones, keep the dense MLP."""
    layer_period: int = 1
    """Of the layers after ``num_dense_layers``, every so many-th has experts (Llama 4 Maverick:
    2)."""
    dispatcher: str = "alltoall"
    """``alltoall`` and ``allgather`` are NCCL collectives; ``deepep`` sends a token once to each
    node (or each GPU, inside one) that hosts any of its experts, as DeepEP and HybridEP do."""
    capacity_factor: float | None = None
    """What an expert takes, times its even share; what is over it is dropped. None means dropless
    routing."""
    pad_to_capacity: bool = True
    """With ``capacity_factor``, experts that receive less are padded to it, so that all are equal;
    false, and behind ``deepep``: they process what they receive."""
    load_imbalance: float = 1.0
    """How many times the mean the busiest GPU's experts then receive (1: routing forced to
    balance)."""
    experts_in_turn: bool = False
    """Routing is forced to balance by handing out experts in turn, as PyTorch's trainers do for
    benchmarks: those of a token are neighbours, which few GPUs hold."""
    hot_ratio: float = 0.0
    """Instead of ``load_imbalance``: this share of the experts together receives ``hot_weight`` of
    all routings, and what the busiest GPU gets follows from the recipe, as it does from measured
    routings."""
    hot_weight: float | None = None
    """The share of all routings that the hot experts (``hot_ratio``) receive."""
    histogram: str | None = None
    """A CSV file that counts the routings of each layer's experts."""
    measured: tuple[int, ...] = ()
    """What was read from it, layer after layer."""

    @property
    def padded(self) -> bool:
        """Whether all experts receive the same, popular or not. DeepEP drops what is beyond a
        capacity and pads nothing (Megatron-Core: ``_DeepepManager``)."""
        cut = self.capacity_factor is not None
        return cut and self.pad_to_capacity and self.dispatcher != "deepep"

    @property
    def routed(self) -> bool:
        """Whether loads follow from the popularity of experts."""
        return self.hot_weight is not None or bool(self.measured)

    @property
    def measured_layers(self) -> tuple[tuple[int, ...], ...]:
        """Measured routings by layer and expert."""
        counts, experts = self.measured, self.num_experts
        return tuple(counts[at : at + experts] for at in range(0, len(counts), experts))

    @property
    def balanced(self) -> Moe:
        """The same with experts that are all equally popular."""
        return replace(
            self, load_imbalance=1.0, hot_ratio=0.0, hot_weight=None, histogram=None, measured=()
        )

    def check(self) -> None:
        require_positive("model.moe.num_experts", self.num_experts, most=MOST_EXPERTS)
        for name in ("top_k", "ffn_hidden_size", "layer_period"):
            require_positive(f"model.moe.{name}", getattr(self, name))
        for name in ("shared_ffn_hidden_size", "num_dense_layers"):
            require_positive(f"model.moe.{name}", getattr(self, name), allow_zero=True)
        if self.latent_size is not None:
            require_positive("model.moe.latent_size", self.latent_size)
        require_choice("model.moe.dispatcher", self.dispatcher, DISPATCHERS)
        if self.capacity_factor is not None:
            require_positive("model.moe.capacity_factor", self.capacity_factor)
        most, load = self.num_experts, self.load_imbalance
        if not 1 <= load <= most:
            # The busiest of as many GPUs as experts at most receives all tokens.
            raise InputError("model.moe.load_imbalance", load, "is out of range", f"1..{most}")
        if self.top_k > most:
            raise InputError("model.moe.top_k", self.top_k, "exceeds num_experts", f"1..{most}")
        check_popularity(most, self.top_k, self.hot_ratio, self.hot_weight, "model.moe.")
        if self.routed and load != 1:
            problem = "is given twice: the popularity of experts says it too"
            raise InputError("model.moe.load_imbalance", load, problem, "1")
        if self.experts_in_turn and (self.routed or load != 1):
            problem = "balances what is said to be uneven"
            raise InputError("model.moe.experts_in_turn", True, problem, "false")
        if (self.histogram is None) != (not self.measured):
            problem = "is where measured routings were read from"
            raise InputError("model.moe.histogram", self.histogram, problem, "a CSV file")
        if self.measured and self.hot_weight is not None:
            problem = "is given beside a measured histogram"
            raise InputError("model.moe.hot_weight", self.hot_weight, problem, "null")
        for counts in self.measured_layers:
            if max(counts) * self.top_k > sum(counts):
                problem = (
                    f"has an expert with {max(counts):,} of {sum(counts):,} routings, more than "
                    f"one a token that goes to {self.top_k}"
                )
                allowed = "counts of that many different experts a token"
                raise InputError("model.moe.histogram", self.histogram, problem, allowed)
