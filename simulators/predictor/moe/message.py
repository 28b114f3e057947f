"""What one routed copy of a token weighs on the wire."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.moe.declare import parameter, require_whole


@dataclass(frozen=True)
class Message:
    """Sizes in bytes of what travels with each copy of a token that goes to an expert."""

    weight_precision: int = parameter(2, "bytes of the router's weight of a copy")
    routing_precision: int = parameter(2, "bytes that name the destination")
    id_precision: int = parameter(4, "bytes that name the source, and as many for the position")
    embed_dim: int = parameter(0, "elements of a token's embedding; 0: only routing data travels")
    embed_precision: int = parameter(2, "bytes of one element of an embedding")
    return_bytes: int = parameter(
        0, "bytes of a copy that return to its source when its expert is done (combine)"
    )

    def check(self) -> None:
        """Refuse sizes that are not whole numbers of bytes, and an empty message.

        Raises:
            InputError: naming the parameter.
        """
        for name in ("routing_precision", "id_precision", "embed_precision"):
            require_whole(name, getattr(self, name))
        for name in ("weight_precision", "embed_dim", "return_bytes"):
            require_whole(name, getattr(self, name), 0)

    @property
    def copy_bytes(self) -> int:
        """Weight, destination, source and position in the sequence, and the embedding."""
        identity = self.routing_precision + 2 * self.id_precision
        return self.weight_precision + identity + self.embed_dim * self.embed_precision
