"""The parts of a job as a Megatron-LM command sets them.

An argument that is absent means Megatron's default (core 0.11 to 0.16), and what ``validate_args``
changes silently (sequence parallelism with tp=1, gradients of bf16 in fp32) is changed here too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.hub_names import shipped_model
from trainscout.reports.dialects.environment import (
    read_environment,
    software_of,
    writes_scores,
)
from trainscout.reports.dialects.megatron_core import FP8, QUANTISED_PARAMETERS
from trainscout.reports.dialects.megatron_hybrid import PATTERN, read_chunks, read_layers
from trainscout.reports.dialects.megatron_layers import LAYOUT, read_expert_layers, read_layout
from trainscout.reports.dialects.megatron_lm import (
    ARGUMENTS,
    CLAMP,
    MASKLESS,
    OFFLOAD,
    SHARDING,
    TITLE,
)
from trainscout.reports.dialects.megatron_zero_bubble import read_schedule
from trainscout.reports.dialects.options import Options, Reading
from trainscout.reports.dialects.setting import read
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.layers import Mla
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe
from trainscout.simulators.predictor.question.training import Training

_KNOWN = Path(__file__).parent / "megatron_arguments.yaml"
# What arguments of other releases are called here, and the value that they stand for.
_OTHERWISE = {
    "--hybrid-layer-pattern": (PATTERN, None),
    "--encoder-num-layers": ("--num-layers", None),
    "--encoder-seq-length": ("--seq-length", None),
    "--use-rotary-position-embeddings": ("--position-embedding-type", "rope"),
    "--recompute-activations": ("--recompute-granularity", "selective"),
    "--use-custom-fsdp": ("--use-megatron-fsdp", None),
    "--enable-cuda-graph": ("--cuda-graph-impl", "local"),
    "--external-cuda-graph": ("--cuda-graph-impl", "local"),
}
# Vocabularies that the name of a tokenizer implies.
_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


class MegatronReader:
    """Reads one command.

    A ``whole`` one describes a model, and what it leaves out is Megatron's default. Arguments
    without the model's layers are an excerpt: the model, the batch and the precision are as
    declared where they are not said.
    """

    title = TITLE
    model_name: str | None = None
    teacher_name: str | None = None
    software: str | None = None

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.options = Options(words, _OTHERWISE)
        self.environment = environment
        letters = sum(map(len, read_chunks(self.options)))
        self._layers = self.options.whole("--num-layers") or letters or None
        self._length = self.options.whole("--seq-length")
        self.whole = self._layers is not None
        if not self.whole:
            self.options.note(
                "no --num-layers: model, batch and precision are as declared where none is said"
            )

    def model(self, base: Model) -> Model:
        """The model; ``base`` gives what no argument says.

        Raises:
            InputError: for a value that Megatron would refuse, or a size that is missing.
        """
        options = self.options
        fields = read(ARGUMENTS, "model", options) | self._attention_groups() | self._dropout()
        if not fields.get("linear_bias", True):
            fields.setdefault("qkv_bias", False)
        if options.has("--quick-geglu"):
            fields |= {"gated_mlp": True, "clamped_mlp": options.number(CLAMP) is not None}
            if not fields["clamped_mlp"]:
                options.assume("--quick-geglu", "the activation costs as much as SwiGLU")
        if options.text("--position-embedding-type") == "yarn":
            fields["scaled_rope"] = True
        vocabulary = self._vocabulary(base)
        if self._layers is None:
            return replace(base, **(fields | vocabulary))
        hidden, heads = fields.get("hidden_size"), fields.get("num_heads")
        if hidden is None or heads is None:
            name = "--hidden-size" if hidden is None else "--num-attention-heads"
            raise InputError(name, "", "is missing beside --num-layers", "a whole number")
        # Megatron keeps a gated MLP's parameters near those of the plain one.
        width = int(4 * hidden * 2 / 3 / 64) * 64 if fields.get("gated_mlp") else 4 * hidden
        fields.setdefault("ffn_hidden_size", width)
        latent = options.has("--multi-latent-attention")
        # What is as it would be anyway is left out, as declarations do.
        for name, usual in (("head_dim", hidden / heads), ("num_query_groups", heads)):
            if latent or fields.get(name) == usual:
                fields[name] = None
        length = options.whole("--max-position-embeddings") or self._length
        has_experts = bool(options.whole("--num-experts"))
        layered = read_layers(options, hidden, self._layers, has_experts)
        fields |= layered | vocabulary
        fields |= {
            "name": base.name,
            "source": base.source,
            "num_layers": self._layers,
            "sequence_length": length or base.sequence_length,
            "moe": self._experts(fields["ffn_hidden_size"], None if layered else self._layers),
            "mla": Mla(**read(ARGUMENTS, "model.mla", options)) if latent else None,
        }
        fields |= self._kept()
        return Model(**fields)

    def _kept(self) -> dict[str, int]:
        """Layers that stay in 16 bits where others have fewer: one at either end unless told."""
        if not self.options.has("--first-last-layers-bf16"):
            return {}
        names = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
        counts = {name: self.options.whole("--" + name.replace("_", "-")) for name in names}
        return {name: 1 if count is None else count for name, count in counts.items()}

    def _attention_groups(self) -> dict[str, Any]:
        groups = self.options.whole("--num-query-groups")
        if self.options.has("--group-query-attention"):
            return {"num_query_groups": 1 if groups is None else groups}
        if groups is not None:
            self.options.note("--num-query-groups counts only beside --group-query-attention")
        return {}

    def _dropout(self) -> dict[str, Any]:
        """Both kinds have a probability of 0.1 unless said otherwise."""
        rates = [self.options.number(f"--{kind}-dropout") for kind in ("attention", "hidden")]
        if rates == [None, None]:
            return {}
        attention, hidden = (value is None or value > 0 for value in rates)
        if attention != hidden:
            argument = f"dropout of {'attention' if attention else 'hidden states'} alone"
            self.options.assume(argument, "attention and hidden states both have dropout")
        return {"dropout": attention or hidden}

    def _vocabulary(self, base: Model) -> dict[str, Any]:
        options = self.options
        tokenizer = options.text("--tokenizer-type")
        size, padded = options.whole("--vocab-size"), options.whole("--padded-vocab-size")
        if padded is not None:
            return {"vocab_size": padded, "vocab_multiple": 1}
        if size is not None and tokenizer in ("NullTokenizer", "NullMultimodalTokenizer"):
            return {"vocab_size": size + 1}
        size = _VOCABULARIES.get(tokenizer or "", size)
        named = shipped_model(options.text("--tokenizer-model") or "")
        if size is None and named is not None:
            size = load_catalogue().models[named].vocab_size
            options.note(f"--tokenizer-model: a vocabulary of {size:,}, as {named} has it")
        if size is None and self.whole:
            options.note(
                f"the arguments do not say the vocabulary: {base.vocab_size:,}, that of "
                f"model={base.name} (model.vocab_size= to change it)"
            )
        return {"vocab_size": base.vocab_size if size is None else size}

    def _experts(self, ffn_hidden_size: int, layers: int | None) -> Moe | None:
        """The experts, and which of so many ``layers`` have some (None: their pattern says it)."""
        options = self.options
        if not options.whole("--num-experts"):
            return None
        fields = {"ffn_hidden_size": ffn_hidden_size} | read(ARGUMENTS, "model.moe", options)
        fields |= {} if layers is None else read_expert_layers(options, layers)
        capacity = fields.get("capacity_factor")
        padded = options.has("--moe-pad-expert-input-to-capacity")
        if capacity is not None and capacity < 0:
            fields["capacity_factor"] = None
        elif capacity is not None:
            fields["pad_to_capacity"] = padded
        if not options.has("--moe-grouped-gemm"):
            instead = "a rank's experts run as one grouped product all the same"
            options.assume("no --moe-grouped-gemm", instead)
        if options.has("--moe-router-force-load-balancing"):
            options.note("experts are forced to equal loads, as is predicted")
        named = options.has("--moe-enable-deepep")
        backend = options.text("--moe-flex-dispatcher-backend")
        if fields["dispatcher"] == "deepep" and not named and backend is None:
            options.assume("--moe-token-dispatcher-type flex", "its exchange is DeepEP's")
        return Moe(**fields)

    @property
    def degrees(self) -> int:
        """Ranks of one data-parallel replica."""
        fields = read(ARGUMENTS, "recipe", self.options)
        return math.prod(fields.get(name, 1) for name in ("tp", "pp", "cp"))

    def recipe(self, model: Model, world: int) -> Recipe:
        """The recipe on ``world`` GPUs, whose number no argument depends on.

        Raises:
            InputError: for what Megatron would refuse.
        """
        options = self.options
        fields = read(ARGUMENTS, "recipe", options)
        tp, pp = fields.get("tp", 1), fields.get("pp", 1)
        if fields.get("sp") and tp == 1:
            options.note("--sequence-parallel does nothing with one tensor-parallel rank")
            fields["sp"] = False
        if "micro_batch" not in fields and self.whole:
            problem = "is missing, and Megatron has no default for it"
            raise InputError("--micro-batch-size", "", problem)
        if fields.get("etp") == tp or model.moe is None:
            fields["etp"] = None
        fields |= self._context_exchange() | self._chunks(model, pp, fields)
        fields |= read_schedule(self.options, pp)
        fields |= self._recompute() | self._sharding(fields) | self._offload()
        fields |= self._quantised_parameters()
        if fields["zero_stage"] and self._keeps_remainders():
            fields["optimizer_states"] = "remainders"
        fields |= read_environment(self.environment, options)
        return Recipe(**fields)

    def _context_exchange(self) -> dict[str, Any]:
        kinds = self.options.texts("--cp-comm-type")
        if not kinds:
            return {}
        if len(set(kinds)) == 1 and kinds[0] in ("p2p", "all_gather", "a2a"):
            return {"cp_comm_type": kinds[0]}
        taken = "a2a" if all(kind.startswith("a2a") for kind in kinds) else "p2p"
        self.options.assume(f"--cp-comm-type {' '.join(kinds)}", f"all of it is {taken}")
        return {"cp_comm_type": taken}

    def _chunks(self, model: Model, pp: int, ends: Mapping[str, Any]) -> dict[str, Any]:
        """Chunks of a stage, and a split that is laid out; ``ends`` has one that is counted."""
        options = self.options
        text = options.text(LAYOUT)
        per_chunk = options.whole("--num-layers-per-virtual-pipeline-stage")
        chunks = options.whole("--num-virtual-stages-per-pipeline-rank")
        if text is not None:
            return read_layout(options, text, model, pp)
        if len(lettered := read_chunks(options)) > 1:
            if len(lettered) % pp or len({*map(len, lettered)}) > 1:
                problem = f"does not deal its layers out evenly over {pp} stages"
                raise InputError(options.written(PATTERN), "|".join(lettered), problem)
            return {"vpp": len(lettered) // pp}
        if per_chunk is None or chunks is not None:
            return {"vpp": chunks or 1}
        layers = model.num_layers
        layers += len({"embedding_as_layer", "loss_as_layer"}.intersection(ends))
        fixed = {"first_stage_layers", "last_stage_layers"}.intersection(ends)
        if fixed or layers % pp or (layers // pp) % per_chunk:
            raise InputError(
                "--num-layers-per-virtual-pipeline-stage",
                per_chunk,
                f"does not divide the {layers} layers over {pp} stages",
                "--num-virtual-stages-per-pipeline-rank",
            )
        return {"vpp": layers // pp // per_chunk}

    def _recompute(self) -> dict[str, Any]:
        options = self.options
        kind = options.text("--recompute-granularity", ("full", "selective"))
        method = options.text("--recompute-method", ("uniform", "block"))
        layers = options.whole("--recompute-num-layers")
        modules = options.texts("--recompute-modules") or []
        if options.has("--moe-layer-recompute"):
            kind, modules = kind or "selective", [*modules, "moe"]
        if kind is None:
            return {}
        if kind == "selective":
            chosen = "+".join(modules)
            default = chosen in ("", "core_attn")
            return {"recompute": kind, "recompute_modules": None if default else chosen}
        if method is None or layers is None:
            missing = "--recompute-method" if method is None else "--recompute-num-layers"
            raise InputError(missing, "", "is missing beside --recompute-granularity full")
        if method == "uniform" and layers > 1:
            options.assume(
                f"--recompute-method uniform --recompute-num-layers {layers}",
                "the input of every layer is kept, and each layer is recomputed alone",
            )
        return {"recompute": kind, "recompute_layers": layers if method == "block" else None}

    def _offload(self) -> dict[str, Any]:
        """How much of the optimizer the host has, and which activations."""
        options = self.options
        modules = options.texts("--offload-modules")
        kept = {}
        if options.has("--fine-grained-activation-offloading") and modules:
            kept["offload_modules"] = "+".join(modules)
        percent = options.percent(OFFLOAD, KNOBS["optimizer_offload"].choices or (), 0.0)
        overlap = "--overlap-cpu-optimizer-d2h-h2d"
        if not options.has("--optimizer-cpu-offload"):
            return kept
        if percent and not options.has(overlap):
            options.assume(f"no {overlap}", "copies run beside the host's optimizer")
        return {**kept, "optimizer_offload": percent}

    def _keeps_remainders(self) -> bool:
        """Whether the optimizer keeps of the master weights what bf16 parameters lack: the
        precision-aware one does by default (Megatron-Core's ``store_param_remainders``)."""
        words = self.options
        halves = words.has("--bf16") or not (self.whole or words.has("--fp16"))
        on_device = not words.has("--optimizer-cpu-offload")
        return words.has("--use-precision-aware-optimizer") and halves and on_device

    def _quantised_parameters(self) -> dict[str, Any]:
        """Whether parameters have the type they are multiplied in."""
        options = self.options
        requested = [name for name in QUANTISED_PARAMETERS if options.has(name)]
        scaled = any(options.text(f"--{width}-format") for width in ("fp8", "fp4"))
        return {"fp8_param_gather": bool(requested)} if scaled else {}

    def _sharding(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        options = self.options
        stage = 1 if options.has("--use-distributed-optimizer") else 0
        strategy = options.text("--data-parallel-sharding-strategy", SHARDING) or "no_shard"
        if options.has("--use-megatron-fsdp"):
            stage = SHARDING.index(strategy)
        elif options.has("--use-torch-fsdp2"):
            stage = 2 if options.has("--torch-fsdp2-no-reshard-after-forward") else 3
        # What is sharded travels beside computation, whether asked for or not.
        reduces = stage < 3 and requested.get("overlap_grad_reduce", False)
        return {
            "zero_stage": stage,
            "overlap_grad_reduce": stage == 2 or reduces,
            "overlap_param_gather": stage < 3 and requested.get("overlap_param_gather", False),
        }

    def training(self, base: Training, model: Model, recipe: Recipe, replicas: int) -> Training:
        """The training; ``replicas`` is the data-parallel size."""
        options = self.options
        batch = options.whole("--global-batch-size")
        if batch is None and not self.whole:
            batch = base.global_batch_size
        if batch is None:
            batch = recipe.micro_batch * replicas
            options.note(
                f"no --global-batch-size: Megatron takes one micro-batch a replica, {batch}"
            )
        length = self._length or base.sequence_length or model.sequence_length
        # Megatron-Bridge hands none on (skip_getting_attention_mask_from_dataset).
        makes_masks = self.whole and self.title == TITLE and not options.has(MASKLESS)
        mask_gib = recipe.micro_batch * length**2 / 2**30
        if makes_masks and mask_gib >= 1:
            stages = "first and last stages copy" if recipe.pp > 1 else "GPUs copy"
            options.assume(
                f"no {MASKLESS}", f"no mask, of which {stages} {mask_gib:.1f} GiB a micro-batch"
            )
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
        half = next((name for name in ("bf16", "fp16") if options.has(f"--{name}")), None)
        eight = options.text("--fp8-format") is not None
        if options.text("--fp4-format") is not None:
            options.text("--fp4-recipe", ("nvfp4",))
            return "nvfp4"
        known = {scaling: precision for precision, (scaling, _) in FP8.items()}
        scaling = options.text("--fp8-recipe", (*known, "custom")) or "delayed"
        if half is None and self.whole:
            options.note("neither --bf16 nor --fp16: Megatron trains in fp32")
        if not eight:
            return half or ("fp32" if self.whole else declared)
        if scaling not in known:
            options.assume(f"--fp8-recipe {scaling}", "one scale a tensor, of its own")
        return known.get(scaling, "fp8_current")

    def _optimizer(self) -> str:
        options = self.options
        kind = options.text("--optimizer") or "adam"
        if kind not in ("adam", "sgd"):
            options.assume(f"--optimizer {kind}", "the optimizer is Adam")
            kind = "adam"
        aware, moments = options.has("--use-precision-aware-optimizer"), self._moments()
        if not aware or moments == ["fp32", "fp32"]:
            return kind
        if moments != ["bf16", "bf16"]:
            options.assume("moments in " + " and ".join(moments), "both moments are in bf16")
        return "adam_bf16"

    def _moments(self) -> list[str]:
        """The types of Adam's moments."""
        names = ("--exp-avg-dtype", "--exp-avg-sq-dtype")
        return [self.options.text(name) or "fp32" for name in names]

    def framework(
        self, base: Framework, model: Model, recipe: Recipe, training: Training
    ) -> Framework:
        """The software with what arguments switch in it."""
        options = self.options
        fields = read(ARGUMENTS, "framework", options) | self._graphs()
        main = options.text("--main-grads-dtype", ("fp32", "bf16")) or "fp32"
        # Megatron turns it on by itself where parameters have the range of fp32 but not its bits.
        in_32_bits = not options.has("--fp16") and main == "fp32"
        fields.setdefault("accumulate_grads_fp32", in_32_bits)
        if options.has("--use-megatron-fsdp") and recipe.zero_stage < 2:
            fields["megatron_fsdp"] = True
        backends = ("flash", "fused", "unfused", "local", "auto")
        backend = options.text("--attention-backend", backends)
        if backend in ("unfused", "local") or writes_scores(self.environment):
            fields["attention"] = "unfused"
        elif backend is not None and base.attention == "unfused":
            fields["attention"] = "flash"
        fused = options.has("--cross-entropy-loss-fusion")
        if options.text("--cross-entropy-fusion-impl", ("native", "te")) == "te" and fused:
            fields["cross_entropy"] = "in_place"
        elif self.whole and not fused and base.cross_entropy == "in_place":
            fields["cross_entropy"] = Framework.cross_entropy
        # HybridEP's own kernels put tokens in order.
        kernels = options.has("--moe-permute-fusion") or "hybridep" in (
            options.texts("--moe-flex-dispatcher-backend") or ()
        )
        if model.moe is not None and (self.whole or kernels):
            fields["written_dispatch"] = "" if kernels else "atomic"
        return replace(base, **fields, **software_of(self.environment))

    def _graphs(self) -> dict[str, Any]:
        options = self.options
        impl = options.text("--cuda-graph-impl", ("none", "local", "transformer_engine"))
        scope = options.texts("--cuda-graph-scope") or ["full"]
        if impl in (None, "none"):
            return {}
        if set(scope) <= {"full", "full_iteration"}:
            # Whole iterations hold experts without a fixed size only so.
            stashed = options.has("--moe-paged-stash")
            return {"cuda_graphs": True} | ({"graphs_leave_experts": False} if stashed else {})
        stated = f"--cuda-graph-scope {' '.join(scope)}"
        if "attn" not in scope:
            options.assume(stated, "graphs that hold no attention save the host nothing")
            return {}
        if not {"moe_router", "moe_preprocess"} <= set(scope):
            options.assume(stated, "graphs end where tokens go to experts")
        return {"cuda_graphs": True, "graphs_leave_experts": True}

    def reading(self) -> Reading:
        """What became of every argument; call it last."""
        # What belongs to parts that this model has not was not read.
        return self.options.reading(_KNOWN, unread=[row.name for row in ARGUMENTS])
