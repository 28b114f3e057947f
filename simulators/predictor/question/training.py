"""How a model is trained, and in which precision, as data."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .errors import InputError, require_choice, require_positive
from .model import MOST_TOKENS, Model
from .tuning import (
    LANGUAGE_MODEL,
    Distillation,
    Dpo,
    Lora,
    check_frozen,
    check_packed,
    check_tuning,
)

# Linear layers in 8 bits by scaling recipe: one scale a tensor from earlier steps (``fp8``,
# delayed scaling) or from the tensor itself (``fp8_current``), one for 128 (of weights 128 x 128)
# values (``fp8_block``) or for 32 (``mxfp8``); or in 4 bits, one for 16 values under one for the
# tensor (``nvfp4``).
TENSOR_CORE_TYPE = {"fp8_current": "fp8", "nvfp4": "fp4"}
_MOST_SEQUENCES = 10**8
# Of the numbers that linear layers multiply.
PRECISION_BITS = {
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "fp8_current": 8,
    "fp8_block": 8,
    "mxfp8": 8,
    "nvfp4": 4,
    "fp32": 32,
    "tf32": 19,
}
PRECISIONS = tuple(PRECISION_BITS)
QUANTISED = tuple(name for name, bits in PRECISION_BITS.items() if bits <= 8)
"""Those in which linear layers multiply 8 or 4 bits."""
ACTIVATION_BYTES = {name: 4 if bits > 16 else 2 for name, bits in PRECISION_BITS.items()}


def operand_of(precision: str) -> str:
    """The type of the operands that linear layers multiply."""
    return TENSOR_CORE_TYPE.get(precision, precision)


def arithmetic_of(precision: str) -> str:
    """What a GPU must have to multiply them, by the names of its peaks."""
    operand = operand_of(precision)
    return "fp8" if PRECISION_BITS.get(operand) == 8 else operand


@dataclass(frozen=True)
class Optimizer:
    """What an optimizer keeps of each parameter besides its gradient: ``moment_bytes`` and, unless
    16-bit weights are updated themselves (not ``has_copy``), an fp32 copy. ``in_one_pass``: its
    kernel does all of an update, whatever the framework."""

    moment_bytes: float
    has_copy: bool = True
    in_one_pass: bool = False

    @property
    def is_8bit(self) -> bool:
        """Whether a moment has 8 bits or fewer."""
        return self.moment_bytes < 4


# Two moments of a byte, with an fp32 scale for every 256 of each (bitsandbytes and torchao;
# Dettmers et al. 2022, 8-bit optimizers via block-wise quantization). Those of tensors below 4,096
# elements stay in fp32, which is left out.
_EIGHT_BIT = 2 * (1 + 4 / 256)
# torchao's of 4 bits, for every 128 of each; its moments in fp8 have as many bytes as in 8 bits.
_FOUR_BIT = 2 * (0.5 + 4 / 128)
OPTIMIZERS = {
    "adam": Optimizer(8),
    "adam_bf16": Optimizer(4),
    "adam_8bit": Optimizer(_EIGHT_BIT, in_one_pass=True),
    "adam_pure_bf16": Optimizer(4, has_copy=False),
    "adam_8bit_pure_bf16": Optimizer(_EIGHT_BIT, has_copy=False, in_one_pass=True),
    "adam_4bit": Optimizer(_FOUR_BIT, in_one_pass=True),
    "adam_4bit_pure_bf16": Optimizer(_FOUR_BIT, has_copy=False, in_one_pass=True),
    "sgd": Optimizer(4, in_one_pass=True),
}
# Of ``_single_tensor_adamw`` (PyTorch's ``torch/optim/adam.py``), and of that of many tensors.
ADAM_OPERATIONS = 8


@dataclass(frozen=True)
class ModulePrecision:
    """In 8 and 4 bits, what groups of linear layers multiply in instead (null: as the others)."""

    qkv: str | None = None
    """Queries, keys and values, to and from their narrow widths too."""
    attn_out: str | None = None
    """Attention's output."""
    mixer_in: str | None = None
    """Into another mixer."""
    mixer_out: str | None = None
    """Out of another mixer."""
    mlp: str | None = None
    """Dense MLPs."""
    shared_experts: str | None = None
    """Experts of all tokens."""
    latent: str | None = None
    """To and from the width in which tokens go to experts."""
    experts: str | None = None
    """Experts."""
    mtp: str | None = None
    """Modules that predict further tokens."""

    def check(self) -> None:
        for name, precision in self.stated:
            field_name = f"training.module_precision.{name}"
            require_choice(field_name, precision, ("bf16", *QUANTISED))

    @property
    def stated(self) -> tuple[tuple[str, str], ...]:
        """The groups that have one of their own, and that."""
        each = ((one.name, getattr(self, one.name)) for one in fields(self))
        return tuple((name, precision) for name, precision in each if precision is not None)


@dataclass(frozen=True)
class Training:
    """How the model is trained; lengths in tokens."""

    global_batch_size: int
    """Sequences a step; of DPO pairs, as ``recipe.micro_batch`` then counts."""
    tokens: float
    """How many the whole run trains on, both sequences of a pair, for its days and cost."""
    sequence_length: int | None = None
    """None means the model's."""
    precision: str = "bf16"
    """Of linear layers, unless the recipe says another."""
    optimizer: str = "adam"
    """``adam`` (two fp32 moments), ``sgd`` (one), ``adam_bf16`` (two bf16), ``adam_8bit`` or
    ``adam_4bit`` (two of 8 or 4 bits, scaled by blocks), ``adam_pure_bf16`` (two bf16, and no fp32
    copy of the weights, which are updated as they are), ``adam_8bit_pure_bf16`` or
    ``adam_4bit_pure_bf16``."""
    lora: Lora | None = None
    """Train low-rank adapters and nothing else of the language model (LoRA); None trains its
    weights."""
    frozen: tuple[str, ...] = ()
    """Parts without gradients: ``language_model``, ``towers``, ``projectors``."""
    dpo: Dpo | None = None
    """Train on pairs of a chosen and a rejected sequence, or on sequences that are one or the
    other, against a frozen reference."""
    distillation: Distillation | None = None
    """Learn a teacher's probabilities instead of the next token."""
    nvfp4_hadamard: bool = True
    """In 4 bits, operands of weight gradients go through a Hadamard transform."""
    nvfp4_stochastic_rounding: bool = True
    """In 4 bits, gradients are rounded up or down by chance."""
    nvfp4_two_dimensional: bool = True
    """In 4 bits, weights are scaled by blocks of 16 x 16, the same for both products."""
    module_precision: ModulePrecision = field(default_factory=ModulePrecision)
    """Groups of linear layers that multiply in more bits than the others."""
    packed_lengths: tuple[int, ...] = ()
    """Lengths of the sequences that are packed into one of ``sequence_length`` tokens, as a sample
    or equal steps of their distribution; attention sees each by itself. Empty: one each."""
    loader_samples_per_s: float | None = None
    """What the data loader of one data-parallel rank delivers a second, measured without training,
    counted as ``global_batch_size`` is: no step is shorter than what it takes for the rank's
    share. None: nothing waits for data."""

    @property
    def trains_weights(self) -> bool:
        """Whether the language model's own weights have gradients."""
        return self.lora is None and LANGUAGE_MODEL not in self.frozen

    @property
    def sequences_per_sample(self) -> int:
        """Sequences that one of the batch stands for."""
        return 1 if self.dpo is None or self.dpo.kto else 2

    def check(self) -> None:
        field = "training.global_batch_size"
        require_positive(field, self.global_batch_size, most=_MOST_SEQUENCES)
        require_positive("training.tokens", self.tokens)
        if self.loader_samples_per_s is not None:
            require_positive("training.loader_samples_per_s", self.loader_samples_per_s)
        if self.sequence_length is not None:
            require_positive("training.sequence_length", self.sequence_length, most=MOST_TOKENS)
        require_choice("training.precision", self.precision, PRECISIONS)
        require_choice("training.optimizer", self.optimizer, tuple(OPTIMIZERS))
        self.module_precision.check()
        if self.lora is not None:
            self.lora.check()
        if self.distillation is not None:
            self.distillation.check()
        check_frozen(self.frozen)
        check_packed(self.packed_lengths)

    def check_for(self, model: Model) -> None:
        """Refuse what cannot be trained of a model."""
        length = self.sequence_length or model.sequence_length
        check_tuning(model, length, self.lora, self.frozen, self.packed_lengths)
        images = model.pooled is not None and bool(model.pooled.patch_size)
        if images and model.position == "learned" and length != model.sequence_length:
            problem = "is not of images, whose patches have learned positions"
            allowed = f"{model.sequence_length}, or null"
            raise InputError("training.sequence_length", length, problem, allowed)
        diffusion = model.diffusion
        if diffusion and diffusion.modulation != "shared" and length <= diffusion.text_tokens:
            problem = f"leaves no latents beside {diffusion.text_tokens} tokens of text"
            allowed = f"more than {diffusion.text_tokens}"
            raise InputError("training.sequence_length", length, problem, allowed)
        wordless = model.diffusion is not None or model.pooled is not None
        if wordless and (self.dpo or self.distillation):
            problem = f"is of probabilities of words, which {model.name} has none of"
            name = "dpo" if self.dpo else "distillation"
            raise InputError(f"training.{name}", "...", problem, "null")
        if self.distillation is not None:
            self.distillation.check_for(model, self.dpo, self.lora)
