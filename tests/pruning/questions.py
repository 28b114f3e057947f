"""Random launchable jobs of small made-up models, over every knob of a recipe."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import assume
from hypothesis import strategies as st

from tests.simulators.jobs import (
    ALTERNATING,
    CLASSES,
    CROSSING,
    GATED,
    HEARD,
    HYBRID,
    IMAGES,
    JOINED,
    LLAMA,
    MLA_MOE,
    MOE,
    PAIRS,
    SEEING,
    SHARING,
    SPARSE,
    STREAMS,
    TINY,
    TRANSLATING,
    UNCUT,
    make_job,
)
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layer_pattern import format_layers
from trainscout.simulators.predictor.question.layout import format_layout
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.schedules import SCHEDULES
from trainscout.simulators.predictor.question.training import ModulePrecision
from trainscout.simulators.predictor.question.tuning import Distillation, Dpo, Lora
from trainscout.simulators.predictor.question.validity import why_invalid

# Deeper and wider than the other tests' models: more splits of layers, experts and heads.
_MTP = replace(MOE, name="tiny_mtp", num_mtp_layers=1)
MODELS = (
    TINY,
    replace(TINY, tied_embeddings=False, masked_head=True),
    LLAMA,
    MOE,
    MLA_MOE,
    _MTP,
    HYBRID,
    SPARSE,
    GATED,
    UNCUT,
    SHARING,
    ALTERNATING,
    STREAMS,
    SEEING,
    TRANSLATING,
    CROSSING,
    JOINED,
    CLASSES,
    IMAGES,
    HEARD,
    PAIRS,
)
TEACHER = replace(LLAMA, name="teacher", num_layers=36, hidden_size=512)
_TRAININGS = (
    {},
    {},
    {"packed_lengths": (5, 9, 40)},
    {"optimizer": "adam_8bit"},
    {"nvfp4_hadamard": False, "module_precision": ModulePrecision(attn_out="bf16")},
    {"lora": Lora(8)},
    {"lora": Lora(8, frozen_weights="nf4_double")},
    {"lora": Lora(8), "stacks_experts": True},
    {"lora": Lora(16, ("linear_qkv", "linear_fc2")), "packed_lengths": (16,)},
    {"dpo": Dpo()},
    {"dpo": Dpo(), "lora": Lora(8)},
    {"dpo": Dpo(precomputed=True)},
    {"dpo": Dpo(kto=True)},
    {"dpo": Dpo(precomputed=True, kto=True), "lora": Lora(8, ("linear_qkv",), dora=True)},
    {"dpo": Dpo(), "packed_lengths": (5, 9, 40)},
    {"distillation": Distillation(TEACHER)},
    {"distillation": Distillation(TEACHER, sharded=False, loss="jsd_pieces")},
)
_OFFLOADED = (None, None, "core_attn", "core_attn+attn_proj+moe_act")
_MODULES = (None, "mlp+core_attn", "layernorm", "mla_up_proj", "moe_act", "operations", "qkv")
_GPUS = load_catalogue().gpus
_FEW_BITS = {"b200": ("fp8", "mxfp8", "nvfp4"), "mi300x": ("fp8",)}
# What shipped frameworks do; what they are called and refuse is left out.
_SAID = ("name", "space", "source", "sources", "launch", "lacks", "schedules", "alternatives")
_FRAMEWORKS = tuple(
    {
        field.name: value
        for field in fields(Framework)
        if field.name not in _SAID and (value := getattr(each, field.name)) != field.default
    }
    for each in load_catalogue().frameworks.values()
)
_SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"cuda_graphs": True},
    {"autocast_shards": True, "expandable_segments": True},
    {"autocast": True, "autocast_throughout": True, "fused_wgrad": False},
    {"fused_optimizer": False, "optimizer_operations": 8},
    {"leaves_regathered": True, "offloads_inputs": True},
    {"host_launch_s": 5e-5, "host_unit_s": 1e-3},
)


@st.composite
def jobs(draw: st.DrawFn, **only: tuple[object, ...]) -> Job:
    """A launchable job; what does not go together is drawn anew. ``only`` directs: these choices
    of a knob, of the model or of how a pipeline ``ends``, in the place of all."""
    pick = lambda *choices: draw(st.sampled_from(choices))  # noqa: E731
    among = lambda name, *choices: pick(*only.get(name, choices))  # noqa: E731
    model = among("model", *MODELS)
    nodes = pick(1, 1, 2, 4)
    tp, pp = among("tp", 1, 1, 2, 4, 8), among("pp", 1, 1, 2, 3, 4, 6)
    pp = 1 if model.diffusion is not None else pp
    nodes = nodes * 3 if pp % 3 == 0 else nodes
    cp = pick(1, 1, 1, 2)
    moe = model.moe is not None
    schedule = among("schedule", "1f1b", "1f1b", "gpipe", pick(*SCHEDULES))
    vpp = among("vpp", 1, 1, 2, 3) if pp > 1 else 1
    vpp = 2 if pp > 1 and SCHEDULES[schedule].ends_meet else vpp
    recompute = among("recompute", "none", "selective", "full")
    sp = tp > 1 and (moe or among("sp", True, False))
    zero_stage = among("zero_stage", *((0, 1, 1) if pp > 1 else (0, 1, 2, 3)))
    reduce = pick(True, False)
    ends = among("ends", "even", "even", "first", "both", "counted", "laid out")
    ends = ends if pp > 1 else "even"
    ep = pick(1, 2, 4) if moe else 1
    software = pick(*_FRAMEWORKS) | pick(*_SETTINGS)
    on_host = {"pipelined": (1,), "serial": (1, 2, 3)}.get(str(software.get("host_optimizer")), ())
    gpu = pick(None, None, "b200", "mi300x")
    precision = pick(
        None, "bf16", *_FEW_BITS.get(gpu, ("fp16", "tf32", "fp8", "fp8_current", "fp8_block"))
    )
    away = pick(0, 100, 50 if zero_stage in (1, 3) else 100) if zero_stage in on_host else 0
    kept = ("none", "full") if software.get("offloads_inputs") else ("none",)
    layers = pick(0, 0, 2) if pp == 1 and recompute in kept else 0
    recipe = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "cp_comm_type": pick("p2p", "all_gather", "a2a"),
        "ep": ep,
        "etp": pick(None, 1) if moe else None,
        "vpp": vpp,
        "micro_batch": among("micro_batch", 1, 1, 2, 4),
        "recompute": recompute,
        "offloaded_layers": layers,
        "offload_modules": None if layers or recompute == "full" else pick(*_OFFLOADED),
        "recompute_layers": pick(None, 1, 2) if recompute == "full" else None,
        "recompute_taper": pick(0, 0, 1, 2) if recompute == "full" and pp > 1 else 0,
        "recompute_modules": pick(*_MODULES) if recompute == "selective" else None,
        "sp": sp,
        "zero_stage": zero_stage,
        "overlap_grad_reduce": reduce,
        "overlap_param_gather": pick(True, False) and zero_stage > 0 and reduce,
        "tp_comm_overlap": sp and pick(True, False),
        "overlap_moe_expert_parallel_comm": moe and ep > 1 and pick(True, False),
        "schedule": schedule,
        "precision": precision,
        "fp8_param_gather": pick(None, True, False) if zero_stage and not away else None,
        "fp8_dot_product_attention": pick(False, False, True),
        "fp8_output_proj": precision == "mxfp8" and pick(False, True),
        "nccl_algo": pick(None, None, "ring", "tree", "nvls"),
        "nccl_max_channels": pick(None, None, 4, 16),
        "use_tp_pp_dp_mapping": pick(False, False, True),
        "first_stage_layers": pick(1, 2, 3) if ends in ("first", "both") else None,
        "last_stage_layers": pick(1, 2, 3) if ends == "both" else None,
        "embedding_as_layer": ends == "counted",
        "loss_as_layer": ends == "counted",
        "pipeline_layout": _layout(draw, model, pp * vpp) if ends == "laid out" else None,
        "grad_dtype": pick(None, None, "bf16", "fp32"),
        "optimizer_states": pick(None, "remainders", "bf16") if zero_stage and not away else None,
        "optimizer_offload": away,
        "moe_dispatcher": pick(None, "deepep", "allgather"),
        "cuda_graphs": pick(None, None, True, False),
        "dp_shard": pick(None, None, 2, 4) if zero_stage else None,
    }
    if ends == "counted":
        layers = model.layers and format_layers(model.pattern[:-2])
        model = replace(model, num_layers=model.num_layers - 2, layers=layers)
    batch = pick(24, 48, 96)
    frozen = pick((), ("towers",), ("language_model",)) if model.towers else ()
    training: dict[str, object] = {**software, **pick(*_TRAININGS), "frozen": frozen}
    if model.num_mtp_layers:
        training.pop("distillation", None)
    if model.diffusion is not None:
        training = {**software, "lora": pick(None, Lora(8))}
    if frozen == ("language_model",):
        training["lora"] = None
    job = make_job(model, nodes=nodes, batch=batch, training=training, **recipe)
    job = replace(job, cluster=replace(job.cluster, oversubscription=pick(1.0, None)))
    if gpu is not None:
        job = replace(job, gpu=_GPUS[gpu])
    assume(why_invalid(job) is None)
    return job


def _layout(draw: st.DrawFn, model: Model, places: int) -> str:
    """Any split of the layers: some places may hold nothing."""
    cuts = sorted(draw(st.integers(0, model.num_layers)) for _ in range(places - 1))
    counts = [
        end - start for start, end in zip([0, *cuts], [*cuts, model.num_layers], strict=True)
    ]
    return format_layout(tuple((count,) for count in counts), model.num_mtp_layers)
