"""Megatron-LM arguments as a job.

Names and defaults are those of Megatron-LM's ``megatron/training/arguments.py`` (core 0.11 to
0.16): an argument that is absent means its default there, and what ``validate_args`` changes
silently (sequence parallelism with tp=1, gradients of bf16 in fp32) is changed here too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from trainscout.reports.launch_import.imported import Reading
from trainscout.reports.launch_import.megatron_model import ModelArguments
from trainscout.reports.launch_import.options import Options
from trainscout.reports.launch_import.pipeline_split import pipeline_split
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training

TITLE = "Megatron-LM"
_KNOWN = Path(__file__).parent / "megatron_arguments.yaml"
_FP8 = {
    "delayed": "fp8",
    "tensorwise": "fp8_current",
    "mxfp8": "mxfp8",
    "blockwise": "fp8_current",
}
_NCCL_ALGO = {"Ring": "ring", "Tree": "tree", "NVLS": "nvls", "NVLSTree": "nvls_tree"}


class MegatronArguments:
    """The parts of a job as a Megatron-LM command sets them.

    A ``whole`` command describes a model, and what it leaves out is Megatron's default. Arguments
    without the model's layers are an excerpt: the model, the batch and the precision are as
    declared where they are not said. ``notes`` and ``unmodelled`` collect what is worth saying.
    """

    def __init__(self, options: Options, environment: dict[str, str]) -> None:
        self.options = options
        self.environment = environment
        self.notes: list[str] = []
        self.unmodelled: list[tuple[str, str]] = []
        self.model = ModelArguments(options, self.notes, self.unmodelled)
        self.whole = self.model.num_layers is not None
        if not self.whole:
            self.notes.append(
                "no --num-layers: model, batch and precision are as declared where none is said"
            )

    def training(self, base: Training, model: Model, recipe: Recipe, replicas: int) -> Training:
        """The training; ``replicas`` is the data-parallel size."""
        options = self.options
        batch = options.whole("--global-batch-size")
        if batch is None and not self.whole:
            batch = base.global_batch_size
        if batch is None:
            batch = recipe.micro_batch * replicas
            self.notes.append(
                f"no --global-batch-size: Megatron takes one micro-batch a replica, {batch}"
            )
        length = self.model.sequence_length or (base.sequence_length or model.sequence_length)
        tokens = base.tokens
        iterations, samples = options.whole("--train-iters"), options.whole("--train-samples")
        if iterations is not None:
            tokens = float(iterations * batch * length)
        elif samples is not None:
            tokens = float(samples * length)
        return replace(
            base,
            global_batch_size=batch,
            tokens=tokens,
            sequence_length=None if length == model.sequence_length else length,
            precision=self._precision(base.precision),
            optimizer=self._optimizer(),
        )

    def _precision(self, declared: str) -> str:
        options = self.options
        half = "bf16" if options.has("--bf16") else "fp16" if options.has("--fp16") else "fp32"
        eight = options.text("--fp8-format") is not None
        scaling = options.text("--fp8-recipe", (*_FP8, "custom")) or "delayed"
        if half == "fp32" and not self.whole:
            return _FP8.get(scaling, "fp8_current") if eight else declared
        if half == "fp32":
            self.notes.append("neither --bf16 nor --fp16: Megatron trains in fp32")
        if not eight:
            return half
        if scaling not in ("delayed", "tensorwise", "mxfp8"):
            self.unmodelled.append((f"--fp8-recipe {scaling}", "one scale a tensor, of its own"))
        return _FP8.get(scaling, "fp8_current")

    def _optimizer(self) -> str:
        options = self.options
        kind = options.text("--optimizer") or "adam"
        if kind not in ("adam", "sgd"):
            self.unmodelled.append((f"--optimizer {kind}", "the optimizer is Adam"))
            kind = "adam"
        aware = options.has("--use-precision-aware-optimizer")
        moments = [
            options.text(name) or "fp32" for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype")
        ]
        if not aware or moments == ["fp32", "fp32"]:
            return kind
        if moments != ["bf16", "bf16"]:
            self.unmodelled.append(
                ("moments in " + " and ".join(moments), "both moments are in bf16")
            )
        return "adam_bf16"

    def recipe(self, model: Model) -> Recipe:
        options = self.options

        def degree(name: str) -> int:
            value = options.whole(name)
            return 1 if value is None else value

        tp = degree("--tensor-model-parallel-size")
        sequence_parallel = options.has("--sequence-parallel")
        if sequence_parallel and tp == 1:
            self.notes.append("--sequence-parallel does nothing with one tensor-parallel rank")
        micro = options.whole("--micro-batch-size")
        if micro is None and not self.whole:
            micro = Recipe().micro_batch
        if micro is None:
            raise InputError(
                "--micro-batch-size", "", "is missing, and Megatron has no default for it"
            )
        pp = degree("--pipeline-model-parallel-size")
        fields: dict[str, Any] = {
            "tp": tp,
            "pp": pp,
            "cp": degree("--context-parallel-size"),
            "cp_comm_type": self._context_exchange(),
            "ep": degree("--expert-model-parallel-size"),
            "etp": self._expert_tensor_parallel(tp, model),
            "micro_batch": micro,
            "sp": sequence_parallel and tp > 1,
            "tp_comm_overlap": options.has("--tp-comm-overlap"),
            "overlap_moe_expert_parallel_comm": options.has("--overlap-moe-expert-parallel-comm"),
            "use_tp_pp_dp_mapping": options.has("--use-tp-pp-dp-mapping"),
            **pipeline_split(options, model, pp, self.unmodelled),
            **self._recompute(),
            **self._sharding(),
            **self._nccl(),
        }
        return Recipe(**fields)

    def _expert_tensor_parallel(self, tp: int, model: Model) -> int | None:
        etp = self.options.whole("--expert-tensor-parallel-size")
        return None if etp == tp or model.moe is None else etp

    def _context_exchange(self) -> str:
        kinds = self.options.texts("--cp-comm-type")
        if not kinds:
            return "p2p"
        if len(set(kinds)) == 1 and kinds[0] in ("p2p", "a2a"):
            return kinds[0]
        taken = "a2a" if all(kind.startswith("a2a") for kind in kinds) else "p2p"
        self.unmodelled.append((f"--cp-comm-type {' '.join(kinds)}", f"all of it is {taken}"))
        return taken

    def _recompute(self) -> dict[str, Any]:
        options = self.options
        kind = options.text("--recompute-granularity", ("full", "selective"))
        if options.has("--recompute-activations"):
            kind = "selective"
        method = options.text("--recompute-method", ("uniform", "block"))
        layers = options.whole("--recompute-num-layers")
        modules = options.texts("--recompute-modules")
        if options.has("--moe-layer-recompute"):
            kind, modules = kind or "selective", [*(modules or []), "moe"]
        if kind is None:
            return {}
        if kind == "selective":
            chosen = "+".join(modules or [])
            return {
                "recompute": kind,
                "recompute_modules": None if chosen in ("", "core_attn") else chosen,
            }
        if method is None or layers is None:
            missing = "--recompute-method" if method is None else "--recompute-num-layers"
            raise InputError(missing, "", "is missing beside --recompute-granularity full")
        if method == "uniform" and layers > 1:
            self.unmodelled.append(
                (
                    f"--recompute-method uniform --recompute-num-layers {layers}",
                    "the input of every layer is kept, and each layer is recomputed alone",
                )
            )
        return {"recompute": kind, "recompute_layers": layers if method == "block" else None}

    def _sharding(self) -> dict[str, Any]:
        options = self.options
        stage = 1 if options.has("--use-distributed-optimizer") else 0
        sharding = ("no_shard", "optim", "optim_grads", "optim_grads_params")
        strategy = options.text("--data-parallel-sharding-strategy", sharding) or "no_shard"
        if options.has("--use-megatron-fsdp") or options.has("--use-custom-fsdp"):
            stage = sharding.index(strategy)
        elif options.has("--use-torch-fsdp2"):
            stage = 2 if options.has("--torch-fsdp2-no-reshard-after-forward") else 3
        # What is sharded travels beside computation, whether asked for or not.
        reduces, gathers = map(options.has, ("--overlap-grad-reduce", "--overlap-param-gather"))
        return {
            "zero_stage": stage,
            "overlap_grad_reduce": stage == 2 or (reduces and stage < 3),
            "overlap_param_gather": gathers and stage < 3,
        }

    def _nccl(self) -> dict[str, Any]:
        """What variables of the environment hold NCCL to."""
        fields: dict[str, Any] = {}
        algo, channels = (
            self.environment.get(name) for name in ("NCCL_ALGO", "NCCL_MAX_NCHANNELS")
        )
        if algo is not None and algo in _NCCL_ALGO:
            fields["nccl_algo"] = _NCCL_ALGO[algo]
        elif algo is not None:
            self.unmodelled.append((f"NCCL_ALGO={algo}", "NCCL chooses its algorithms"))
        if channels is not None and channels.isdigit():
            fields["nccl_max_channels"] = int(channels)
        return fields

    def framework(self, base: Framework, precision: str) -> Framework:
        """The software with what arguments switch in it."""
        options = self.options
        changes: dict[str, Any] = {
            "fused_wgrad": not options.has("--no-gradient-accumulation-fusion"),
            "overlap_p2p": not options.has("--no-overlap-p2p-communication"),
            "fused_router": options.has("--moe-router-fusion"),
            "accumulate_grads_fp32": self._fp32_gradients(precision),
        }
        backends = ("flash", "fused", "unfused", "local", "auto")
        backend = options.text("--attention-backend", backends)
        if backend in ("unfused", "local"):
            changes["attention"] = "unfused"
        elif backend is not None and base.attention == "unfused":
            changes["attention"] = "flash"
        fusion = options.has("--cross-entropy-loss-fusion")
        if options.text("--cross-entropy-fusion-impl", ("native", "te")) == "te" and fusion:
            changes["cross_entropy"] = "in_place"
        return replace(base, **changes, **self._graphs())

    def _fp32_gradients(self, precision: str) -> bool:
        options = self.options
        wanted = options.has("--accumulate-allreduce-grads-in-fp32")
        main = options.text("--main-grads-dtype", ("fp32", "bf16")) or "fp32"
        if options.has("--grad-reduce-in-bf16"):
            return False
        # Megatron turns it on by itself where parameters have the range of fp32 but not its bits.
        return wanted or (precision != "fp16" and main == "fp32")

    def _graphs(self) -> dict[str, Any]:
        options = self.options
        impl = options.text("--cuda-graph-impl", ("none", "local", "transformer_engine")) or "none"
        if options.has("--enable-cuda-graph") or options.has("--external-cuda-graph"):
            impl = "local"
        scope = options.texts("--cuda-graph-scope") or ["full"]
        graphs: dict[str, Any] = {}
        if impl != "none":
            graphs["cuda_graphs"] = True
            if not set(scope) <= {"full", "full_iteration"}:
                self.unmodelled.append(
                    (f"--cuda-graph-scope {' '.join(scope)}", "graphs hold whole layers")
                )
        setting = self.environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
        if "expandable_segments:true" in setting.lower():
            graphs["expandable_segments"] = True
        return graphs

    def reading(self) -> Reading:
        """What became of every argument; call it last."""
        known = yaml.safe_load(_KNOWN.read_text("utf-8"))
        silent, unmodelled, unknown = self.options.sort_rest(
            known["no_effect"], known["not_modelled"]
        )
        return Reading(
            used=tuple(self.options.used()),
            no_effect=tuple(silent),
            not_modelled=(*self.unmodelled, *unmodelled),
            unknown=tuple(unknown),
            notes=tuple(self.notes),
        )
