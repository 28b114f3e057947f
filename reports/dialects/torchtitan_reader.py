"""TorchTitan's settings as a job.

Two generations: TOML files of 2025 (``[section]`` and ``key = value``, overridden by
``--section.key``), and the configurations in Python of 0.3 (``--module``, ``--config``). Names
and defaults are those of ``config/job_config.py`` and ``config/configs.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainscout.reports.dialects.environment import read_environment, software_of
from trainscout.reports.dialects.options import Options, Reading, respelled
from trainscout.reports.dialects.setting import read
from trainscout.reports.dialects.torchtitan import ARGUMENTS, LOOPED_SCHEDULES, SCHEDULES, TITLE
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.schedule_file import pinned, read_schedule
from trainscout.simulators.predictor.question.training import Training

_KNOWN = Path(__file__).parent / "torchtitan_arguments.yaml"
_PRESETS = Path(__file__).parent / "torchtitan_presets.yaml"
_EIGHT_BITS = ("--float8.*", "--quantize.*", "--mx.*")
_GATHERS_EIGHT_BITS = (
    "--float8.enable-fsdp-float8-all-gather",
    "--quantize.linear.float8.enable-fsdp-float8-all-gather",
)
_SUBCOMMAND = re.compile(r"([a-z-]+):([a-z-]+)")
_SINGLE_STAGE = {theirs: ours for ours, theirs in SCHEDULES.items()}
_LOOPED = {theirs: ours for ours, theirs in LOOPED_SCHEDULES.items()}
_ASYNC_TP = "--compile.enable-async-tensor-parallel"
# What settings of old are called now.
_OLDER = {
    "--training.batch-size": ("--training.local-batch-size", None),
    "--training.compile": ("--compile.enable", None),
    "--parallelism.enable-async-tensor-parallel": (_ASYNC_TP, None),
    "--experimental.enable-async-tensor-parallel": (_ASYNC_TP, None),
}


class TorchTitanReader:
    """The parts of a job as TorchTitan's settings say them; later words count more.

    ``model_name`` is the declared model they name (None: none that is known).
    """

    title = TITLE
    software = "torchtitan"
    # It checks the degrees itself, of which one is what is left over of the GPUs.
    degrees = 1
    # Its settings name a model, and describe none.
    whole = False
    teacher_name = None

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.environment = environment
        plain, chosen = _without_subcommands(words)
        named = Options(plain)
        # The configurations of 0.3 are told by their name.
        self.recent = named.has("--config") or named.has("--module")
        configuration = named.text("--config") or ""
        presets = read_yaml(_PRESETS)
        preset = presets["configurations"].get(configuration, {"model": None, "settings": ""})
        self.options = Options([*preset["settings"].split(), *plain], _OLDER)
        for name in ("--module", "--config"):
            self.options.has(name)
        self._recompute_choice = chosen.get("activation-checkpoint")
        self.model_name = preset["model"] or self._flavor(presets["flavors"])
        if self.model_name is None:
            what = f"configuration {configuration}" if configuration else "model"
            self.options.note(f"its {what} is not a known one: the model is that of model=")
            if self.recent:
                self.options.note("its module is not read: optimizer, loss, dispatch as declared")

    def _flavor(self, flavors: Mapping[str, Mapping[str, str]]) -> str | None:
        name = self.options.text("--model.name")
        flavor = self.options.text("--model.flavor")
        return flavors.get(name or "llama3", {}).get(flavor or "")

    def _on(self, name: str, default: bool) -> bool:
        """A switch: ``--section.key``, ``--section.no-key`` or ``key = true``."""
        section, _, key = name.rpartition(".")
        if self.options.has(f"{section}.no-{key}"):
            return False
        value = self.options.on(name)
        return default if value is None else value

    def _degree(self, name: str, default: int = 1) -> int:
        value = self.options.whole(f"--parallelism.{name}")
        return default if value is None else value

    def model(self, base: Model) -> Model:
        """The declared model: settings say no shape."""
        return base

    def recipe(self, model: Model, world: int) -> Recipe:
        """The recipe on ``world`` GPUs.

        Raises:
            InputError: for degrees that do not make up the GPUs, or settings that are refused.
        """
        fields = read(ARGUMENTS, "recipe", self.options)
        tp, pp, cp, ep = (fields.get(name, 1) for name in ("tp", "pp", "cp", "ep"))
        sharded, replicas = self._data_parallel(world, tp * pp * cp)
        if sharded > 1 and replicas > 1:
            self.options.assume(
                f"{replicas} replicas of {sharded} shards",
                "parameters are sharded over all of them",
            )
        if pp == 1:
            fields["micro_batch"] = self._local_batch
        if model.moe is None:
            fields["ep"] = 1
        fields |= {
            "etp": self._expert_tensor_parallel(ep, tp, model),
            "sp": tp > 1 and self._on("--parallelism.enable-sequence-parallel", True),
            "tp_comm_overlap": self._async_tp() and tp > 1,
            **self._sharding(sharded * cp, replicas, pp),
            **self._pipeline(model, pp),
            **read_environment(self.environment, self.options),
        }
        recipe = Recipe(**fields)
        return replace(recipe, **self._recompute(model, recipe))

    @property
    def _local_batch(self) -> int:
        batch = self.options.whole("--training.local-batch-size")
        return 8 if batch is None else batch

    def _data_parallel(self, world: int, others: int) -> tuple[int, int]:
        """Shards and replicas; the shards are what is left over unless they are said."""
        replicas = self._degree("data-parallel-replicate-degree")
        sharded = self._degree("data-parallel-shard-degree", -1)
        if sharded == -1 and world % (others * replicas) == 0:
            sharded = world // (others * replicas)
        if sharded * replicas * others != world:
            product = others * replicas * max(sharded, 1)
            problem = f"times the other degrees makes {product}, not the {world} GPUs"
            raise InputError(
                "--parallelism.data-parallel-shard-degree",
                sharded,
                problem,
                "-1 for what is left over; cluster.num_nodes= says how many GPUs there are",
            )
        return sharded, replicas

    def _expert_tensor_parallel(self, ep: int, tp: int, model: Model) -> int | None:
        if model.moe is None or tp == 1:
            return None
        etp = self.options.whole("--parallelism.expert-tensor-parallel-degree")
        # Expert parallelism borrows the ranks of tensor parallelism, which then cuts no expert.
        etp = (1 if ep > 1 else tp) if etp is None else etp
        return None if etp == tp else etp

    def _async_tp(self) -> bool:
        wanted = self._on(_ASYNC_TP, False)
        if wanted and not self._compiled():
            self.options.assume(
                "async tensor parallelism without compile", "its overlap is as if compiled"
            )
        return wanted

    def _sharding(self, sharded: int, replicas: int, pp: int) -> dict[str, Any]:
        policies = ("default", "always", "never")
        policy = self.options.text("--parallelism.fsdp-reshard-after-forward", policies)
        if sharded == 1:
            return {"zero_stage": 0, "overlap_grad_reduce": replicas > 1}
        reshard = policy == "always" or (policy != "never" and pp == 1)
        if pp > 1 and reshard:
            self.options.assume(
                "fsdp_reshard_after_forward = always with a pipeline",
                "parameters are gathered once a step",
            )
        stage = 1 if pp > 1 else 3 if reshard else 2
        gathers = any(self._on(name, False) for name in _GATHERS_EIGHT_BITS)
        # FSDP2 always communicates beside computation.
        return {
            "zero_stage": stage,
            "fp8_param_gather": True if gathers else None,
            "overlap_grad_reduce": stage < 3,
            "overlap_param_gather": stage < 3,
        }

    def _pipeline(self, model: Model, pp: int) -> dict[str, Any]:
        schedule = self.options.text("--parallelism.pipeline-parallel-schedule") or "1F1B"
        per_stage = self.options.whole("--parallelism.pipeline-parallel-layers-per-stage")
        ends = {
            end: self._degree(f"pipeline-parallel-{end}-stage-less-layers")
            for end in ("first", "last")
        }
        if pp == 1:
            return {}
        if self.recent and self.model_name is None and per_stage is None:
            self.options.assume("a split of the pipeline in the module", "it is TorchTitan's own")
        fields: dict[str, Any] = {
            "embedding_as_layer": ends["first"] > 0,
            "loss_as_layer": ends["last"] > 0,
        }
        for end, fewer in ends.items():
            if fewer > 1:
                name = f"pipeline_parallel_{end}_stage_less_layers = {fewer}"
                self.options.assume(name, "that stage has one layer less")
        file = self.options.text("--parallelism.pipeline-parallel-schedule-csv")
        if file:
            name = pinned(file)
            return {**fields, "schedule": name, "vpp": read_schedule(name).chunks}
        if schedule in _SINGLE_STAGE:
            return {**fields, "schedule": _SINGLE_STAGE[schedule]}
        chunks = 2
        if per_stage is not None:
            chunks = math.ceil((model.num_layers + sum(ends.values())) / per_stage) // pp
        if schedule not in _LOOPED:
            self.options.assume(
                f"pipeline_parallel_schedule = {schedule}", f"Interleaved1F1B, {chunks} parts"
            )
        return {**fields, "vpp": max(1, chunks), "schedule": _LOOPED.get(schedule, "1f1b")}

    def _recompute(self, model: Model, recipe: Recipe) -> dict[str, Any]:
        mode = self._recompute_choice or self.options.text("--activation-checkpoint.mode")
        mode = (mode or "selective").replace("-ac", "").replace("_", "-")
        option = self.options.text("--activation-checkpoint.selective-ac-option")
        if mode in ("none", "full"):
            return {"recompute": mode}
        if mode != "selective":
            self.options.assume(
                f"activation checkpointing: {mode}", "recomputation is selective, by operation"
            )
        every = "op" if self.recent else (option or "2")
        if not every.isdigit():
            return {"recompute": "selective", "recompute_modules": "operations"}
        chunk = math.ceil(model.num_layers / (recipe.pp * recipe.vpp))
        layers = chunk // int(every) if int(every) else 0
        if layers == 0:
            return {"recompute": "none"}
        return {"recompute": "full", "recompute_layers": None if layers == chunk else layers}

    def training(self, base: Training, model: Model, recipe: Recipe, replicas: int) -> Training:
        """The training; ``replicas`` is the data-parallel size."""
        options = self.options
        batch = options.whole("--training.global-batch-size") or -1
        if batch <= 0:
            batch = self._local_batch * replicas
        elif recipe.pp > 1 and batch > self._local_batch * replicas:
            self.options.assume(
                f"global_batch_size {batch} in several pipeline runs",
                "all micro-batches go through one",
            )
        length = options.whole("--training.seq-len") or 2048
        steps = options.whole("--training.steps")
        return replace(
            base,
            global_batch_size=batch,
            tokens=float((10_000 if steps is None else steps) * batch * length),
            sequence_length=None if length == model.sequence_length else length,
            precision=self._precision(),
            # A module of one's own is not read, its optimizer no more than its model.
            optimizer=base.optimizer if self.recent and self.model_name is None else "adam",
        )

    def _precision(self) -> str:
        converters = self.options.text("--model.converters") or ""
        if "mx" in converters:
            return "mxfp8"
        if "float8" in converters or "linear.float8" in converters:
            return "fp8_current"
        choices = ("bfloat16", "float32")
        width = self.options.text("--training.mixed-precision-param", choices)
        return "fp32" if width == "float32" else "bf16"

    def _compiled(self) -> bool:
        return self._on("--compile.enable", False)

    def framework(
        self, base: Framework, model: Model, recipe: Recipe, training: Training
    ) -> Framework:
        """The software with what settings switch in it."""
        components = (self.options.text("--compile.components") or "model,loss").split(",")
        changes = software_of(self.environment)
        if not self._compiled() or "model" not in components:
            # Its checkpoints do not stop early, which compiled layers do not feel.
            changes |= {"fusion": "eager", "fused_norm": False}
            changes["recompute_stops_early"] = not self.recent
        # A module of one's own has the loss that it is declared to have.
        if self.recent and (self.model_name is not None or base.cross_entropy == "pieces"):
            changes["cross_entropy"] = "pieces"
        elif not self._compiled() or "loss" not in components:
            changes["cross_entropy"] = "eager"
        graphs = not self._on("--training.disable-cuda-graphs", not self.recent)
        if graphs and recipe.pp == 1 and model.moe is None:
            changes["cuda_graphs"] = True
        return replace(base, **changes)

    def reading(self) -> Reading:
        """What became of every setting; call it last."""
        # Details of a conversion that is not made.
        silent = () if self._precision() in ("fp8_current", "mxfp8") else _EIGHT_BITS
        return self.options.reading(_KNOWN, silent)


def _without_subcommands(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Arguments with ``-`` in their names, and choices such as ``activation-checkpoint:full``."""
    plain: list[str] = []
    chosen: dict[str, str] = {}
    for word in words:
        if (choice := _SUBCOMMAND.fullmatch(word)) is not None:
            chosen[choice[1]] = choice[2]
        else:
            plain.append(respelled(word, "_", "-"))
    return plain, chosen
