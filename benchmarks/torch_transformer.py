"""A decoder-only transformer in plain PyTorch, from a declared ``Model``: what users write.

Dense models with grouped or full attention, gated or plain MLPs, RMSNorm or LayerNorm, rotary
or learned positions. Attention is ``scaled_dot_product_attention``; nothing else is fused.
"""

from __future__ import annotations

from typing import Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.model import Model

DROPOUT = 0.1
ROPE_BASE = 10_000.0


def build(torch: Any, model: Model, sequence_length: int) -> Any:
    """The module; it takes token ids of shape (batch, sequence) and returns logits.

    Raises:
        InputError: for mixtures of experts, latent attention and normalised queries.
    """
    if model.moe or model.mla or model.qk_norm:
        raise InputError("model", model.name, "is not dense with plain attention")
    nn, functional = torch.nn, torch.nn.functional
    hidden, width = model.hidden_size, model.qk_head_dim
    queries, keys = model.num_heads * width, model.kv_heads * width
    probability = DROPOUT if model.dropout else 0.0

    def norm() -> Any:
        if model.normalization == "rmsnorm":
            return nn.RMSNorm(hidden)
        return nn.LayerNorm(hidden)

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(hidden, queries + 2 * keys, bias=model.qkv_bias)
            self.out = nn.Linear(queries, hidden, bias=model.linear_bias)

        def forward(self, x: Any, rotation: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(x).split((queries, keys, keys), dim=-1)
            q, k, v = (part.view(batch, length, -1, width).transpose(1, 2) for part in parts)
            if rotation is not None:
                q, k = _rotate(torch, q, rotation), _rotate(torch, k, rotation)
            mixed = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                is_causal=True,
                dropout_p=probability if self.training else 0.0,
                enable_gqa=queries != keys,
            )
            return self.out(mixed.transpose(1, 2).reshape(batch, length, queries))

    class Mlp(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            inner = model.ffn_hidden_size
            gates = 2 if model.gated_mlp else 1
            self.up = nn.Linear(hidden, gates * inner, bias=model.linear_bias)
            self.down = nn.Linear(inner, hidden, bias=model.linear_bias)

        def forward(self, x: Any) -> Any:
            up = self.up(x)
            if not model.gated_mlp:
                return self.down(functional.gelu(up, approximate="tanh"))
            gate, value = up.chunk(2, dim=-1)
            return self.down(functional.silu(gate) * value)

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.attention = norm(), Attention()
            self.mlp_norm, self.mlp = norm(), Mlp()
            self.dropout = nn.Dropout(probability)

        def forward(self, x: Any, rotation: Any) -> Any:
            x = x + self.dropout(self.attention(self.attention_norm(x), rotation))
            return x + self.dropout(self.mlp(self.mlp_norm(x)))

    class Transformer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            rows = model.padded_vocab_size(1)
            self.tokens = nn.Embedding(rows, hidden)
            self.positions = (
                nn.Embedding(sequence_length, hidden) if model.position == "learned" else None
            )
            self.dropout = nn.Dropout(probability)
            self.layers = nn.ModuleList(Layer() for _ in range(model.num_layers))
            self.final_norm = norm()
            self.head = nn.Linear(hidden, rows, bias=False)
            if model.tied_embeddings:
                self.head.weight = self.tokens.weight

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids)
            place = torch.arange(ids.shape[1], device=ids.device)
            rotation = None
            if self.positions is not None:
                x = x + self.positions(place)
            elif model.position == "rope":
                rotation = _rotation(torch, place, width)
            x = self.dropout(x)
            for layer in self.layers:
                x = layer(x, rotation)
            return self.head(self.final_norm(x))

    return Transformer()


def _rotation(torch: Any, place: Any, width: int) -> tuple[Any, Any]:
    """Cosine and sine of every position and pair of channels (Su et al. 2021)."""
    exponent = torch.arange(0, width, 2, device=place.device) / width
    angle = torch.outer(place.float(), ROPE_BASE**-exponent)
    return torch.cos(angle), torch.sin(angle)


def _rotate(torch: Any, x: Any, rotation: tuple[Any, Any]) -> Any:
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1).to(x.dtype)
