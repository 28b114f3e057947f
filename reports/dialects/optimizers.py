"""The optimizers of Transformers' Trainer, of torchtune and of NeMo AutoModel by their names."""

from __future__ import annotations

import re

from trainscout.reports.dialects.options import Options
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import ADAM_OPERATIONS


def optimizer_of(options: Options, *, halves: bool) -> str:
    """What ``training.optimizer`` is; ``halves``: weights would be kept in bf16 here."""
    kind, plain = _named(options)
    if plain == "sgd":
        return "sgd"
    is_adam, bits = plain.startswith("adam"), _bits(plain)
    if not is_adam:
        options.assume(f"optimizer {kind}", "the optimizer is Adam, with fp32 moments")
    if "paged" in kind.lower():
        options.note(f"{kind}: moments lie on the GPU, where they are while it has room")
    name = f"adam_{bits}" if is_adam and bits else "adam"
    halves &= plain.startswith("adam") and bool(options.on("--pure_bf16"))
    return f"{name}_pure_bf16" if halves else name


def moments_of(options: Options, recipe: Recipe) -> dict[str, object]:
    """What the optimizer switches in the software.

    Raises:
        InputError: for bitsandbytes' under the second FSDP, whose shards it does not update
            (0.50.2: mixed torch.Tensor and DTensor).
    """
    kind, plain = _named(options)
    made: dict[str, object] = {}
    if options.on("--optimizer.fused") or re.search("fused|paged|bnb", kind.lower()):
        made["fused_optimizer"] = True
    elif kind == options.text("--optim"):
        made["fused_optimizer"] = False
        if options.on("--optimizer.foreach") is False:
            made["optimizer_operations"] = ADAM_OPERATIONS
    torchao = re.search(r"^ao_|torch", kind.lower()) is not None
    bits = _bits(plain)
    if not bits or torchao:
        return made | ({"moments_8bit": "all"} if bits else {})
    second = options.text("--fsdp_version") == "2" and recipe.zero_stage >= 2
    if second and plain.startswith("adam"):
        problem = "does not update the shards of the second FSDP"
        raise InputError("--optim", kind, problem, "adamw_torch_8bit, adamw_torch")
    return made


def _bits(plain: str) -> str:
    """How many bits moments have, where it is 8 (torchao's fp8 among them) or 4."""
    narrow = {"8bit": "8bit", "fp8": "8bit", "4bit": "4bit"}
    return next((bits for word, bits in narrow.items() if word in plain), "")


def _named(options: Options) -> tuple[str, str]:
    """The optimizer as it is called, and without its module and that it is torchao's or paged:
    DeepSpeed makes what its configuration names, whatever the Trainer is told."""
    own = options.text("--optim")
    kind = options.text("--ds.optimizer.type") or own or "adamw"
    plain = kind.lower().rpartition(".")[2]
    return kind, re.sub(r"^(ao|paged)_?", "", plain)
