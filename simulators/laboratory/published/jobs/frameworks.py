"""Which declared framework a row's software was, by its published name, year and words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.simulators.laboratory.published.reading.rows import Row, given
from trainscout.simulators.laboratory.published.reading.words import Statement
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.schedules import SCHEDULES
from trainscout.simulators.predictor.question.training import QUANTISED

from .era import Era
from .families import family_of
from .outcome import CannotReplayError
from .presets import is_library, moe_preset

_TABLES = read_yaml(Path(__file__).with_suffix(".yaml"))
_SINCE: Mapping[str, Any] = _TABLES["since"]
_POLLED_NODES, _POLLED_TP = 64, 32
_TRANSFORMERS = re.compile(r"hugging\W?face|\btransformers\b")
# PaddlePaddle 2.5.2 (its pull request 56015).
_FLASH2_IN_PADDLE = (2, 5, 2)

MEGATRONS = ("bridge", "nemo", "mlperf", "megascale", "megatron")
"""Projects that are Megatron-LM or built on its core."""


@dataclass(frozen=True)
class _Declared:
    """The file in ``conf/framework`` that a project is read as, the year that file is of, and
    what that takes for granted."""

    name: str
    year: float
    assumed: str = ""


@dataclass(frozen=True)
class _Dated:
    """What software had from a year on, or until then; fields as in the file."""

    sets: Mapping[str, object]
    of: str = ""
    by: Sequence[str] = ()
    gpu: str = ""
    told: bool = False
    since: float = 0.0
    before: float | None = None

    def holds(self, name: str, project: str | None, era: Era, gpu: Gpu) -> bool:
        """Of the framework of that name as a project ran it."""
        who = name.startswith(self.of) and (not self.by or project in self.by)
        when = not era.before(self.since) and (self.before is None or era.before(self.before))
        told = era.year is not None or not self.told
        return who and when and told and self.gpu in ("", gpu.name)


_DATED = [_Dated(**each) for each in _TABLES["dated"]]
_DECLARED = {name: _Declared(**each) for name, each in _TABLES["declared"].items()}
_OWN_FACTS: Mapping[str, dict[str, object]] = _TABLES["own_facts"]
DATES: Mapping[str, float] = _TABLES["dates"]
"""Years since which recipes are taken to have what rows do not say, by name."""
_STATED: Mapping[str, Mapping[str, dict[str, object]]] = _TABLES["stated"]
_UNSAID = "unsaid"
_TORCH = ("torchtitan", "torch_compile", "torch_eager", "torch_fsdp2", "huggingface", "deepspeed")
_EAGER = ("torch_eager", "torch_fsdp2", "huggingface")
_EXPERTS = ("loops_experts", "written_dispatch", "stacks_experts")
_WITH_LOSS = ("torch_eager", "huggingface", "deepspeed")


def project_of(statement: Statement) -> str | None:
    """The project that a row's label names, in the engine that notes name; tuned submissions are a
    kind of their own."""
    project = statement.label.get("project")
    if project == "huggingface" and statement.says("zero_engine"):
        return "deepspeed"
    return "mlperf" if project == "nemo" and "mlperf_round" in statement.label else project


def is_declared(statement: Statement) -> bool:
    """Whether a row's label names software that is declared."""
    return "project" in statement.label


def pads_experts(statement: Statement) -> bool:
    """Whether a row's software pads a GPU's experts to its busiest."""
    return "pads_experts" in _OWN_FACTS.get(statement.label.get("project", ""), {})


def framework_of(
    row: Row,
    statement: Statement,
    era: Era,
    gpu: Gpu,
    precision: str,
    has_experts: bool,
    frameworks: Mapping[str, Framework],
) -> tuple[Framework, tuple[str, ...]]:
    """The declared framework of a row, with its documented switches, and what was assumed.

    What the row says outranks what its software's year would have. Software that is not declared
    is PyTorch's own modules, eagerly, of which no overlap is believed that is not stated.

    Raises:
        CannotReplayError: when a declaration this needs is not there.
    """
    name, assumed = _declared(row, statement, era)
    if name not in frameworks:
        raise CannotReplayError(f"framework {name} is not declared in conf/framework")
    needed = {"experts": has_experts, "fp8": precision.startswith("fp8")}
    if project_of(statement) == "deepspeed" and (
        unsupported := [what for what in frameworks[name].lacks if needed.get(what)]
    ):
        # What ran was somebody's modules in its engine.
        assumed.append(f"{name} is declared without {unsupported[0]}: Hugging Face's modules")
        theirs = {what: getattr(frameworks["huggingface"], what) for what in _EXPERTS}
        own = dataclasses.replace(frameworks[name], lacks=(), **theirs)
        frameworks = {**frameworks, name: own}
    framework = frameworks[name]
    changes = _dated(name, statement, era, gpu)
    if name.startswith("megatron"):
        changes |= _megatron(statement, precision)
        changes["fp8_param_gather"] = _quantised_parameters(statement, era)
        changes |= _gates(row, statement, era)
    if name == "torchtitan":
        changes |= _torchtitan(statement, era)
    if name in ("huggingface", "deepspeed") and row.gated_mlp == 0:
        # Its GPT-2, NeoX, BLOOM and Falcon make queries, keys and values in one product.
        changes["separate_projections"] = False
        # Their own losses copied logits as they were, and cast none.
        uncast = name == "deepspeed" and era.before(_SINCE["loss_cast_in_its_gpt"])
        changes["cross_entropy"] = "uncast" if uncast else "eager"
        if family_of(row.model, gated_mlp=False)[0].gelu_kernel:
            changes["writes_gelu"] = False
    fsdp = name == "huggingface" and "fsdp" in row.dist_optimizer.lower()
    if name == "huggingface":
        second = re.search("fsdp ?2", f"{row.framework} {row.dist_optimizer}".lower())
        one_unit = statement.label.get("trained_units") == "one"
        changes["wraps_adapters"] = fsdp and not (second or one_unit)
    if fsdp:
        # It wraps blocks in checkpoints that do not reenter; Trainer's own flag wraps its units.
        trainer = any(word in row.framework.lower() for word in ("trainer", "hfautomodel"))
        flag = trainer and statement.says("recompute", "flag")
        reenters = flag and not changes.get("recompute_stops_early", True)
        leaves = "fsdp2" in row.dist_optimizer.lower() and era.before(_SINCE["torch_2_10"])
        changes["leaves_regathered"] = reenters and leaves
        # Units smaller than the checkpoint they are in are gathered to run again, and freed.
        changes["gathers_to_recompute"] = reenters or statement.says("units", "by_size")
        changes["recompute_stops_early"] = not reenters
    if name in _EAGER and statement.says("layers", "transformer_engine"):
        # Its TransformerLayer in the place of the model's own (docs/examples/te_llama), whose
        # modules take the host what they take in Megatron-Core.
        changes |= {"fusion": "fused", "fused_norm": True, "separate_projections": False}
        changes |= {"repeats_kv": False, "attention": "flash", "host_forward_s": 0.0}
        core = frameworks["megatron_core"]
        changes |= {each: getattr(core, each) for each in ("host_launch_s", "transformer_engine")}
    if name == "jax_xla" and "pax" in row.framework.lower():
        # Transformer Engine's layers (dgxc-benchmarking, paxml/configure.sh: ENABLE_TE=1).
        changes |= {"fuses_casts": False, "fp8_param_gather": (), "quantises_each_pass": True}
    changes |= _OWN_FACTS.get(statement.label.get("project", ""), {})
    changes |= _attention(row, statement, era, gpu, framework)
    if not is_declared(statement):
        changes |= {"name": UNDECLARED.name, "overlap_p2p": False, "overlap_tp_gradients": False}
    changes |= _stated(statement, era, dataclasses.replace(framework, **changes), assumed)  # type: ignore[arg-type]
    changes |= _graphs(row, statement, era, has_experts)
    return dataclasses.replace(framework, **changes), tuple(assumed)  # type: ignore[arg-type]


def dated(statement: Statement, era: Era) -> Era:
    """The era of a row for what its software came with: where the row does not say, that of the
    declaration it is read as."""
    if era.year is not None or not is_declared(statement):
        return era
    declared = _DECLARED.get(statement.label["project"])
    return Era(declared.year if declared else _SINCE["megatron_of"], "its framework's declaration")


def recomputes_modules(framework: Framework, era: Era) -> bool:
    """Whether software that saves memory picks modules to recompute rather than whole layers,
    as Megatron-Core does since ``recompute-modules`` (core 0.12, spring 2025)."""
    return framework.name == "megatron_core" and not era.before(_SINCE["modules_in_megatron"])


def _declared(row: Row, statement: Statement, era: Era) -> tuple[str, list[str]]:
    project = project_of(statement)
    if project is None:
        label = f"{row.framework!r} is" if row.framework else "software is"
        words = f"{label} not declared: torch_eager, and no overlap that is not stated"
        return "torch_eager", [words]
    if project not in MEGATRONS:
        declared = _DECLARED[project]
        unnamed = _TRANSFORMERS.search(row.framework.lower()) is None
        if project == "deepspeed" and unnamed and era.before(_SINCE["deepspeed_without_megatron"]):
            declared = _DECLARED["gpt_neox"]
        if project == "nanotron" and _polls(row, statement):
            words = (
                "pipeline messages between nodes are polled, as nanotron's sweep of its largest"
            )
            return "nanotron_polling", [f"{words} layouts did (from 27 December 2024)"]
        return declared.name, [declared.assumed] if declared.assumed else []
    if statement.says("attention", "unfused") or era.before(
        _SINCE["flash_since"].get(project, _SINCE["flash_in_megatron"])
    ):
        return "megatron_2021", []
    return "megatron_core", []


def _polls(row: Row, statement: Statement) -> bool:
    """Whether a layout of nanotron's is one of those that its sweep ran, or ran again, after
    27 December 2024: chosen with the Ultra-Scale sweep in view, nearly all of whose pipelines on
    64 nodes or of 32 tensor-parallel ranks take what polled messages do. A figure that is the best
    of a cell is not one of a pipeline that slept."""
    nodes = given(row.num_gpus, 0) // given(row.gpus_per_node, 8)
    large = nodes >= _POLLED_NODES or given(row.tp, 1) >= _POLLED_TP
    return given(row.pp, 1) > 1 and large and not statement.says("chosen", "best")


def _dated(name: str, statement: Statement, era: Era, gpu: Gpu) -> dict[str, object]:
    """What software had in its year (``dated`` of ``frameworks.yaml``); later rules win."""
    project = "library" if is_library(statement) else project_of(statement)
    changes: dict[str, object] = {}
    for each in _DATED:
        if each.holds(name, project, era, gpu):
            changes |= each.sets
    return changes


def _megatron(statement: Statement, precision: str) -> dict[str, object]:
    """What Megatron-LM and what is built on it do whatever their year."""
    changes: dict[str, object] = {}
    if precision == "fp16" or statement.says("scaled_loss"):
        changes["accumulate_grads_fp32"] = False
    elif project_of(statement) == "megatron_deepspeed":
        # DeepSpeed's pipelines all-reduce what its BF16 optimizer has (runtime/pipe/engine.py:
        # _bf16_reduce_grads).
        changes["allreduces_gradients"] = True
    if statement.label.get("test") == "ci" and statement.says("latent_attention"):
        # Megatron-LM's tests run deterministically, where fused latent attention fails.
        changes["attention"] = "unfused"
    if statement.says("autocast", "fp32"):
        # Scripts of one's own around Megatron-Core: its configuration fuses nothing unless told
        # (transformer_config.py, model_parallel_config.py), as Megatron-LM's arguments do.
        changes |= {"fusion": "eager", "fused_wgrad": False}
    if statement.says("local_layers"):
        # Products with a softmax between them (core/transformer/dot_product_attention.py).
        changes |= {"attention": "unfused", "transformer_engine": 0}
    return changes


def _gates(row: Row, statement: Statement, era: Era) -> dict[str, object]:
    """RMSNorm, rotary positions and SwiGLU of Megatron-LM before it had kernels for them, and
    where Megatron-Bridge's library does not ask for them."""
    project = project_of(statement)
    own = project == "megatron" and not row.num_experts and not statement.says("norm", "fused")
    if own and row.gated_mlp and era.before(_SINCE["core_models_in_megatron"]):
        return {"fusion": "eager", "fused_norm": False}
    old = project == "megatron" and era.before(_SINCE["fused_gates_in_megatron"])
    library = is_library(statement)
    unasked = library and any(name in row.model.lower() for name in _SINCE["unfused_in_bridge"])
    eager = old or unasked or project == "megatron_deepspeed"
    if eager and row.gated_mlp:
        # Nor is their loss Transformer Engine's there (cross_entropy_fusion_impl: native).
        loss: dict[str, object] = {"cross_entropy": "fp32"} if unasked else {}
        return {"fusion": "eager", **loss}
    if library:
        asked = any(name in row.model.lower() for name in _SINCE["fused_rope_in_bridge"])
        return {"fused_rope": asked}
    # Positions alone had no kernel where the MLP is a fused bias and GELU.
    return {"rope": "complex"} if old else {}


def _attention(
    row: Row, statement: Statement, era: Era, gpu: Gpu, framework: Framework
) -> dict[str, object]:
    """The kernel behind a library's attention, by its release and the GPU."""
    release = statement.label.get("paddle_release")
    if release and tuple(map(int, release.split("."))) < _FLASH2_IN_PADDLE:
        return {"attention": "flash1"}
    if framework.name not in _TORCH:
        return {}
    since = _SINCE["fused_in_torch"]
    if framework.name in ("huggingface", "deepspeed"):
        since = _SINCE["fused_in_transformers"] if row.gated_mlp else _SINCE["fused_in_its_gpt"]
    if era.before(since):
        return {"attention": "unfused"}
    if framework.attention != "flash2" or era.year is None:
        return {}
    since = _SINCE["cudnn_in_titan" if framework.name == "torchtitan" else "cudnn_in_torch"]
    newest = gpu.compute_capability >= 9.0 and not era.before(since)
    return {"attention": "flash"} if newest else {}


def _quantised_parameters(statement: Statement, era: Era) -> tuple[str, ...]:
    """Where NVIDIA's recipes keep parameters in 8 or 4 bits: wherever blocks are not scaled
    (NeMo's nemo/collections/llm/recipes/precision, Megatron-Bridge's training/mixed_precision.py).
    Megatron-LM leaves it out unless told."""
    since = _SINCE["quantised_parameters"].get(project_of(statement) or "")
    if since is None or era.year is None or era.before(since):
        return ()
    eight = ("fp8", "fp8_current", "mxfp8")
    # Where some layers have other precisions, Megatron-Core cannot yet (perf_recipes/nemotronh).
    without = era.before(_SINCE["4bit_parameters_in_bridge"]) or statement.says("bf16_modules")
    return eight if without else (*eight, "nvfp4")


def _torchtitan(statement: Statement, era: Era) -> dict[str, object]:
    """TorchTitan's switches: its blocks are compiled where asked for, which its first report (mid
    2024) did not."""
    changes: dict[str, object] = {}
    if statement.says("compile", "mid-2024"):
        changes |= {"fusion": "eager", "fused_norm": False, "cross_entropy": "eager"}
    if statement.says("compile", "no", "loss"):
        # Nor the loss unless asked for (torchtitan/components/loss.py).
        loss = {} if statement.says("compile", "loss") else {"cross_entropy": "eager"}
        changes |= {"written_dispatch": "fp32", **loss}
        changes["recompute_stops_early"] = era.before(_SINCE["whole_layers_in_titan"])
    return changes


def _stated(
    statement: Statement, era: Era, framework: Framework, assumed: list[str]
) -> dict[str, object]:
    """What a row states of its software, whatever its year."""
    changes: dict[str, object] = {}
    attention = statement.get("attention")
    if attention == "sdpa":
        newest = framework.name in _TORCH and framework.attention == "flash"
        changes["attention"] = "flash" if newest else "flash2"
    elif attention == "fused":
        if framework.attention == "unfused":
            changes["attention"] = "flash1" if era.before(_SINCE["flash2"]) else "flash2"
    elif attention:
        changes["attention"] = attention
    if statement.says("masked_attention", "some"):
        assumed.append("a mask that attention is given in some layers is replayed in all")
    for fact, values in _STATED.items():
        changes |= values.get(statement.facts.get(fact, _UNSAID), {})
    if statement.says("param_gather"):
        changes["fp8_param_gather"] = QUANTISED if statement.says("param_gather", "yes") else ()
    if bucket := statement.get("ddp_bucket"):
        changes["ddp_bucket_mib"] = int(bucket)
    compiles = framework.name in (*_TORCH, "nemo_automodel")
    if compiles and statement.says("compile", "yes", "layers"):
        changes |= {"fusion": "compiled", "fused_norm": False}
        # A module compiled as a whole makes its loss too, but for those of LitGPT, and hands out
        # logits and loss (nanoGPT's model.py, Transformers' ForCausalLM); torchtune's chunks of
        # 16-bit logits are compiled beside it (training/_compile.py).
        apart = project_of(statement) == "lightning" or statement.says("loss")
        own = framework.name in _WITH_LOSS and not apart
        chunks = project_of(statement) == "torchtune" and statement.says("loss", "chunked")
        if statement.says("compile", "yes") and (chunks or own):
            changes["cross_entropy"] = "returned" if own else "compiled"
    # Not the kernels that Transformer Engine or Liger has in place of modules.
    if compiles and statement.says("compile", "no", "loss") and not statement.says("layers"):
        changes |= {"fusion": "eager", "fused_norm": statement.says("norm", "fused")}
    if (schedule := statement.facts.get("schedule")) in SCHEDULES:
        # Forks have schedules that the framework lacks.
        changes["schedules"] = tuple(dict.fromkeys((*framework.schedules, schedule)))
    if statement.says("deterministic"):
        # Megatron-LM's --deterministic-mode refuses the fused loss; kernels without atomics have
        # no measurements that we know of.
        assumed.append("deterministic kernels priced as the usual ones, without the fused loss")
        if framework.name.startswith("megatron"):
            changes["cross_entropy"] = "fp32"
    if statement.says("launches", "blocking"):
        changes["launch_blocking"] = True
        assumed.append("every kernel is waited for (CUDA_LAUNCH_BLOCKING=1)")
    if statement.says("optimizer"):
        assumed.append(f"{statement.facts['optimizer']} priced as Adam")
    return changes


def _graphs(row: Row, statement: Statement, era: Era, has_experts: bool) -> dict[str, object]:
    if has_experts:
        preset = moe_preset(row, statement, era)
        return {
            "cuda_graphs": preset.graphs,
            "fused_experts": preset.fused_experts,
            "graphs_leave_experts": preset.graphs_leave_experts,
        }
    if statement.says("graphs"):
        return {"cuda_graphs": not statement.says("graphs", "no")}
    return {}
