"""What a row trained of its model, and on what sequences."""

from __future__ import annotations

import re

from trainscout.simulators.laboratory.published.reading.words import Statement
from trainscout.simulators.predictor.question.training import ModulePrecision, Training
from trainscout.simulators.predictor.question.tuning import Dpo, Lora

from .frameworks import project_of

# Megatron-Bridge's and NeMo's benchmarks of LoRA adapt the QKV projections alone, by rank 16
# (``llama3_70b_lora_*_config``), and fine-tune on packed SQuAD, whose questions with their
# paragraphs have about this many tokens: the FLOPs a token that the LoRA rows print allow 76
# and more.
_BENCHMARKED = Lora(16, ("linear_qkv",))
_SQUAD_TOKENS = 200
# Names of linear layers in GPT-2's and Llama's implementations; Qwen's ``w1`` and ``w2`` are both
# of the first layer, Meta's ``w2`` is the second. ``c_proj`` ends attention and the MLP alike.
_TARGETS = {
    "linear_qkv": ("c_attn", "q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj", "c_proj"),
    "linear_fc1": ("gate_proj", "up_proj", "c_fc", "w1", "w3"),
    "linear_fc2": ("down_proj", "c_proj", "w2"),
}


def training_of(
    statement: Statement, batch: int, precision: str
) -> tuple[Training, tuple[str, ...]]:
    """The training of a row, and what was assumed."""
    assumed, packed, lora = list[str](), tuple[int, ...](), None
    # The word QLoRA says how frozen weights are kept.
    adapted = any(map(statement.says, ("adapters", "frozen_weights", "dora")))
    if adapted:
        lora = _adapters(statement)
        if not (statement.says("adapter_rank") and statement.says("adapter_targets")):
            words = f"rank {lora.rank} on {' and '.join(lora.targets)}"
            assumed.append(f"adapters not published: {words}, as in Megatron-Bridge's benchmarks")
    if statement.says("document_tokens"):
        packed = (int(statement.facts["document_tokens"]),)
    elif adapted or statement.says("tuning"):
        if project_of(statement) in ("bridge", "nemo"):
            packed = (_SQUAD_TOKENS,)
            words = f"sequences not published: of {_SQUAD_TOKENS} tokens, packed"
            assumed.append(f"{words}, as in the software's recipes")
        else:
            assumed.append("sequences not published: whole ones")
    # The length of the whole run is of no consequence for one step.
    optimizer = "adam_bf16" if statement.says("moments", "bf16") else "adam"
    if statement.says("states", "bf16"):
        optimizer = "adam_pure_bf16"
    training = Training(
        *(batch, 1e9, None, precision, optimizer),
        lora=lora,
        dpo=Dpo(kto=True) if statement.says("kto") else None,
        module_precision=_module_precision(statement),
        packed_lengths=packed,
    )
    return training, tuple(assumed)


def _module_precision(statement: Statement) -> ModulePrecision:
    """Groups of linear layers that a row says multiply in other precisions than the rest."""
    sixteen = (statement.get("bf16_modules") or "").split()
    eight = (statement.get("mxfp8_modules") or "").split()
    return ModulePrecision(**dict.fromkeys(sixteen, "bf16"), **dict.fromkeys(eight, "mxfp8"))


def _adapters(statement: Statement) -> Lora:
    """What a row says of its adapters; what it leaves out as in Megatron-Bridge's benchmarks."""
    rank = int(statement.facts.get("adapter_rank", _BENCHMARKED.rank))
    named = re.findall(r"\w+", statement.facts.get("adapter_targets", ""))
    targets = tuple(
        target
        for target, names in _TARGETS.items()
        if "all" in named or target in named or any(name in named for name in names)
    )
    dropout = float(statement.facts.get("adapter_dropout", 0))
    kept = statement.get("frozen_weights") or "16bit"
    dora = statement.says("dora")
    return Lora(rank, targets or _BENCHMARKED.targets, dropout, kept, dora)
