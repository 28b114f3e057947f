"""From the shape columns of a row to a declared model."""

from __future__ import annotations

import dataclasses
import math
import re
from statistics import NormalDist
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.published.reading.rows import Row, given
from trainscout.simulators.laboratory.published.reading.words import Statement
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.layer_pattern import format_layers
from trainscout.simulators.predictor.question.layers import MOE, Mla
from trainscout.simulators.predictor.question.model import Model

from .era import era_of
from .families import Family, declared_shape, family_of, other_architecture
from .frameworks import pads_experts, project_of
from .outcome import CannotReplayError
from .presets import is_library, moe_preset

_DEFAULT_VOCABULARY = 51200
# Trained without dropout: MLPerf's GPT-3 (NVIDIA/NeMo-Framework-Launcher,
# conf/training/gpt3/175b_mlperf.yaml), all that GPT-NeoX configures (its configs), and what
# trainers like nanoGPT do (its train.py: "for pretraining 0 is good") and llm.c (it has none).
_NO_DROPOUT = ("mlperf", "gpt_neox", "pytorch", "ddp", "llm_c")
# How much more than the mean the busiest GPU of an expert-parallel group has to do under a router
# whose balance is not forced, in the first tens of iterations, which benchmarks time, and trained.
# The step of Megatron-LM's release test of Mixtral falls from 11.1 s in its first 30 iterations to
# 8.95 s after 6,000, as it is predicted to from a load of 1.61 to one of 1.13; four pairs of Qwen3
# with balance forced and left alone (Megatron-MoE-ModelZoo) have 1.61 to 1.66. Published weights
# that are fine-tuned (Qwen3 in prime-rl, 4.39 s forced and 6.11 not) have 1.7. All are on eight
# GPUs, of one expert each or 16.
_UNTRAINED_ROUTER, _TRAINED_ROUTER = 1.6, 1.13
# PyTorch's trainers leave routers alone unless told otherwise (TorchTitan's
# ``_debug_force_load_balance``), from scratch or in published weights.
_UNFORCED = ("torchtitan", "fsdp1", "fsdp2", "kempnerforge", "huggingface", "torchtune")
# Routers of weights that are fine-tuned are left alone but in these libraries' benchmarks of it.
_FORCE_WHERE_TUNED = ("bridge", "nemo")
# Where TorchTitan and NeMo AutoModel (``FakeBalancedGate``) force routers, a token's experts are
# neighbours; Megatron-Core's are drawn (``apply_random_logits``).
_FORCED_IN_TURN = ("torchtitan", "automodel")


def model_of(row: Row, statement: Statement) -> tuple[Model, tuple[str, ...]]:
    """The model of a row and what was assumed about it.

    Raises:
        CannotReplayError: for an architecture that is not a decoder-only transformer, or a
            shape that was not published.
    """
    assumed: list[str] = []
    if (name := declared_shape(row.model)) is not None:
        model = load_catalogue().models[name]
        layers = given(row.num_layers, model.num_layers)
        alike = given(row.hidden, model.hidden_size) == model.hidden_size
        if alike and layers <= model.num_layers:
            cut = _cut(model, layers, assumed)
            return _declared(row, statement, cut, assumed), tuple(assumed)
    if reason := other_architecture(row.model) or _other_training(statement):
        raise CannotReplayError(reason)
    layers = _required("num_layers", row.num_layers)
    hidden = _required("hidden", row.hidden)
    heads = _required("num_heads", row.num_heads)
    sequence = _required("seq_len", row.seq_len)
    gated = bool(row.gated_mlp)
    family, about_family = family_of(row.model, gated)
    assumed += about_family
    if row.gated_mlp is None:
        gated = family.normalization == "rmsnorm"
        assumed.append(f"MLP not published: {'gated' if gated else 'two projections'}")
    vocabulary = given(row.vocab, _DEFAULT_VOCABULARY)
    if row.vocab is None:
        assumed.append(f"vocabulary not published: {vocabulary}")
    moe = _moe(row, statement, family, assumed)
    ffn = given(row.ffn_hidden, 4 * hidden)
    if row.ffn_hidden is None and moe is not None and not moe.num_dense_layers:
        ffn = moe.ffn_hidden_size
    elif row.ffn_hidden is None:
        assumed.append(f"MLP width not published: {ffn}")
    if statement.says("parallel_block"):
        assumed.append("the parallel transformer block is replayed as a sequential one")
    if statement.says("sliding"):
        assumed.append("sliding-window attention is replayed as full attention")
    mla = _mla(statement, family)
    head_dim = int(statement.facts.get("head_dim", family.head_dim or 0)) or None
    tied = family.tied_embeddings
    if statement.says("embeddings"):
        tied = statement.says("embeddings", "tied")
    elif moe is None and mla is None:
        groups = given(row.num_query_groups, heads)
        attention = 2 * hidden * (heads + groups) * (head_dim or hidden // heads)
        blocks = layers * (attention + (3 if gated else 2) * hidden * ffn)
        tied = _tied(row, blocks, vocabulary * hidden, tied, assumed)
    dropout = family.dropout and project_of(statement) not in _NO_DROPOUT
    model = Model(
        name=row.model or "unnamed",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        ffn_hidden_size=ffn,
        vocab_size=vocabulary,
        sequence_length=sequence,
        source=row.source,
        num_query_groups=None if mla else row.num_query_groups,
        head_dim=None if mla else head_dim,
        gated_mlp=gated,
        normalization=statement.get("normalization") or family.normalization,
        position=statement.get("positions") or family.position,
        rotary_fraction=float(statement.get("rotary_fraction") or 1),
        linear_bias=_has(statement, "linear_biases", family.linear_bias),
        qkv_bias=_has(statement, "linear_biases", family.qkv_bias),
        qk_norm=_has(statement, "qk_norm", family.qk_norm),
        post_norms=family.post_norms,
        clamped_mlp=family.clamped_mlp,
        scaled_rope=family.scaled_rope,
        dropout=_has(statement, "dropout", dropout),
        tied_embeddings=tied,
        num_mtp_layers=_mtp_layers(statement, assumed),
        moe=moe,
        mla=mla,
    )
    return _with_ends_in_bf16(model, statement), tuple(assumed)


def _cut(model: Model, layers: int, assumed: list[str]) -> Model:
    """The first layers of a declared model, as people measure what does not fit."""
    if layers == model.num_layers:
        return model
    assumed.append(f"the first {layers} of its {model.num_layers} layers")
    kept = model.pattern[:layers]
    mixers, mlps = {layer.mixer for layer in kept}, {layer.mlp for layer in kept}
    return dataclasses.replace(
        model,
        num_layers=layers,
        layers=format_layers(kept),
        kinds={name: mixer for name, mixer in model.kinds.items() if name in mixers},
        moe=model.moe if MOE in mlps else None,
    )


def _declared(row: Row, statement: Statement, model: Model, assumed: list[str]) -> Model:
    """A declared model as a row trains it."""
    assumed.append(f"its layers are those of {model.name} (conf/model)")
    moe = model.moe and dataclasses.replace(model.moe, **_routing(row, statement, assumed))
    if "super" in model.name and not statement.says("mtp"):
        assumed.append("multi-token prediction not published: none")
    model = dataclasses.replace(
        model,
        name=row.model,
        sequence_length=_required("seq_len", row.seq_len),
        num_mtp_layers=_mtp_layers(statement, assumed),
        moe=moe,
        towers=model.towers if statement.says("towers", "used") else (),
    )
    return _with_ends_in_bf16(model, statement)


def _with_ends_in_bf16(model: Model, statement: Statement) -> Model:
    """The layers at either end that a row says to stay in bf16 do."""
    both = int(statement.get("ends_in_bf16") or 0)
    last = int(statement.get("last_in_bf16") or both)
    return dataclasses.replace(
        model, num_layers_at_start_in_bf16=both, num_layers_at_end_in_bf16=last
    )


def _has(statement: Statement, fact: str, usual: bool) -> bool:
    """Whether a model has something: as its row says, else as its family does."""
    return not statement.says(fact, "no") if statement.says(fact) else usual


def _tied(row: Row, blocks: int, table: int, usual: bool, assumed: list[str]) -> bool:
    """Whether the head uses the embedding's table, where the printed parameter count tells.

    ``blocks`` and ``table`` are parameters of all layers and of one vocabulary table. A count
    tells when it is within 0.5 % of one sum, and the table makes more difference than rounding.
    """
    if row.params_b is None or table < 0.05 * blocks:
        return usual
    printed = row.params_b * 1e9
    fits = {
        tied: abs(printed / (blocks + table * (2 - tied)) - 1) < 0.005 for tied in (True, False)
    }
    if fits[usual] or not fits[not usual]:
        return usual
    assumed.append(f"{'tied' if not usual else 'untied'} embeddings, by the parameter count")
    return not usual


def _required(column: str, value: int | None) -> int:
    if value is None:
        raise CannotReplayError(f"{column} is not published")
    return value


def _other_training(statement: Statement) -> str | None:
    """Why what was trained, or how, is none that a job can describe; None when it may be one."""
    if statement.says("other_training"):
        return f"{statement.facts['other_training']} is not modelled of rows"
    project = project_of(statement)
    if statement.says("dora") and project not in ("huggingface", "deepspeed", "bridge", "nemo"):
        return "dora is modelled as PEFT or Megatron-Bridge run it"
    if statement.says("kto") and project not in ("huggingface", "deepspeed"):
        return "kto is modelled as TRL runs it"
    if statement.says("not_causal"):
        return f"{statement.facts['not_causal']}: not a decoder-only transformer"
    return None


def _moe(row: Row, statement: Statement, family: Family, assumed: list[str]) -> Moe | None:
    if given(row.num_experts, 0) <= 1:
        if given(row.ep, 1) > 1:
            raise CannotReplayError(f"ep={row.ep} of a model without experts (num_experts)")
        return None
    width = row.moe_ffn_hidden
    if width is None:
        # Megatron-LM's default of --moe-ffn-hidden-size.
        width = _required("moe_ffn_hidden", row.ffn_hidden)
        assumed.append(f"expert width not published: {width}, that of the dense MLP")
    shared = family.shared_experts * width
    if statement.says("shared_experts"):
        number, each = map(int, re.findall(r"\d+", statement.facts["shared_experts"]))
        shared = number * each
    elif statement.says("shared_width"):
        shared = int(statement.facts["shared_width"])
    routing = _routing(row, statement, assumed)
    dense, period = given(row.num_dense_layers, 0), 1
    if family.interleaved_experts and dense:
        # The column counts all dense layers, here every other one.
        dense, period = 0, 2
    experts = _required("num_experts", row.num_experts)
    return Moe(
        num_experts=experts,
        top_k=_required("topk", row.topk),
        ffn_hidden_size=width,
        shared_ffn_hidden_size=shared,
        num_dense_layers=dense,
        layer_period=period,
        **routing,
    )


def _routing(row: Row, statement: Statement, assumed: list[str]) -> dict[str, Any]:
    """Where tokens go, and how they travel."""
    preset = moe_preset(row, statement, era_of(row, statement))
    assumed += preset.assumed
    in_turn = statement.label.get("project") in _FORCED_IN_TURN
    return {
        "dispatcher": "deepep" if preset.deepep else "alltoall",
        "load_imbalance": _load_imbalance(row, statement, assumed),
        "capacity_factor": _capacity_factor(statement, assumed),
        "experts_in_turn": in_turn and statement.says("router", "forced"),
    }


def _mtp_layers(statement: Statement, assumed: list[str]) -> int:
    """Multi-token-prediction modules, where the row tells of them."""
    stated = statement.get("mtp")
    if stated == "counted":
        assumed.append("one multi-token-prediction module, by the FLOPs per token")
    if stated == "unsaid":
        assumed.append("multi-token prediction not published: none")
    return {"on": 1, "counted": 1, "two": 2}.get(str(stated), 0)


def _capacity_factor(statement: Statement, assumed: list[str]) -> float | None:
    if statement.says("capacity"):
        return float(statement.facts["capacity"])
    if statement.says("tokens", "dropped"):
        assumed.append("capacity factor not published: 1")
        return 1.0
    return None


def _load_imbalance(row: Row, statement: Statement, assumed: list[str]) -> float:
    """How much more than the mean the busiest GPU has to do."""
    loads = {"real": _UNTRAINED_ROUTER, "trained": _TRAINED_ROUTER}
    # Only Megatron-Bridge's recipes for performance force the balance.
    unsaid = "real" if is_library(statement) else ""
    load = loads.get(statement.get("router") or unsaid, 1.0)
    ep = given(row.ep, 1)
    project = statement.label.get("project")
    if ep == 1 and load > 1:
        # One GPU has all that tokens ask for, and no more unless its experts are padded.
        number = given(row.num_experts, 1) if pads_experts(statement) else 1
        load = 1 + (load - 1) * _spread(number) / _spread(8)
    tuned = statement.says("tuning") or statement.says("adapters")
    left_alone = project in _UNFORCED or (tuned and project not in _FORCE_WHERE_TUNED)
    if left_alone and ep > 1 and not statement.says("router"):
        load = 1 + (_UNTRAINED_ROUTER - 1) * _spread(min(ep, 8)) / _spread(8)
    if load > 1:
        assumed.append(f"busiest experts loaded {load:.3g} times the mean")
    return load


def _spread(ranks: int) -> float:
    """How far the busiest of up to eight ranks is above the mean, in standard deviations of an
    eighth of the experts, where popularities of eighths are independent and normal (Blom 1958: the
    largest of a sample)."""
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return largest / math.sqrt(8 / ranks)


def _mla(statement: Statement, family: Family) -> Mla | None:
    if family.mla is None:
        return None
    ranks = family.mla
    if statement.says("latent"):
        query, kv = (int(word) for word in re.findall(r"\d+", statement.facts["latent"]))
        ranks = dataclasses.replace(ranks, q_lora_rank=query, kv_lora_rank=kv)
    if statement.says("latent_kv"):
        ranks = dataclasses.replace(ranks, kv_lora_rank=int(statement.facts["latent_kv"]))
    if statement.says("latent_q", "no"):
        ranks = dataclasses.replace(ranks, q_lora_rank=None)
    return ranks
