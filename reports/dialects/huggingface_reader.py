"""Arguments of Transformers' Trainer, TRL and the tools around them (``fine_tuning``) as a job.

Names and defaults are those of ``transformers/training_args.py`` 4.40 to 5 and
``deepspeed/runtime/config.py`` (``--ds.section.key``); what says ``auto`` there is what the
arguments say, as Transformers fills it in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainscout.reports.dialects.adapters import adapters_of
from trainscout.reports.dialects.deepspeed import TITLE as DEEPSPEED_TITLE
from trainscout.reports.dialects.environment import read_environment, software_of
from trainscout.reports.dialects.fine_tuning import AXOLOTL, FACTORY, SWIFT, tool_of
from trainscout.reports.dialects.optimizers import moments_of, optimizer_of
from trainscout.reports.dialects.options import Options, Reading, respelled
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.layers import DENSE
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.tuning import FROZEN, LORA_TARGETS, Distillation, Dpo

TITLE = "Hugging Face Trainer"
_KNOWN = Path(__file__).parent / "huggingface_arguments.yaml"
_BATCH = "--per_device_train_batch_size"
MARKS = (_BATCH, "--deepspeed", "--deepspeed_config", "--model_name_or_path")
"""Arguments by which a command is known to be of this family."""
# What stands for an argument elsewhere; the first that is given counts.
_LENGTHS = (
    *("--max_seq_length", "--max_length", "--block_size", "--cutoff_len", "--model_max_length"),
    *("--max_seq_len", "--sequence_len"),
)
_SHARDING = {"1": 3, "2": 2, "3": 0, "4": 3, "5": 2, "FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
_SHARDING |= {"NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
# What the second FSDP does otherwise (conf/framework/torch_fsdp2.yaml).
_SECOND_FSDP = {"copies_gathered": True, "wraps_adapters": False}
# Trainings of TRL, LLaMA-Factory and ms-swift by name: those whose step begins with what the model
# generates, those of them that a frozen copy may hold back, and others that have scripts.
_PENALISED = ("grpo", "rloo")
_GENERATING = (*_PENALISED, "ppo", "online_dpo", "xpo", "nash_md", "gspo", "dapo", "gdpo")
# On pairs: against a frozen reference, alone, and for a value in the place of words.
_REFERRED, _ALONE, _VALUED = ("dpo", "ipo"), ("orpo", "cpo", "simpo"), ("rm", "reward")
_OTHER_STAGES = ("dpo", "gkd", "kto", "orpo", "cpo", "bco", "prm", "reward")
_NODE = 8
# Of one meaning: Transformers 5.24 takes the first for the second.
_CHECKPOINTING = ("--gradient_checkpointing", "--activation_checkpointing")
_CHECKPOINTING_KWARGS = tuple(f"{name}_kwargs" for name in _CHECKPOINTING)
# Switches of all of Liger's kernels; of axolotl's plugin for some (integrations/liger/args.py), of
# which those of layers act together; and of losses whose logits are never whole.
_LIGER = ("--use_liger_kernel", "--use_liger", "--enable_liger_kernel")
_LIGER_LAYERS = {
    "positions": ("--liger_rope",),
    "the activation": ("--liger_glu_activation", "--liger_swiglu"),
}
_IN_PIECES = (
    "--liger_fused_linear_cross_entropy",
    "--cut_cross_entropy",
    "--chunked_cross_entropy",
    "--dpo_use_liger_kernel",
)
# Types of mixed precision by Accelerate's names and PyTorch's; ms-swift trains weights of float32
# in fp16 (swift/arguments, ``_init_mixed_precision``).
_MIXED = {"no": None, "fp16": "fp16", "bf16": "bf16", "fp8": "fp8_current"}
_MIXED |= {"float16": "fp16", "float32": "fp16", "bfloat16": "bf16"}


class HuggingFaceReader:
    """The parts of a job as the arguments say them; ``model_name`` is the Hub's, or a path."""

    # Arguments name a model, and describe none.
    whole = False

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        program: str = "",
        started: str | None = None,
    ) -> None:
        self.environment, self.program = environment, program
        plain = [respelled(word, "-", "_") for word in words]
        self._tool = tool = tool_of(Options(plain).names, started)
        older = {} if tool is None else {own: (name, None) for own, name in tool.names.items()}
        self.options = options = Options(plain, older, {} if tool is None else tool.defaults)
        self.model_name = options.text("--model_name_or_path")
        teachers = map(options.text, ("--teacher_model_name_or_path", "--teacher_model"))
        named = next((name for name in teachers if name), None)
        self.teacher_name = named if self._stage() == "gkd" else None
        for name in ("--deepspeed", "--deepspeed_config", "--accelerate_config"):
            options.has(name)
        self._zero = options.whole("--ds.zero_optimization.stage")
        deepspeed = self._zero is not None or options.has("--ds.train_batch_size")
        deepspeed |= options.has("--ds.train_micro_batch_size_per_gpu")
        self.title = DEEPSPEED_TITLE if deepspeed else TITLE
        if tool is not None:
            self.title = tool.title
        self.software = "deepspeed" if deepspeed else "huggingface"
        self._tp = self.options.first_whole("--tensor_parallel_size") or 1
        self._cp = self.options.first_whole("--context_parallel_size") or 1
        self.degrees = self._tp * self._cp
        if self.model_name is None:
            options.note("no --model_name_or_path: the model is that of model=")

    def model(self, base: Model) -> Model:
        """The declared model: arguments say no shape."""
        return base

    def recipe(self, model: Model, world: int) -> Recipe:
        """The recipe on ``world`` GPUs.

        Raises:
            InputError: for a sharding that there is not.
        """
        micro_batch = self.options.first_whole("--ds.train_micro_batch_size_per_gpu", _BATCH)
        if micro_batch is None:
            micro_batch = 1 if self.software == "deepspeed" and self._tool is None else 8
            self.options.note(f"no {_BATCH}: {micro_batch}, its default")
        asked = self._any(*_CHECKPOINTING)
        sharded = self.options.on("--fsdp_activation_checkpointing")
        disabled = self.options.on("--disable_gradient_checkpointing")
        recompute = (asked and not disabled) or sharded
        return Recipe(
            tp=self._tp,
            cp=self._cp,
            micro_batch=micro_batch,
            recompute="full" if recompute else "none",
            recompute_layers=self._checkpointed(model) if asked and not sharded else None,
            offloaded_layers=self._offloaded(model) if recompute else 0,
            **self._sharding(world),
            **read_environment(self.environment, self.options),
        )

    def _sharding(self, world: int) -> dict[str, Any]:
        if self.software == "deepspeed":
            stage = self._zero or 0
            if stage not in (0, 1, 2, 3):
                raise InputError("zero_optimization.stage", stage, "is no stage", "0, 1, 2, 3")
            group = self.options.first_whole("--ds.zero_optimization.zero_hpz_partition_size")
            if group not in (None, 1):
                self.options.assume(f"zero_hpz_partition_size = {group}", "no second copy is kept")
            overlap = bool(self.options.on("--ds.zero_optimization.overlap_comm")) and stage < 3
            summed = self.options.text("--ds.data_types.grad_accum_dtype") == "fp32" and stage > 0
            fields = {
                "zero_stage": stage,
                "overlap_grad_reduce": overlap,
                "grad_dtype": "fp32" if summed else None,
            }
            return fields | self._offload(stage)
        strategy = self._fsdp()
        if strategy is None:
            return {"zero_stage": 0, "overlap_grad_reduce": True}
        stage = _SHARDING[strategy]
        fields = {
            "zero_stage": stage,
            "overlap_grad_reduce": stage < 3,
            "overlap_param_gather": stage == 2,
        }
        copies = self.options.first_whole("--dp_replicate_size")
        shard = self.options.first_whole("--dp_shard_size")
        if strategy in ("HYBRID_SHARD", "4") and world > _NODE:
            self.options.note(f"shards are spread over the {_NODE} GPUs of a node")
            fields["dp_shard"] = _NODE
        elif copies is not None and copies > 1:
            left = world // (copies * self.degrees)
            fields["dp_shard"] = left if shard in (None, -1) else shard
        return fields

    def _offload(self, stage: int) -> dict[str, Any]:
        """How much of the optimizer the host has."""
        place = "--ds.zero_optimization.offload_optimizer"
        device = self.options.text(f"{place}.device")
        percents = KNOBS["optimizer_offload"].choices or ()
        percent = self.options.percent(f"{place}.ratio", percents, 1.0)
        if device in (None, "none"):
            return {}
        if device != "cpu":
            self.options.assume(f"an optimizer on {device}", "it is in the host's memory")
        if stage < 1:
            self.options.assume(f"stage {stage} with an optimizer on the host", "it is on the GPU")
            return {}
        return {"optimizer_offload": percent if stage == 3 else 100}

    def _fsdp(self) -> str | None:
        """How FSDP shards; None without it."""
        strategy = self.options.text("--fsdp_sharding_strategy")
        words = self.options.texts("--fsdp")
        again = self.options.on("--fsdp_reshard_after_forward")
        if strategy is None and words is not None:
            known = [word.upper() for word in " ".join(words).split() if word.upper() in _SHARDING]
            strategy = known[0] if known else "FULL_SHARD"
        versioned = self.options.has("--fsdp_version")
        if strategy is None and (again is not None or versioned):
            strategy = "FULL_SHARD" if again is not False else "SHARD_GRAD_OP"
        if strategy is not None and strategy.upper() not in _SHARDING:
            raise InputError("fsdp_sharding_strategy", strategy, "is not known", _SHARDING)
        return None if strategy is None else strategy.upper()

    def _units(self, stage: int) -> Mapping[str, Any]:
        """What FSDP's version does, and the first one's prefetching where its stage is 3: on as
        Accelerate's files have it unless told not to, off as Trainer's arguments have it."""
        options, words = self.options, self.options.texts("--fsdp")
        name = "--fsdp_backward_prefetch"
        policy = options.text(name) or options.text(f"{name}_policy")
        if options.text("--fsdp_version", ("1", "2")) == "2" or "fsdp2" in (words or []):
            return _SECOND_FSDP
        if stage == 3 and policy is None and words is not None:
            options.note("no backward_prefetch in --fsdp_config: NO_PREFETCH, Trainer's default")
            policy = "NO_PREFETCH"
        return {"prefetches_backward": (policy or "").upper() not in ("NO_PREFETCH", "NONE")}

    def _reenters(self) -> bool:
        """Whether layers are checkpointed from outside, and all of them runs again."""
        wrapped = self.options.on("--fsdp_activation_checkpointing")
        return not wrapped and self._checkpoints("use_reentrant")

    def _offloaded(self, model: Model) -> int:
        """Layers whose inputs wait in the host's memory until they run again."""
        if not self._checkpoints("offload"):
            return 0
        if self.software != "huggingface":
            self.options.assume("inputs of layers on the host", "they are on the GPU")
            return 0
        return self._checkpointed(model) or model.num_layers

    def _checkpoints(self, switch: str) -> bool:
        stated = self._any(*(f"{name}.{switch}" for name in _CHECKPOINTING_KWARGS))
        return stated or self._of_checkpoints(switch, "true") is not None

    def _of_checkpoints(self, key: str, value: str) -> re.Match[str] | None:
        tables = (" ".join(self.options.texts(name) or []) for name in _CHECKPOINTING_KWARGS)
        return re.search(rf"\b{key}\W+({value})", " ".join(tables).lower())

    def _checkpointed(self, model: Model) -> int | None:
        """How many layers are, where not all: ``every_n_layers`` begins with the first."""
        name, found = "every_n_layers", self._of_checkpoints("every_n_layers", r"\d+")
        every = self.options.first_whole(*(f"{each}.{name}" for each in _CHECKPOINTING_KWARGS))
        every = every or (int(found[1]) if found else 1)
        return None if every <= 1 else -(-model.num_layers // every)

    def training(self, base: Training, model: Model, recipe: Recipe, replicas: int) -> Training:
        """The training; ``replicas`` is the data-parallel size."""
        options = self.options
        accumulated = self.options.first_whole(
            "--gradient_accumulation_steps", "--ds.gradient_accumulation_steps"
        )
        whole = self.options.first_whole("--ds.train_batch_size", "--train_batch_size")
        if accumulated is None and whole is None and self._tool:
            # What is no number of sequences is refused with the batch.
            held = max(1, recipe.micro_batch * replicas)
            accumulated = math.ceil(self._tool.least_batch / held)
        batch = recipe.micro_batch * replicas * (accumulated or 1)
        if whole is not None and accumulated is None:
            batch = whole
        length = self.options.first_whole(*_LENGTHS)
        if length is None:
            length = base.sequence_length or model.sequence_length
            options.note(f"no {_LENGTHS[0]}: sequences of {length:,} tokens, as declared")
        precision = self._precision(base.precision)
        everything = self._linear_layers(model)
        dpo, lora = self._dpo(base), adapters_of(self.options, base.lora, everything)
        axolotl = self._tool is not None and self._tool.title == AXOLOTL
        if axolotl and lora is not None and lora.dropout and lora.adapts_experts(model):
            # It takes dropout from experts' adapters alone, which PEFT refuses it.
            options.assume("dropout beside experts' adapters", "no adapter drops any")
            lora = replace(lora, dropout=0.0)
        frozen = self._frozen(model, adapts=lora is not None)
        length = self.length_of_pairs(dpo, length, options)
        steps = self.options.first_whole("--max_steps")
        seen = batch * length * (1 if dpo is None or dpo.kto else 2)
        tokens = base.tokens if steps is None or steps < 1 else float(steps * seen)
        return replace(
            base,
            global_batch_size=batch,
            tokens=tokens,
            sequence_length=None if length == model.sequence_length else length,
            precision=precision,
            optimizer=self._optimizer(
                halves=precision == "bf16" and lora is None and not recipe.zero_stage
            ),
            lora=lora,
            dpo=dpo,
            distillation=self._distillation(base.distillation, lora is not None),
            frozen=frozen or base.frozen,
        )

    def length_of_pairs(self, dpo: Dpo | None, length: int, notes: Options) -> int:
        """Tokens of each sequence: ms-swift counts both of a pair towards a pack's ``length``
        (``swift/dataset/packing.py``: ``create_packed_idx``)."""
        swift = self._tool is not None and self._tool.title == SWIFT
        if dpo is None or dpo.kto or not swift or not self.options.on("--packing"):
            return length
        notes.note(f"a pack of {length:,} tokens is one pair, of sequences half as long")
        return length // 2

    def _frozen(self, model: Model, *, adapts: bool) -> tuple[str, ...]:
        """What of a model with towers is not trained. PEFT freezes all weights; of adapters, those
        of the language model count."""
        names = ("--freeze_language_model", "--freeze_vision_tower")
        named = zip(FROZEN, (*names, "--freeze_multi_modal_projector"), strict=True)
        frozen = [part for part, name in named if self.options.on(name)]
        if not (adapts and model.towers):
            return tuple(frozen) if model.towers else ()
        if self.options.text("--finetuning_type") == "lora_llm":
            return ()
        if adapted := sorted(set(FROZEN[1:]).difference(frozen)):
            parts = " and ".join(adapted)
            self.options.assume(f"adapters in {parts}", "the language model's alone")
        return FROZEN[1:]

    def _dpo(self, base: Training) -> Dpo | None:
        """By the name of TRL's script, or as LLaMA-Factory and ms-swift call it."""
        options = self.options
        stage = self._stage()
        ready = bool(self.options.on("--precompute_ref_log_probs"))
        if stage == "dpo" and (loss := options.text("--pref_loss")) in _ALONE:
            stage = loss
        if stage in _VALUED:
            options.assume(f"a head of one value ({stage})", "it is that of words")
        if stage == "kto":
            if (loss := options.text("--loss_type")) not in (None, "kto"):
                options.assume(f"a loss called {loss}", "it is KTO's")
            return Dpo(precomputed=ready, kto=True)
        if stage in (*_REFERRED, *_ALONE, *_VALUED):
            return Dpo(precomputed=ready or stage not in _REFERRED)
        if stage == "gkd":
            self._teacher(base.distillation is not None)
        elif stage in _GENERATING:
            options.assume(
                f"completions that the model generates, and their rewards ({stage})",
                "a step is its update alone, of sequences as long as they may be",
            )
            if (options.text("--beta") or "0").strip("0.") and stage in _PENALISED:
                options.assume("a frozen reference (--beta)", "it is neither held nor run")
        elif stage not in (None, "pt", "sft"):
            options.assume(f"a training called {stage}", "sequences one by one, as declared")
        return base.dpo

    def _stage(self) -> str | None:
        """What is trained, by a script of TRL's as it is called: ``trl/scripts/grpo.py``."""
        if stated := self.options.text("--stage") or self.options.text("--rlhf_type"):
            return stated
        stem = Path(self.program).stem.removeprefix("train_").removesuffix("_trainer")
        return stem if stem in (*_GENERATING, *_OTHER_STAGES) else None

    def _teacher(self, is_declared: bool) -> None:
        """Say what is predicted of distillation on the student's own sequences."""
        if not is_declared:
            self.options.assume(
                f"distillation from {self.teacher_name or 'its teacher'}",
                "the student alone: training=distill training.distillation.teacher=... adds it",
            )
        share = self.options.text("--lmbda") or "0.5"
        if share.strip("0."):
            self.options.assume(
                f"the share of {share} that the student generates (--lmbda)",
                "every sequence comes with the data",
            )

    def _distillation(self, declared: Distillation | None, adapts: bool) -> Distillation | None:
        """The teacher as the tools keep it: in 16 bits unless told another type; sharded by
        DeepSpeed's stage 3, which ms-swift can set apart, and by ms-swift under FSDP (TRL's
        prepares it for evaluation); none where ms-swift's is the model without its adapters."""
        if declared is None or self.teacher_name is None:
            return declared
        swift = self._tool is not None and self._tool.title == SWIFT
        named = re.search(
            "zero_?([0-3])", (self.options.text("--teacher_deepspeed") or "").lower()
        )
        sharded = (swift or self.software == "deepspeed") and (named is None or named[1] == "3")
        loaded = " ".join(self.options.texts("--teacher_model_init_kwargs") or [])
        kept: dict[str, Any] = {"sharded": sharded, "fp32": "float32" in loaded}
        if swift and adapts and self.teacher_name == self.model_name:
            kept = {"borrowed": not self.options.texts("--teacher_adapters")}
        return replace(declared, loss="jsd_pieces" if swift else "jsd", **kept)

    def _precision(self, declared: str) -> str:
        # What DeepSpeed's file leaves to Transformers ("auto") is as the arguments say.
        for name in ("fp16", "bf16"):
            of_file = f"--ds.{name}.enabled"
            enabled = self.options.on(of_file) and self.options.text(of_file) != "auto"
            if self.options.on(f"--{name}") or enabled:
                return name
        mixed = _MIXED[self.options.text("--mixed_precision", _MIXED) or "no"]
        if mixed is not None:
            return mixed
        if self.options.on("--tf32"):
            return "tf32"
        self.options.note(f"neither bf16 nor fp16 is said: {declared}, as declared")
        return declared

    def _optimizer(self, *, halves: bool) -> str:
        """``halves``: a tool that loads bf16 weights would keep them and moments so here."""
        return optimizer_of(self.options, halves=halves)

    def framework(
        self, base: Framework, model: Model, recipe: Recipe, training: Training
    ) -> Framework:
        """The software with what arguments switch in it."""
        changes = software_of(self.environment) | moments_of(self.options, recipe)
        if self.software == "deepspeed" and (model.moe or model.mla):
            # They are Transformers', which ZeRO shards as all else.
            of_model = ("experts", "latent_attention")
            changes["lacks"] = tuple(what for what in base.lacks if what not in of_model)
        if recipe.zero_stage >= 2 and self.software == "huggingface":
            changes |= self._units(recipe.zero_stage)
        elif recipe.zero_stage >= 2:
            # DeepSpeed's stage 3 overlaps unless it is told not to, stage 2 if it is told to.
            told = self.options.on("--ds.zero_optimization.overlap_comm")
            changes["waits_for_reductions"] = recipe.zero_stage == 2 if told is None else not told
        if recipe.recompute == "full" and self._reenters():
            changes |= {"recompute_stops_early": False, "gathers_to_recompute": True}
        self.options.refuse_slip("--attn_implementation", ("eager", "disabled", "sdpa"))
        if self.options.text("--attn_implementation") in ("eager", "disabled"):
            changes["attention"] = "unfused"
        if training.lora is not None and self._keeps_16bit_adapters():
            changes["fp32_adapters"] = False
        if training.lora is not None and self._any("--use_unsloth"):
            # Its experts multiply adapters apart, and weights in 4 bits (unsloth_zoo 2026.10,
            # temporary_patches/moe_utils.py and moe_utils_bnb4bit.py).
            changes["stacks_experts"] = False
        # Norms, rotary positions, SwiGLU and the loss.
        liger = self._any(*_LIGER)
        layers = [part for part, names in _LIGER_LAYERS.items() if self._any(*names)]
        if liger or len(layers) == len(_LIGER_LAYERS):
            changes["fusion"] = "fused"
        elif layers:
            self.options.assume(f"Liger's kernel of {layers[0]} alone", "Transformers' own")
        if self.options.on("--liger_cross_entropy"):
            # Of fp32 logits (Transformers' loss/loss_utils.py).
            changes["cross_entropy"] = "fp32_in_place"
        if self.options.on("--torch_compile"):
            changes |= {"fusion": "compiled", "cross_entropy": "returned"}
        plugins = " ".join(self.options.texts("--plugins") or [])
        if self._any(*_IN_PIECES) or liger or "CutCrossEntropy" in plugins:
            changes["cross_entropy"] = "pieces"
        if self.options.on("--liger_rms_norm") or liger:
            changes["fused_norm"] = True
        return replace(base, **changes)

    def _linear_layers(self, model: Model) -> tuple[str, ...]:
        """What counts as all linear layers: tools that look for modules find no stacked experts
        (axolotl's loaders/adapter.py, LLaMA-Factory's model_utils/misc.py, ms-swift 4.6's
        utils/transformers_utils.py) unless others share their names; PEFT knows them."""
        looks = self._tool is not None and self._tool.title in (AXOLOTL, FACTORY, SWIFT)
        named = DENSE in {layer.mlp for layer in model.layer_kinds}
        if not looks or named or model.moe is None or model.moe.shared_ffn_hidden_size:
            return LORA_TARGETS
        return ("linear_qkv", "linear_proj")

    def _keeps_16bit_adapters(self) -> bool:
        """Whether adapters have their layers' type, or a tool's own kernels cast them alone."""
        halves = self.options.on("--peft_autocast_adapter_dtype") is False
        halves |= self.options.text("--lora_dtype") in ("bfloat16", "float16")
        if self._tool is not None and self._tool.title == FACTORY:
            halves |= bool(self.options.on("--pure_bf16"))
        return self._any("--lora_mlp_kernel", "--use_unsloth") or halves

    def _any(self, *switches: str) -> bool:
        """Whether one of some switches is on; all count as read."""
        return True in [self.options.on(name) for name in switches]

    def reading(self) -> Reading:
        """What became of every argument; call it last."""
        if self._tool is not None and (taken := self.options.taken):
            said = ", ".join(f"{name.lstrip('-')} {value}" for name, value in taken.items())
            self.options.note(f"{self._tool.title}'s defaults: {said}")
        return self.options.reading(_KNOWN)
