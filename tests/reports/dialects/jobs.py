"""Jobs that can be launched, for properties of launch files."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from tests.samples import ARCHITECTURES, GPU, MODEL, MOE_MODEL
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import Mla
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import OPTIMIZERS, Training
from trainscout.simulators.predictor.question.validity import why_invalid

DENSE = replace(
    MOE_MODEL, name="tiny_llama", moe=None, head_dim=None, ffn_hidden_size=2816, num_layers=12
)
LATENT = replace(
    MOE_MODEL,
    name="tiny_latent",
    num_query_groups=None,
    head_dim=None,
    mla=Mla(kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32),
)
EXPERTS = (
    MOE_MODEL,
    replace(MOE_MODEL, qk_norm=True, moe=replace(MOE_MODEL.moe, dispatcher="deepep")),
    replace(
        MOE_MODEL,
        moe=replace(MOE_MODEL.moe, num_dense_layers=0, layer_period=2, shared_ffn_hidden_size=512),
    ),
    replace(MOE_MODEL, moe=replace(MOE_MODEL.moe, capacity_factor=1.25, dispatcher="allgather")),
    replace(MOE_MODEL, moe=replace(MOE_MODEL.moe, capacity_factor=2.0, pad_to_capacity=False)),
    LATENT,
    replace(LATENT, num_mtp_layers=1, mla=replace(LATENT.mla, q_lora_rank=96)),
)
MODELS: tuple[Model, ...] = (
    MODEL,
    DENSE,
    replace(DENSE, qk_norm=True, head_dim=128),
    replace(DENSE, qkv_bias=True, tied_embeddings=True),
    *EXPERTS,
)
FRAMEWORKS = (
    Framework(),
    Framework(balanced_split=True, fusion="compiled", expandable_segments=True),
    Framework(cross_entropy="in_place", fused_router=True, cuda_graphs=True),
    Framework(cuda_graphs=True, graphs_leave_experts=True, written_dispatch="atomic"),
    Framework(overlap_p2p=False, fused_wgrad=False, fused_rope=False, accumulate_grads_fp32=False),
)
HOPPER_FP8 = replace(GPU, peak_flops={**GPU.peak_flops, "fp32": 67e12})
BLACKWELL = replace(
    HOPPER_FP8, name="b200", architecture=ARCHITECTURES["blackwell"], compute_capability=10.0
)

_DEGREES = st.sampled_from([1, 1, 1, 2, 4])
_FLAG = st.booleans()


@st.composite
def jobs(draw: st.DrawFn, models: tuple[Model, ...] = MODELS, parallel: bool = True) -> Job:
    """Valid jobs: every field of the recipe takes each of its kinds of value.

    Without ``parallel``, data parallelism is the only one.
    """
    model = draw(st.sampled_from(models))
    gpu: Gpu = draw(st.sampled_from([HOPPER_FP8, BLACKWELL]))
    tp, pp, cp = 1, 1, 1
    if parallel:
        tp, pp, cp = draw(_DEGREES), draw(_DEGREES), draw(st.sampled_from([1, 1, 2]))
    sp = tp > 1 and (model.moe is not None or draw(_FLAG))
    etp = draw(st.sampled_from([None, 1])) if model.moe else None
    if model.moe and not sp:
        etp = 1 if tp > 1 else None
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    halved = ["zb-h1", "zb-h2"] if vpp == 1 else ["zb-h1", "zb-v", "v-half", "dualpipe-v"]
    schedule = draw(st.sampled_from(["1f1b", "1f1b", "gpipe", *halved]))
    zero = draw(st.sampled_from([0, 1, 2, 3])) if pp == 1 else draw(st.sampled_from([0, 1]))
    recompute = draw(st.sampled_from(["none", "none", "selective", "full"]))
    overlap_grad = draw(_FLAG)
    split = (
        draw(st.sampled_from(["even", "even", "ends", "layers", "dealt"])) if pp > 1 else "even"
    )
    middle = model.num_layers // pp
    recipe = Recipe(
        tp=tp,
        pp=pp,
        cp=cp,
        cp_comm_type=draw(st.sampled_from(["p2p", "all_gather", "a2a"])) if cp > 1 else "p2p",
        ep=draw(st.sampled_from([1, 2, 4])) if model.moe else 1,
        etp=etp,
        vpp=vpp,
        micro_batch=draw(st.sampled_from([1, 2])),
        recompute=recompute,
        recompute_layers=draw(st.sampled_from([None, 1])) if recompute == "full" else None,
        recompute_taper=draw(st.sampled_from([0, 1])) if recompute == "full" and pp > 1 else 0,
        recompute_modules=draw(
            st.sampled_from(
                [None, "mlp", "layernorm+moe_act", "mla_up_proj+core_attn", "operations", "qkv"]
            )
        )
        if recompute == "selective"
        else None,
        sp=sp,
        zero_stage=zero,
        overlap_grad_reduce=overlap_grad,
        overlap_param_gather=bool(zero) and overlap_grad and draw(_FLAG),
        tp_comm_overlap=sp and draw(_FLAG),
        overlap_moe_expert_parallel_comm=model.moe is not None and draw(_FLAG),
        schedule=schedule,
        precision=draw(
            st.sampled_from([None, "fp16", "fp8", "fp8_current", "mxfp8", "fp32", "tf32"])
        ),
        first_stage_layers=middle - vpp if split == "layers" else None,
        last_stage_layers=middle + vpp if split == "layers" else None,
        embedding_as_layer=split == "ends" and draw(_FLAG),
        loss_as_layer=split == "ends",
        pipeline_layout="balanced" if split == "dealt" else None,
        nccl_algo=draw(st.sampled_from([None, "ring"])),
        nccl_max_channels=draw(st.sampled_from([None, 16])),
        use_tp_pp_dp_mapping=draw(_FLAG),
    )
    cluster = Cluster("some", draw(st.sampled_from([1, 2, 4])), 8, 8, 400, "infiniband", "made up")
    training = Training(
        global_batch_size=64,
        tokens=1e9,
        optimizer=draw(st.sampled_from(["adam"] * 6 + [*OPTIMIZERS])),
    )
    job = Job(model, gpu, cluster, training, recipe, draw(st.sampled_from(FRAMEWORKS)))
    assume(why_invalid(job) is None)
    return job
