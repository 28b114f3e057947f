"""Models and jobs for the tests of the built-in workload and its replay.

Shapes of published models where a published figure is compared, small made-up ones elsewhere.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tests.samples import CLUSTER, GPU
from trainscout.simulators.predictor.question.diffusion import Diffusion
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import (
    AttentionMixer,
    CompressedAttention,
    DeltaNet,
    Index,
    Mamba1,
    Mamba2,
    Mixer,
    Mla,
    ShortConv,
)
from trainscout.simulators.predictor.question.model import Model, PerLayerInput
from trainscout.simulators.predictor.question.pooled import Pooled
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.tower import Convolution, Tower
from trainscout.simulators.predictor.question.training import Training

NODE = replace(CLUSTER, name="test", num_nodes=1)
GPT175B = Model(
    name="gpt175b",
    num_layers=96,
    hidden_size=12288,
    num_heads=96,
    ffn_hidden_size=49152,
    vocab_size=51200,
    sequence_length=2048,
    source="Korthikanti et al. 2022, Table 3",
)
TINY = replace(
    GPT175B,
    name="tiny",
    num_layers=12,
    hidden_size=256,
    num_heads=8,
    ffn_hidden_size=1024,
    vocab_size=1000,
    sequence_length=64,
    vocab_multiple=8,
    source="made up",
)
LLAMA = replace(
    TINY,
    name="tiny_llama",
    num_query_groups=2,
    ffn_hidden_size=704,
    gated_mlp=True,
    normalization="rmsnorm",
    position="rope",
    linear_bias=False,
    qkv_bias=False,
    qk_norm=True,
    dropout=False,
    tied_embeddings=False,
)
MOE = replace(
    LLAMA,
    name="tiny_moe",
    moe=Moe(num_experts=8, top_k=2, ffn_hidden_size=128, shared_ffn_hidden_size=64),
)
MLA_MOE = replace(
    MOE,
    name="tiny_mla_moe",
    num_query_groups=None,
    qk_norm=False,
    moe=Moe(8, 2, 128, shared_ffn_hidden_size=64, num_dense_layers=2),
    mla=Mla(
        kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=24, q_lora_rank=96
    ),
)
SSM = Mamba2(heads=16, head_dim=16, state=16, groups=8, chunk=16)
DELTA = DeltaNet(k_heads=8, v_heads=16, k_dim=16, v_dim=16, chunk=16)
HYBRID = replace(
    MOE,
    name="tiny_hybrid",
    layers="2*(local/dense, ssm/none, delta/moe, both/moe, attention/dense, none/moe)",
    kinds={
        "local": Mixer(attention=AttentionMixer(window=16, sinks=True, gated=True)),
        "ssm": Mixer(mamba2=SSM),
        "delta": Mixer(delta=DELTA),
        "both": Mixer(attention=AttentionMixer(chunk=16), mamba2=SSM),
    },
)
SPARSE = replace(
    MLA_MOE,
    name="tiny_sparse",
    moe=replace(MOE.moe, num_dense_layers=0),
    layers="2*attention/dense, 2*(kda/moe, 4*sparse/moe)",
    kinds={
        "sparse": Mixer(attention=AttentionMixer(index=Index(heads=4, dim=16, top_k=16))),
        "kda": Mixer(delta=replace(DELTA, v_heads=8, gate="vector")),
    },
)
# As MiniMax-01's lightning attention, and Ling's gates of whole products.
LIGHTNING = Mamba2(heads=16, head_dim=16, state=16, groups=16, chunk=16, fixed_decay=True)
GATED = replace(
    SPARSE,
    name="tiny_gated",
    layers="4*lightning/dense, 8*(3*ling/moe, heads/moe)",
    kinds={
        "lightning": Mixer(mamba2=LIGHTNING),
        "ling": Mixer(delta=replace(DELTA, v_heads=8, gate="full")),
        "heads": Mixer(attention=AttentionMixer(head_gates=True)),
    },
)
# Mixers that no framework cuts, and heads of layers' own.
UNCUT = replace(
    MOE,
    name="tiny_uncut",
    layers="2*(wide/dense, selective/none, conv/moe, narrow/dense, attention/moe, conv/dense)",
    kinds={
        "wide": Mixer(attention=AttentionMixer(kv_heads=8, head_dim=32, keys_are_values=True)),
        "narrow": Mixer(
            attention=AttentionMixer(window=16, causal=False, heads=4, kv_heads=4, head_gates=True)
        ),
        "selective": Mixer(mamba1=Mamba1(inner=256, state=8, rank=16, norms=True)),
        "conv": Mixer(short_conv=ShortConv(channels=128)),
    },
)
# As Gemma 4's small models: the last layers reuse keys and values, and one is wide.
SHARING = replace(
    LLAMA,
    name="tiny_sharing",
    layers=f"2*attention/dense, reusing/dense, reusing/{2 * LLAMA.ffn_hidden_size}",
    num_layers=4,
    kinds={"reusing": Mixer(attention=AttentionMixer(reuses_kv=True))},
    per_layer_input=PerLayerInput(vocab_size=1000, hidden_size=16),
)
# As Gemma 3n, whose layers work on one of several streams.
ALTERNATING = replace(SHARING, name="tiny_alternating", residual_streams=3, laurel_rank=8)
# As DeepSeek-V4: windows alone, with all compressed keys, and with those that an indexer chooses.
_NEAR = CompressedAttention(q_rank=32, window=8, out_groups=2, out_rank=24)
STREAMS = replace(
    MOE,
    name="tiny_streams",
    num_query_groups=1,
    layers="2*(near/moe, compressed/dense, sparse/moe)",
    num_layers=6,
    residual_streams=4,
    kinds={
        "near": Mixer(compressed=_NEAR),
        "compressed": Mixer(compressed=replace(_NEAR, rate=16)),
        "sparse": Mixer(compressed=replace(_NEAR, rate=4, series=2, index=Index(4, 16, 4))),
    },
)
TOWER = Tower(
    "vision",
    num_layers=2,
    hidden_size=64,
    num_heads=8,
    ffn_hidden_size=128,
    patch_size=48,
    patches=16,
    positions=16,
    merged=4,
    projector=(256, 256),
)
SEEING = replace(LLAMA, name="tiny_seeing", towers=(TOWER,))
# As T5: an encoder of words, whose heads are wider than it is, and a decoder that looks at it.
TRANSLATING = replace(
    LLAMA,
    name="tiny_translating",
    layers="11*full/dense, across/dense",
    kinds={"full": Mixer(AttentionMixer(), cross=True), "across": Mixer(cross=True)},
    towers=(
        Tower(
            *("encoder", 2, 256, 8, 512, 0, 32),
            gated_mlp=True,
            linear_bias=False,
            normalization="rmsnorm",
            rotary=False,
            head_dim=64,
        ),
    ),
)
MIXTRAL_8X7B = replace(
    LLAMA,
    name="mixtral_8x7b",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_query_groups=8,
    ffn_hidden_size=14336,
    vocab_size=32000,
    sequence_length=4096,
    vocab_multiple=128,
    qk_norm=False,
    moe=Moe(num_experts=8, top_k=2, ffn_hidden_size=14336),
    source="Jiang et al. 2024, Table 1",
)
MODELS = (TINY, LLAMA, MOE, MLA_MOE)


_LATENTS = replace(
    LLAMA,
    num_query_groups=None,
    gated_mlp=False,
    linear_bias=True,
    qkv_bias=True,
    tied_embeddings=False,
    vocab_size=1,
)
CROSSING = replace(
    _LATENTS,
    name="tiny_crossing",
    qk_norm=False,
    qk_norm_whole=True,
    layers="12*crossing/dense",
    kinds={"crossing": Mixer(AttentionMixer(causal=False), cross=True)},
    diffusion=Diffusion(16, 16, (96, 256, 256), modulation="shared"),
)
JOINED = replace(
    _LATENTS,
    name="tiny_joined",
    layers="4*double/dense, 8*single/dense",
    kinds={
        "double": Mixer(AttentionMixer(causal=False, text="own")),
        "single": Mixer(AttentionMixer(causal=False, text="joint")),
    },
    diffusion=Diffusion(16, 16, (96, 256), (256, 64)),
)
CLASSES = replace(TINY, name="tiny_classes", tied_embeddings=False, pooled=Pooled((256, 256, 4)))
IMAGES = replace(
    CLASSES,
    name="tiny_images",
    vocab_size=1,
    layers="12*whole/dense",
    kinds={"whole": Mixer(AttentionMixer(causal=False))},
    pooled=Pooled((256, 10), 192),
)
# As wav2vec 2.0: convolutions of samples, and a letter of every frame.
HEARD = replace(
    IMAGES,
    name="tiny_heard",
    position="none",
    pooled=Pooled(
        (256, 32),
        64,
        stem=(Convolution(10, 64, 4), Convolution(192, 64, 1), Convolution(128, 256, 1)),
        every_token=True,
    ),
)
PAIRS = replace(
    CLASSES,
    name="tiny_pairs",
    pooled=Pooled((256, 128), contrastive="all"),
    towers=(Tower(*("vision", 2, 256, 8, 512, 192, 17), merged=17, projector=(256, 128)),),
)


def make_job(
    model: Model = TINY,
    *,
    nodes: int = 1,
    gpus_per_node: int = 8,
    batch: int = 64,
    training: dict[str, Any] | None = None,
    **recipe: Any,
) -> Job:
    """A job on ``nodes`` nodes; further arguments are fields of the recipe.

    ``training`` holds fields of the training or of the framework.
    """
    given = training or {}
    software = {field.name for field in fields(Framework)}
    framework = Framework(**{name: value for name, value in given.items() if name in software})
    trained = {name: value for name, value in given.items() if name not in software}
    scans = any(mixer.mamba1 is not None for mixer in model.kinds.values())
    return Job(
        model,
        replace(GPU, peak_flops=GPU.peak_flops | {"fp32": 66.9e12}) if scans else GPU,
        replace(NODE, num_nodes=nodes, gpus_per_node=gpus_per_node),
        Training(global_batch_size=batch, tokens=1e9, **trained),
        Recipe(**recipe),
        framework,
    )
