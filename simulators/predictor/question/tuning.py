"""What of a model is trained, and on what: adapters, frozen parts, packed sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .errors import InputError, require_choice, require_positive
from .model import MOST_TOKENS, Model

HUGGING_FACE = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Megatron-Bridge's names of projections into attention or a scan, out of it, and of the two of an
MLP or of experts; and Transformers' of the layers that Megatron fuses, in models with a gate."""
LORA_TARGETS = tuple(HUGGING_FACE)
TARGET_OF = {name: target for target, names in HUGGING_FACE.items() for name in names}
TARGET_OF["qkv_proj"] = "linear_qkv"
LANGUAGE_MODEL, TOWERS, PROJECTORS = "language_model", "towers", "projectors"
FROZEN = (LANGUAGE_MODEL, TOWERS, PROJECTORS)
_MOST_RANK = 4096
_SCALES, _SCALES_OF_SCALES = 1 / 64, 1 / (64 * 256)


class Storage(NamedTuple):
    """Bytes of one weight: ``packed``, of its ``scales``, and ``moved`` by so many ``launches`` to
    make it 16-bit, which are read and written."""

    packed: float
    scales: float
    moved: float
    launches: int


# By what training.lora.frozen_weights calls them.
PACKED = {
    # A copy in 16 bits, multiplied by the scales where it lies.
    "int8": Storage(1, 0, 1 + 3 * 2, 2),
    "nf4": Storage(1 / 2, 4 * _SCALES, 1 / 2 + 4 * _SCALES + 2, 1),
    "nf4_double": Storage(
        1 / 2,
        _SCALES + 4 * _SCALES_OF_SCALES,
        # Scales are read and written in fp32, the offset added where they lie, then read.
        1 / 2 + (1 + 4 + 8 + 4) * _SCALES + 2,
        3,
    ),
}
FROZEN_WEIGHTS = ("16bit", *PACKED)


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters beside frozen weights (Hu et al. 2021): ``W x + B A x``."""

    rank: int
    """Rows of A and columns of B."""
    targets: tuple[str, ...] = LORA_TARGETS
    """Linear layers that have adapters, of ``linear_qkv``, ``linear_proj``, ``linear_fc1`` and
    ``linear_fc2``."""
    dropout: float = 0.0
    """Chance that an element of an adapter's input is dropped (PEFT's ``lora_dropout``)."""
    frozen_weights: str = "16bit"
    """What frozen weights of layers are kept in: ``16bit``, or as bitsandbytes has them ``int8``,
    ``nf4`` (QLoRA) or ``nf4_double``, whose scales are quantised too."""
    dora: bool = False
    """Rows of adapted weights have a trained magnitude each (PEFT's ``use_dora``)."""

    def check(self) -> None:
        """Refuse impossible adapters."""
        require_positive("training.lora.rank", self.rank, most=_MOST_RANK)
        for name in self.targets:
            if name in TARGET_OF:
                field, problem = "training.lora.targets", "is a part of another"
                raise InputError(field, name, problem, LORA_TARGETS, TARGET_OF[name])
        _require_some("training.lora.targets", self.targets, LORA_TARGETS)
        if not self.targets:
            raise InputError("training.lora.targets", "[]", "adapts nothing", LORA_TARGETS)
        if not 0 <= self.dropout < 1:
            chance = "a chance of 0 or more and below 1"
            raise InputError("training.lora.dropout", self.dropout, "is out of range", chance)
        require_choice("training.lora.frozen_weights", self.frozen_weights, FROZEN_WEIGHTS)

    def adapts_experts(self, model: Model) -> bool:
        """Whether experts of a model have adapters."""
        return model.moe is not None and bool({"linear_fc1", "linear_fc2"} & {*self.targets})

    @property
    def packs_weights(self) -> bool:
        """Whether frozen weights are kept in fewer than 16 bits."""
        return self.frozen_weights in PACKED


@dataclass(frozen=True)
class Dpo:
    """Direct preference optimisation (Rafailov et al. 2023): a micro-batch's chosen and rejected
    sequences pass the trained model both ways, and a frozen copy of what it was forward."""

    precomputed: bool = False
    """The frozen copy's log-probabilities come with the data: it is neither held nor run."""
    kto: bool = False
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024): sequences come one by one, and each
    micro-batch with as many answers to other questions, which both models pass forward too."""


_LOSSES = ("kl", "jsd", "jsd_pieces")


@dataclass(frozen=True)
class Distillation:
    """Distillation of logits (Hinton et al. 2015): the loss is the divergence of the trained
    model's probabilities from those of a teacher, over the vocabulary."""

    teacher: Model
    """The frozen model that each micro-batch passes forward, cut by the recipe's degrees as the
    trained one is."""
    sharded: bool = True
    """Under ``zero_stage=3`` its weights are shared out as the trained model's; without, every
    rank has them whole, as under lower stages."""
    fp32: bool = False
    """Its weights are kept in fp32 where training has fewer bits, too."""
    borrowed: bool = False
    """It is the trained model without its adapters, and has no weights of its own (ms-swift, where
    both have one name and adapters alone are trained)."""
    loss: str = "kl"
    """ModelOpt's Kullback-Leibler divergence (``kl``), or as PyTorch runs Jensen and Shannon's,
    of all logits at once (``jsd``: TRL's GKDTrainer) or by pieces of 512 tokens, all of which are
    kept (``jsd_pieces``: ms-swift)."""

    def check(self) -> None:
        """Refuse an impossible teacher."""
        require_choice("training.distillation.loss", self.loss, _LOSSES)
        try:
            self.teacher.check()
        except InputError as error:
            field, name = "training.distillation.teacher", self.teacher.name
            raise InputError(field, name, f"{error.field} {error.problem}") from error

    def check_for(self, model: Model, dpo: Dpo | None, lora: Lora | None) -> None:
        """Refuse a teacher of another model's."""
        field, name = "training.distillation.teacher", self.teacher.name
        if self.teacher.vocab_size != model.vocab_size:
            problem = f"has a vocabulary of {self.teacher.vocab_size:,}, {model.name} one of "
            problem += f"{model.vocab_size:,}"
            raise InputError(field, name, problem, "a model of the same vocabulary")
        if self.borrowed and (lora is None or self.teacher != model):
            problem = f"is not {model.name} without adapters"
            raise InputError(field, name, problem, "training.lora, and the same model")
        if dpo is not None:
            problem = "is not modelled with training.dpo"
            raise InputError(field, name, problem, "one of the two")
        if model.num_mtp_layers:
            problem = f"is not modelled of {model.name}, which predicts further tokens"
            raise InputError(field, name, problem, "model.num_mtp_layers=0")


def check_frozen(frozen: Sequence[str]) -> None:
    """Refuse parts that no model has."""
    _require_some("training.frozen", frozen, FROZEN)


def check_packed(lengths: Sequence[int]) -> None:
    """Refuse lengths that no sequence has."""
    for length in lengths:
        require_positive("training.packed_lengths", length, most=MOST_TOKENS)


def _require_some(field: str, value: Sequence[str], allowed: Sequence[str]) -> None:
    for name in value:
        require_choice(field, name, allowed)
    if len(set(value)) < len(value):
        raise InputError(field, ", ".join(value), "names one twice", allowed)


def attended_length(sequence: int, packed: Sequence[int]) -> int:
    """The length of equal sequences that attention takes as long for as for those packed into one
    of ``sequence`` tokens: attention goes by squares, so ``E[l^2] / E[l]``."""
    if not packed:
        return sequence
    return min(sequence, round(sum(each * each for each in packed) / sum(packed)))


def packed_documents(sequence: int, packed: Sequence[int]) -> int:
    """How many sequences are packed into one of ``sequence`` tokens; 0 where none is."""
    return max(1, round(sequence * len(packed) / sum(packed))) if packed else 0


def why_unpacked(model: Model) -> str:
    """Why sequences that are packed are not modelled of it; empty where they are."""
    mixers = [model.mixer(layer) for layer in model.layer_kinds]
    attentions = [mixer.attention for mixer in mixers if mixer is not None]
    if model.pooled:
        return "one vector is made of a sequence"
    if any(each is not None and each.index is not None for each in attentions):
        return "an indexer chooses keys"
    return "layers look at an encoder" if any(model.looked_at) else ""


def check_tuning(
    model: Model, sequence: int, lora: Lora | None, frozen: Sequence[str], packed: Sequence[int]
) -> None:
    """Refuse what cannot be tuned of a model, and what is not modelled."""
    longest = max(packed, default=0)
    if model.diffusion is not None and (frozen or packed):
        name = "frozen" if frozen else "packed_lengths"
        problem = "is not modelled of a diffusion transformer, whose training and LoRA are"
        raise InputError(f"training.{name}", "...", problem, f"training.{name}=[]")
    if model.diffusion is not None and lora is not None and lora.packs_weights:
        problem = "is not modelled of a diffusion transformer"
        raise InputError("training.lora.frozen_weights", lora.frozen_weights, problem, "16bit")
    if lora is not None and lora.dora and lora.adapts_experts(model):
        problem, allowed = "is not modelled of experts", "other training.lora.targets"
        raise InputError("training.lora.dora", True, problem, allowed)
    if longest > sequence:
        problem = f"is longer than the {sequence} tokens that it is packed into"
        raise InputError("training.packed_lengths", longest, problem, f"1..{sequence}")
    if packed and (where := why_unpacked(model)):
        problem, allowed = f"is not modelled where {where}", "training.packed_lengths=[]"
        raise InputError("training.packed_lengths", longest, problem, allowed)
    if not model.towers:
        for part in set(frozen) & {TOWERS, PROJECTORS}:
            problem = f"is no part of {model.name}, which has no towers"
            raise InputError("training.frozen", part, problem, LANGUAGE_MODEL)
    if lora is not None and LANGUAGE_MODEL in frozen:
        problem = "is frozen by training.lora already, but for its adapters"
        raise InputError("training.frozen", LANGUAGE_MODEL, problem, "the other parts")
    whole = {LANGUAGE_MODEL, *((TOWERS, PROJECTORS) if model.towers else ())}
    if whole <= set(frozen):
        problem = "leaves nothing to train"
        raise InputError("training.frozen", ", ".join(frozen), problem, "some of its parts")
