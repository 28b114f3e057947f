"""The model that Megatron-LM arguments describe; see ``reports.launch_import.megatron``."""

from __future__ import annotations

import ast
import re
from typing import Any

from trainscout.reports.launch_import.options import Options
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.model import MOST_LAYERS, Mla, Model, Moe

# Vocabularies that the name of a tokenizer implies.
_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


class ModelArguments:
    """The fields of a model that arguments set: of a whole one where its layers are given, else
    only those that were said. ``notes`` and ``unmodelled`` are added to on the way."""

    def __init__(
        self, options: Options, notes: list[str], unmodelled: list[tuple[str, str]]
    ) -> None:
        self.options = options
        self.notes = notes
        self.unmodelled = unmodelled
        layers = options.whole("--num-layers")
        self.num_layers = options.whole("--encoder-num-layers") if layers is None else layers
        length = options.whole("--seq-length")
        self.sequence_length = options.whole("--encoder-seq-length") if length is None else length

    def fields(self, base: Model) -> dict[str, Any]:
        """Fields of ``Model``; ``base`` gives what no argument says.

        Raises:
            InputError: for a value that Megatron would refuse, or a size that is missing.
        """
        fields = self._model_fields()
        if self.num_layers is None:
            return {**fields, **self._vocabulary(base)}
        hidden, heads = (self._needed(name) for name in ("--hidden-size", "--num-attention-heads"))
        gated = bool(fields.get("gated_mlp"))
        # Megatron keeps a gated MLP's parameters near those of the plain one.
        default = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
        ffn = fields.get("ffn_hidden_size", default)
        head_dim = fields.get("head_dim")
        described = {
            "num_layers": self.num_layers,
            "hidden_size": hidden,
            "num_heads": heads,
            "ffn_hidden_size": ffn,
            "num_query_groups": None,
            "gated_mlp": False,
            "normalization": "layernorm",
            "position": "learned",
            "linear_bias": True,
            "qkv_bias": True,
            "qk_norm": False,
            "dropout": True,
            "tied_embeddings": True,
            "vocab_multiple": 128,
            "num_mtp_layers": 0,
            **fields,
            # What is as it would be anyway is left out, as declarations do.
            "head_dim": None if head_dim == hidden / heads else head_dim,
            "moe": self._experts(ffn),
            "mla": self._latent_attention(),
        }
        if described["mla"] is not None:
            described["head_dim"] = described["num_query_groups"] = None
        if described["num_query_groups"] == heads:
            described["num_query_groups"] = None
        described |= self._vocabulary(base)
        length = self.options.whole("--max-position-embeddings")
        described["sequence_length"] = length or self.sequence_length or base.sequence_length
        return described

    def _needed(self, name: str) -> int:
        value = self.options.whole(name)
        if value is None:
            raise InputError(name, "", "is missing beside --num-layers", "a whole number")
        return value

    def _model_fields(self) -> dict[str, Any]:
        """What single arguments say of a model."""
        options = self.options
        fields: dict[str, Any] = {}
        for name, field in (
            ("--num-layers", "num_layers"),
            ("--hidden-size", "hidden_size"),
            ("--num-attention-heads", "num_heads"),
            ("--ffn-hidden-size", "ffn_hidden_size"),
            ("--kv-channels", "head_dim"),
            ("--make-vocab-size-divisible-by", "vocab_multiple"),
            ("--mtp-num-layers", "num_mtp_layers"),
        ):
            if (value := options.whole(name)) is not None:
                fields[field] = value
        groups = options.whole("--num-query-groups")
        if options.has("--group-query-attention"):
            fields["num_query_groups"] = 1 if groups is None else groups
        elif groups is not None:
            self.notes.append("--num-query-groups counts only beside --group-query-attention")
        for flag, field, value in (
            ("--swiglu", "gated_mlp", True),
            ("--quick-geglu", "gated_mlp", True),
            ("--untie-embeddings-and-output-weights", "tied_embeddings", False),
            ("--qk-layernorm", "qk_norm", True),
        ):
            if options.has(flag):
                fields[field] = value
        if options.has("--disable-bias-linear"):
            fields |= {"linear_bias": False, "qkv_bias": options.has("--add-qkv-bias")}
        if (norm := options.text("--normalization", ("LayerNorm", "RMSNorm"))) is not None:
            fields["normalization"] = norm.lower()
        if options.has("--quick-geglu"):
            self.unmodelled.append(("--quick-geglu", "the activation costs as much as SwiGLU"))
        fields |= self._positions() | self._dropout()
        return fields

    def _positions(self) -> dict[str, Any]:
        if self.options.has("--use-rotary-position-embeddings"):
            return {"position": "rope"}
        kinds = ("learned_absolute", "rope", "mrope", "yarn", "relative", "none")
        kind = self.options.text("--position-embedding-type", kinds)
        if kind in ("mrope", "yarn", "relative"):
            argument = f"--position-embedding-type {kind}"
            self.unmodelled.append((argument, "positions are rotary"))
            kind = "rope"
        if kind is None:
            return {}
        return {"position": "learned" if kind == "learned_absolute" else kind}

    def _dropout(self) -> dict[str, Any]:
        """Both kinds have a probability of 0.1 unless said otherwise."""
        given = [self.options.number(f"--{kind}-dropout") for kind in ("attention", "hidden")]
        if given == [None, None]:
            return {}
        on = [value is None or value > 0 for value in given]
        if on[0] != on[1]:
            only = "attention" if on[0] else "hidden states"
            self.unmodelled.append(
                (f"dropout of {only} alone", "attention and hidden states both have dropout")
            )
        return {"dropout": any(on)}

    def _vocabulary(self, base: Model) -> dict[str, Any]:
        options = self.options
        tokenizer = options.text("--tokenizer-type")
        size, padded = options.whole("--vocab-size"), options.whole("--padded-vocab-size")
        if padded is not None:
            return {"vocab_size": padded, "vocab_multiple": 1}
        if size is not None and tokenizer in ("NullTokenizer", "NullMultimodalTokenizer"):
            # It counts its end-of-document token on top.
            return {"vocab_size": size + 1}
        if tokenizer in _VOCABULARIES:
            return {"vocab_size": _VOCABULARIES[tokenizer]}
        if size is not None:
            return {"vocab_size": size}
        if self.num_layers is not None:
            self.notes.append(
                f"the arguments do not say the vocabulary: {base.vocab_size:,}, that of "
                f"model={base.name} (model.vocab_size= to change it)"
            )
        return {"vocab_size": base.vocab_size}

    def _latent_attention(self) -> Mla | None:
        options = self.options
        if not options.has("--multi-latent-attention"):
            return None

        def size(name: str, default: int) -> int:
            value = options.whole(name)
            return default if value is None else value

        return Mla(
            kv_lora_rank=size("--kv-lora-rank", 32),
            qk_nope_head_dim=size("--qk-head-dim", 128),
            qk_rope_head_dim=size("--qk-pos-emb-head-dim", 64),
            v_head_dim=size("--v-head-dim", 128),
            q_lora_rank=options.whole("--q-lora-rank"),
        )

    def _experts(self, ffn_hidden_size: int) -> Moe | None:
        options = self.options
        experts = options.whole("--num-experts")
        if not experts:
            return None
        assert self.num_layers is not None
        dense, period = self._expert_layers(self.num_layers)
        capacity = options.number("--moe-expert-capacity-factor")
        padded = options.has("--moe-pad-expert-input-to-capacity")
        if capacity is not None and capacity < 0:
            capacity = None
        if capacity is not None and not padded:
            self.unmodelled.append(
                (f"--moe-expert-capacity-factor {capacity:g}", "experts are padded to it")
            )
        if not options.has("--moe-grouped-gemm"):
            self.unmodelled.append(
                (
                    "no --moe-grouped-gemm",
                    "a rank's experts run as one grouped product all the same",
                )
            )
        if options.has("--moe-router-force-load-balancing"):
            self.notes.append("experts are forced to equal loads, as is predicted")
        own = options.whole("--moe-ffn-hidden-size")
        return Moe(
            num_experts=experts,
            top_k=options.whole("--moe-router-topk") or 2,
            ffn_hidden_size=ffn_hidden_size if own is None else own,
            shared_ffn_hidden_size=options.whole("--moe-shared-expert-intermediate-size") or 0,
            num_dense_layers=dense,
            layer_period=period,
            dispatcher=self._dispatcher(),
            capacity_factor=capacity,
        )

    def _dispatcher(self) -> str:
        kinds = ("allgather", "alltoall", "alltoall_seq", "flex")
        kind = self.options.text("--moe-token-dispatcher-type", kinds) or "allgather"
        deepep = self.options.has("--moe-enable-deepep")
        backend = self.options.text("--moe-flex-dispatcher-backend")
        if kind == "flex":
            if not deepep and backend is None:
                self.unmodelled.append(
                    ("--moe-token-dispatcher-type flex", "its exchange is DeepEP's")
                )
            return "deepep"
        return "alltoall" if kind == "alltoall_seq" else kind

    def _expert_layers(self, layers: int) -> tuple[int, int]:
        """Dense layers at the beginning, and how many layers apart expert layers are then."""
        text = self.options.text("--moe-layer-freq")
        if text is None:
            return 0, 1
        pattern = _layer_pattern(text, layers)
        first = pattern.index(1)
        for dense in range(first + 1):
            period = first - dense + 1
            made = [
                int(layer >= dense and (layer - dense + 1) % period == 0)
                for layer in range(layers)
            ]
            if made == pattern:
                return dense, period
        count = sum(pattern)
        period = max(1, round(layers / count))
        dense = max(0, layers - count * period)
        argument = f"--moe-layer-freq {text}"
        self.unmodelled.append(
            (argument, f"every {period} layers after the first {dense} have experts")
        )
        return dense, period


def _layer_pattern(text: str, layers: int) -> list[int]:
    """Megatron's ``--moe-layer-freq``: a period, or a sum of repeated lists of zeros and ones.

    Raises:
        InputError: for anything else, or a list of another length than the model.
    """
    allowed = "a whole number, or lists such as ([0]*3+[1]*58)"
    if text.isdigit() and int(text) > 0:
        return [int(layer % int(text) == 0) for layer in range(layers)]
    if not re.fullmatch(r"[\d\[\]()+*,\s]+", text):
        raise InputError("--moe-layer-freq", text, "is no pattern of layers", allowed)
    try:
        pattern = _pattern_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        raise InputError("--moe-layer-freq", text, "is no pattern of layers", allowed) from None
    if not isinstance(pattern, list) or len(pattern) != layers or 1 not in pattern:
        problem = f"does not say for each of {layers} layers whether it has experts"
        raise InputError("--moe-layer-freq", text, problem, allowed)
    return pattern


def _pattern_value(node: ast.expr) -> list[int] | int:
    value: list[int] | int
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.List(elts=elements):
            numbers = [_pattern_value(element) for element in elements]
            value = [int(each == 1) for each in numbers if isinstance(each, int)]
        case ast.BinOp(op=ast.Add()):
            left, right = _pattern_value(node.left), _pattern_value(node.right)
            if not (isinstance(left, list) and isinstance(right, list)):
                raise ValueError(ast.dump(node))
            value = left + right
        case ast.BinOp(op=ast.Mult()):
            left, right = _pattern_value(node.left), _pattern_value(node.right)
            if not (isinstance(left, list) and isinstance(right, int)):
                raise ValueError(ast.dump(node))
            if len(left) * right > MOST_LAYERS:
                raise ValueError("too many layers")
            value = left * right
        case _:
            raise ValueError(ast.dump(node))
    return value
