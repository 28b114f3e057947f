"""A recipe's configuration of torchtune as a job: Transformers' arguments by other names
(``fine_tuners.yaml``), and those that its components stand for.

Names and defaults are those of the recipes at bd2a0fc7 (2026). Weights, moments and sums of
gradients have the type that ``dtype`` says (``training/_distributed.py``: FSDP is given no mixed
precision).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from trainscout.reports.dialects.fine_tuning import TORCHTUNE, tool_of
from trainscout.reports.dialects.huggingface_reader import HuggingFaceReader
from trainscout.reports.dialects.options import Options, Reading
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training

# What is trained, of a step with generated completions under another name.
_MODELS = ("--model._component_", "--policy_model._component_")
# ``lora_llama3_1_8b``, ``qwen3_8b_instruct``: how it is trained, and what it was trained for.
_COMPONENT = re.compile(r"(q?lora_)?(\w+?)(?:_instruct|_base)?")
_STAGES = ("dpo", "ppo", "grpo")
_OF_MLP = "gate_proj,up_proj,down_proj"


class RecipeReader(HuggingFaceReader):
    """Reads what a file and the command line behind it say; ``program`` is the recipe. Settings
    that name components stand for Trainer's arguments (``words``)."""

    tool: ClassVar[str]
    known: ClassVar[Path]
    meant: ClassVar[tuple[str, ...]]
    """Settings that ``words`` are made of."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], program: str = ""
    ) -> None:
        # What says null says nothing.
        told = [word for word in words if not word.lower().endswith("=none")]
        own = list(self.words(Options(told), program))
        super().__init__([*own, *told], environment, program, self.tool)
        tool = tool_of((), self.tool)
        self.software = "" if tool is None else tool.software
        for name in ("--fsdp_version", *self.meant):
            self.options.has(name)

    def words(self, told: Options, program: str) -> Iterable[str]:
        """Trainer's arguments that settings stand for."""
        raise NotImplementedError

    def _optimizer(self, *, halves: bool) -> str:
        """``halves``: FSDP leaves weights in their type here."""
        whole = self._precision("bf16") == "bf16" and not self.options.has("--lora_target")
        return super()._optimizer(halves=halves or whole)

    def _sharding(self, world: int) -> dict[str, Any]:
        return {"zero_stage": 0} if world == 1 else super()._sharding(world)

    def reading(self) -> Reading:
        return self.options.reading(self.known)


class TorchtuneReader(RecipeReader):
    """Reads torchtune's."""

    tool = TORCHTUNE
    known = Path(__file__).parent / "torchtune_arguments.yaml"
    meant = (
        *(*_MODELS, "--checkpointer.checkpoint_dir", "--loss._component_"),
        *("--model.lora_attn_modules", "--model.apply_lora_to_mlp"),
    )

    def words(self, told: Options, program: str) -> list[str]:
        words = ["--fsdp_version=2"]
        named = next((text for name in _MODELS if (text := told.text(name))), "")
        component = named.rpartition(".")[2]
        found = _COMPONENT.fullmatch(component)
        folder = told.text("--checkpointer.checkpoint_dir")
        if folder and (Path(folder) / "config.json").is_file():
            words.append(f"--model_name_or_path={folder}")
        elif found:
            tool = tool_of((), TORCHTUNE)
            assert tool is not None
            words.append(f"--model_name_or_path={tool.models.get(found[2], found[2])}")
        if found and found[1]:
            adapted = (told.text("--model.lora_attn_modules") or "").replace(
                "output_proj", "o_proj"
            )
            if told.on("--model.apply_lora_to_mlp"):
                adapted = f"{adapted},{_OF_MLP}"
            words += ["--finetuning_type=lora", f"--lora_target={adapted.strip(',')}"]
        if found and found[1] == "qlora_":
            # torchao's NF4: scales of 64 weights in 8 bits, under one of 256 of them.
            words += ["--load_in_4bit=true", "--bnb_4bit_use_double_quant=true"]
        trains = f"{Path(program).stem} {told.text('--loss._component_') or ''}".lower()
        if _MODELS[1] in told.names:
            trains = "ppo"
        return words + [f"--stage={stage}" for stage in _STAGES if stage in trains][:1]

    def framework(
        self, base: Framework, model: Model, recipe: Recipe, training: Training
    ) -> Framework:
        made = super().framework(base, model, recipe, training)
        return replace(made, reduce_grads_fp32=False)


def is_torchtune(words: Sequence[str]) -> bool:
    """Whether a file's settings name a model of torchtune's."""
    return any(word.startswith(f"{name}=torchtune.") for word in words for name in _MODELS)
