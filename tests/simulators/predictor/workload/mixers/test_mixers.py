"""Mixers other than whole attention: operations, bytes and parameters against closed forms."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.simulators.jobs import (
    ALTERNATING,
    DELTA,
    GATED,
    HYBRID,
    LIGHTNING,
    LLAMA,
    SHARING,
    SPARSE,
    SSM,
    STREAMS,
    UNCUT,
    make_job,
)
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.flops import (
    attention_core_flops,
    layer_flops,
    step_flops,
)
from trainscout.simulators.predictor.question.layers import (
    AttentionMixer,
    DeltaNet,
    Index,
    Layer,
    Mamba1,
    Mamba2,
    Mixer,
)
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Attention,
    Collective,
    Gemm,
    Op,
    Streaming,
    kernel_flops,
)
from trainscout.simulators.predictor.workload.model.ends import head_blocks, head_parts
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.parameters import layer_parameters
from trainscout.simulators.predictor.workload.shard import Shard

MODELS = (HYBRID, SPARSE, GATED)
LAYERS = [(model, layer) for model in MODELS for layer in model.layer_kinds]
# Of models that no framework cuts.
WHOLE = [
    (model, layer, 1)
    for model in (UNCUT, STREAMS, SHARING, ALTERNATING)
    for layer in model.layer_kinds
]


def only(mixer: Mixer, base: Model = LLAMA) -> Model:
    """A model of layers of one mixer and nothing else."""
    return replace(base, layers=f"{base.num_layers}*x/none", kinds={"x": mixer})


def flops(ops: Iterable[Op]) -> int:
    kernels = (op for op in ops if isinstance(op, Gemm | Attention))
    return sum(map(kernel_flops, kernels))


def passes(model: Model, recompute: str = "none", **recipe: object) -> tuple[list[Op], list[Op]]:
    blocks = layer_blocks(Shard.of(make_job(model, **recipe)), model.layer_kinds[0], recompute)
    return tuple(list(block.ops) for block in blocks)  # type: ignore[return-value]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("model", "layer", "tp"), [(*each, tp) for each in LAYERS for tp in (1, 4)] + WHOLE
)
def test_a_backward_pass_frees_what_the_forward_pass_kept(
    model: Model, layer: Layer, recompute: str, tp: int
) -> None:
    shard = Shard.of(make_job(model, tp=tp, sp=tp > 1))
    forward, backward = layer_blocks(shard, layer, recompute)
    assert forward.saved_bytes == -backward.saved_bytes > 0
    assert forward.peak_bytes >= forward.saved_bytes
    assert forward.digest != backward.digest


@pytest.mark.parametrize(("model", "layer"), LAYERS)
def test_tensor_parallel_ranks_together_hold_the_layer(model: Model, layer: Layer) -> None:
    one, two, four = (
        layer_parameters(Shard.of(make_job(model, tp=tp, sp=tp > 1, ep=1, etp=tp)), layer).total
        for tp in (1, 2, 4)
    )
    # What is replicated counts once more for each further rank (KV heads are as many as ranks).
    replicated = 2 * two - one
    if model.kv_heads >= 4 or model.mla or model.mixer(layer) is None:
        assert 4 * four - one == 3 * replicated
    assert 0 < replicated < one / 4


def test_the_parameters_of_a_scan() -> None:
    # Projections in (gate, inputs, B, C, steps) and out, convolution and bias, norm, 3 a head.
    h, inner, states = LLAMA.hidden_size, 16 * 16, 2 * 8 * 16
    expected = h * (2 * inner + states + 16) + inner * h + (inner + states) * 5 + inner + 3 * 16
    shard = Shard.of(make_job(only(Mixer(mamba2=SSM))))
    assert layer_parameters(shard, Layer("x", "none")).total == expected + h


def test_the_parameters_of_a_delta_net() -> None:
    h, keys, values = LLAMA.hidden_size, 8 * 16, 16 * 16
    projections = h * (2 * keys + 2 * values + 2 * 16) + values * h
    expected = projections + 4 * (2 * keys + values) + 2 * 16 + 16
    shard = Shard.of(make_job(only(Mixer(delta=DELTA))))
    assert layer_parameters(shard, Layer("x", "none")).total == expected + h


def test_fixed_decays_leave_out_steps_and_the_convolution() -> None:
    # Queries, keys, values, the gate and the output of every head, and one norm over them.
    expected = LLAMA.hidden_size * 5 * LIGHTNING.inner + LIGHTNING.inner
    shard = Shard.of(make_job(only(Mixer(mamba2=LIGHTNING))))
    held = layer_parameters(shard, Layer("x", "none")).total
    assert held == expected + LLAMA.hidden_size
    moving = only(Mixer(mamba2=replace(LIGHTNING, fixed_decay=False)))
    for fixed, learned in zip(passes(only(Mixer(mamba2=LIGHTNING))), passes(moving), strict=True):
        assert flops(fixed) < flops(learned)
        assert not any(getattr(op, "name", "").startswith("ssm_conv") for op in fixed)


def test_gates_of_whole_products_are_as_wide_as_what_they_gate() -> None:
    h, width = LLAMA.hidden_size, 8 * 16
    delta = replace(DELTA, v_heads=8, gate="full")
    # Queries, keys, values, decays, gate and output; steps; convolutions; biases of decays, a rate
    # a head, one norm.
    expected = h * (6 * width + 8) + 3 * 4 * width + width + 8 + 16
    shard = Shard.of(make_job(only(Mixer(delta=delta))))
    assert layer_parameters(shard, Layer("x", "none")).total == expected + h


def test_a_selective_scan_computes_eight_products_of_each_state_forward() -> None:
    model = only(Mixer(mamba1=Mamba1(inner=512, state=16, rank=16)))
    forward, backward = passes(model)
    tokens = make_job(model).sequence_length
    scans = [op for ops in (forward, backward) for op in ops if is_scan(op)]
    assert [kernel_flops(op) for op in scans] == [2 * tokens * 512 * 16 * n for n in (8, 25)]
    assert {op.dtype for op in scans} == {"fp32"}
    assert all(op.estimated for op in scans)


def is_scan(op: Op) -> bool:
    return isinstance(op, Gemm) and op.name.startswith("ssm_scan")


def test_heads_of_a_layer_are_its_own() -> None:
    own = AttentionMixer(heads=4, kv_heads=1, head_dim=64, keys_are_values=True, head_gates=True)
    model = only(Mixer(attention=own))
    h = LLAMA.hidden_size
    shard = Shard.of(make_job(model))
    queries_gates_keys = h * (4 * 64 + 4 + 64)
    expected = h + queries_gates_keys + 2 * 64 + 4 * 64 * h
    assert layer_parameters(shard, Layer("x", "none")).total == expected
    forward, _ = passes(model)
    (core,) = (op for op in forward if isinstance(op, Attention))
    assert (core.heads, core.kv_heads, core.head_dim, core.head_dim_v) == (4, 1, 64, 64)
    projections = sum(kernel_flops(op) for op in forward if isinstance(op, Gemm))
    attended = 2 * model.sequence_length * 4 * 2 * 64
    counted = layer_flops(model, model.sequence_length, model.layer_kinds[0])
    assert projections == (counted - attended) * model.sequence_length


def test_an_indexer_chooses_keys_of_groups_of_heads_too() -> None:
    """MiniMax-M3's: as many scores, and the model's own heads."""
    model = only(Mixer(attention=AttentionMixer(index=Index(heads=4, dim=16, top_k=16))))
    plain = layer_parameters(Shard.of(make_job(LLAMA)), Layer("attention", "none")).total
    shard = Shard.of(make_job(model))
    h, s = LLAMA.hidden_size, model.sequence_length
    added = layer_parameters(shard, Layer("x", "none")).total - plain
    assert added == h * 4 * 16 + h * (16 + 4) + 2 * 16
    forward, _ = passes(model)
    (core,) = (op for op in forward if isinstance(op, Attention))
    assert (core.heads, core.kv_heads) == (LLAMA.num_heads, LLAMA.kv_heads)
    assert core.seq_k == round(16 - 16 * 15 / (2 * s))
    projections = sum(kernel_flops(op) for op in forward if isinstance(op, Gemm) and op.batch == 1)
    attended = 2 * core.seq_k * LLAMA.num_heads * 2 * LLAMA.qk_head_dim * 2
    counted = layer_flops(model, s, model.layer_kinds[0]) - 2.0 * s * 4 * 16
    assert projections == pytest.approx((counted - attended) * s, rel=1e-3)
    # Behind a layer that chose, another neither projects nor scores, and attends to as many.
    reused = only(Mixer(attention=AttentionMixer(index=Index(heads=0, dim=0, top_k=16))))
    reused.check()
    shard = Shard.of(make_job(reused))
    assert layer_parameters(shard, Layer("x", "none")).total == plain
    (again,) = (op for op in passes(reused)[0] if isinstance(op, Attention))
    assert again == core
    scores = 2.0 * (h * 4 * 16 + h * (16 + 4)) + 2.0 * s * 4 * 16
    fewer = layer_flops(model, s, model.layer_kinds[0]) - layer_flops(
        reused, s, Layer("x", "none")
    )
    assert fewer == pytest.approx(scores)


@pytest.mark.parametrize(
    ("mixer", "least"),
    [
        # A token updates and reads the state of each channel: a product each.
        (Mixer(mamba2=Mamba2(8, 32, 64, chunk=16)), 4 * 8 * 32 * 64),
        (Mixer(delta=DeltaNet(8, 8, 32, 32, chunk=16)), 4 * 8 * 32 * 32),
    ],
)
def test_products_of_chunks_do_no_less_than_the_recurrence(mixer: Mixer, least: int) -> None:
    model = only(mixer)
    forward, backward = passes(model)
    tokens = make_job(model).sequence_length
    products = [op for op in forward if isinstance(op, Gemm) and op.batch > 1]
    assert flops(products) >= least * tokens
    outer = [op for op in forward if isinstance(op, Gemm) and op.batch == 1]
    rest = layer_flops(model, tokens, model.layer_kinds[0])
    # The projections are all of the count but the state's operations.
    ssm = mixer.mamba2
    state = 7 * ssm.inner * ssm.state if ssm else 8 * 8 * 32 * 32
    assert flops(outer) == (rest - state) * tokens
    # Backward: both gradients of each product, and some made again.
    assert 2 * flops(forward) <= flops(backward) <= 3 * flops(forward)


def test_longer_sequences_cost_scans_in_proportion_and_attention_more() -> None:
    def at(model: Model, length: int) -> int:
        return flops(passes(replace(model, sequence_length=length))[0])

    for mixer in (Mixer(mamba2=SSM), Mixer(delta=DELTA)):
        assert at(only(mixer), 4096) == 8 * at(only(mixer), 512)
    window = only(Mixer(attention=AttentionMixer(window=128)))
    assert at(window, 8192) == pytest.approx(2 * at(window, 4096), rel=0.01)
    whole = only(Mixer(attention=AttentionMixer()))
    assert at(whole, 8192) > 2.5 * at(whole, 4096)


@pytest.mark.parametrize("mixer", [AttentionMixer(), AttentionMixer(window=128)])
def test_attention_given_a_mask_goes_through_the_whole_square(mixer: AttentionMixer) -> None:
    job = make_job(only(Mixer(attention=mixer)))
    masked = replace(job, framework=replace(job.framework, masked_attention=True))
    for block in layer_blocks(Shard.of(masked), masked.model.layer_kinds[0], "none"):
        (op,) = (op for op in block.ops if isinstance(op, Attention))
        assert (op.seq_q, op.seq_k, op.causal) == (job.sequence_length,) * 2 + (False,)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [64, 512, 1000, 4000, 4096, 10_000])
def test_a_window_costs_what_it_sees_and_never_more_than_the_whole(
    window: int, causal: bool
) -> None:
    base = replace(LLAMA, sequence_length=4096)
    limited = only(Mixer(attention=AttentionMixer(window=window, causal=causal)), base)
    whole = only(Mixer(attention=AttentionMixer(causal=causal)), base)
    costs = [
        flops(op for op in passes(each)[0] if isinstance(op, Attention))
        for each in (limited, whole)
    ]
    assert costs[0] <= costs[1]
    half = window // 2
    both = sum(1 + min(half, query) + min(half, 4095 - query) for query in range(4096))
    pairs = sum(min(window, query + 1) for query in range(4096)) if causal else both
    per_pair = 2 * base.num_heads * (base.qk_head_dim + base.v_head_dim)
    assert costs[0] >= 0.99 * pairs * per_pair
    if not causal:
        core = attention_core_flops(limited, 4096, limited.kinds["x"].attention)
        assert 4096 * core == pytest.approx(pairs * per_pair, rel=0.02)
    if window >= (4096 if causal else 8192):
        assert costs[0] == costs[1]
        assert layer_flops(limited, 4096, limited.layer_kinds[0]) == layer_flops(
            whole, 4096, whole.layer_kinds[0]
        )


def test_chunks_are_shorter_sequences() -> None:
    base = replace(LLAMA, sequence_length=4096)
    model = only(Mixer(attention=AttentionMixer(chunk=1024)), base)
    (core,) = (op for op in passes(model)[0] if isinstance(op, Attention))
    assert (core.batch, core.seq_q, core.seq_k, core.causal) == (4, 1024, 1024, True)
    uneven = only(Mixer(attention=AttentionMixer(chunk=1536)), base)
    cores = [op for op in passes(uneven)[0] if isinstance(op, Attention)]
    assert [(op.batch, op.seq_q) for op in cores] == [(2, 1536), (1, 1024)]


def test_indexed_attention_does_not_grow_with_the_sequence_but_its_scores_do() -> None:
    index = Mixer(attention=AttentionMixer(index=Index(heads=4, dim=16, top_k=64)))
    base = replace(SPARSE, moe=None, num_layers=1)
    per_token = []
    for length in (1024, 8192):
        model = replace(only(index, base), sequence_length=length)
        forward, _ = passes(model)
        (core,) = (op for op in forward if isinstance(op, Attention))
        (scores,) = (op for op in forward if getattr(op, "name", "") == "index_scores_fwd")
        per_token.append((core.seq_k, kernel_flops(scores) // length))
    assert per_token[0][0] == pytest.approx(per_token[1][0], rel=0.05)
    assert per_token[1][1] == 8 * per_token[0][1]


def test_shards_of_the_sequence_become_shards_of_the_heads_in_front_of_a_scan() -> None:
    model = only(Mixer(mamba2=SSM))
    forward, backward = passes(model, cp=2)
    exchanged = [op for op in forward if isinstance(op, Collective) and op.communicator == "cp"]
    width = 2 * SSM.inner + 2 * SSM.groups * SSM.state + SSM.heads
    assert sum(op.bytes for op in exchanged) == 32 * 2 * (width + SSM.inner)
    again = [op for op in backward if isinstance(op, Collective) and op.communicator == "cp"]
    assert sum(op.bytes for op in again) == sum(op.bytes for op in exchanged)
    alone = passes(model)[0]
    assert 2 * flops(forward) == flops(alone)


@pytest.mark.parametrize("rule", ["fused", "rows", "solved"])
def test_shards_of_the_sequence_become_shards_of_the_heads_in_front_of_a_delta_rule(
    rule: str,
) -> None:
    model, training = only(Mixer(delta=DELTA)), {"delta_rule": rule, "cuts_delta_rules": True}
    forward, backward = passes(model, cp=2, training=training)
    exchanged = [op for op in forward if isinstance(op, Collective) and op.communicator == "cp"]
    keys, values = DELTA.k_heads * DELTA.k_dim, DELTA.v_heads * DELTA.v_dim
    # Queries, keys, values, gate, strengths and decays, and the output back.
    widths = (keys, keys, values, values, DELTA.v_heads, DELTA.v_heads, values)
    assert [op.bytes for op in exchanged] == [32 * 2 * width for width in widths]
    again = [op for op in backward if isinstance(op, Collective) and op.communicator == "cp"]
    assert sorted(op.bytes for op in again) == sorted(op.bytes for op in exchanged)
    alone = passes(model, training=training)
    for cut, whole in zip((forward, backward), alone, strict=True):
        assert 2 * flops(cut) == flops(whole)


def test_a_group_of_a_scan_goes_to_every_rank_that_shares_it() -> None:
    def exchanged(groups: int) -> list[int]:
        forward, _ = passes(only(Mixer(mamba2=replace(SSM, groups=groups))), cp=4)
        return [op.bytes for op in forward if getattr(op, "name", "") == "ssm_exchange"]

    # Gate, inputs, B, C and steps, one by one.
    token, state = 16 * 2, SSM.state
    assert exchanged(1)[2:4] == exchanged(4)[2:4] == [token * 4 * state] * 2
    assert exchanged(8) == [token * each for each in (256, 256, 8 * state, 8 * state, 16)]


def test_what_is_kept_of_a_scan_s_output() -> None:
    """Before its gate, behind it where a norm of its own reads it, and what the projection reads;
    a function that has norm and projection inside makes the latter two again."""

    def kept(**changed: object) -> list[int]:
        ssm = replace(SSM, **changed.pop("ssm", {}))  # type: ignore[arg-type]
        forward, _ = passes(only(Mixer(mamba2=ssm)), **changed)
        names = ("ssm_output", "ssm_gated", "ssm_out_input")
        return [op.bytes for op in forward if isinstance(op, Alloc) and op.tag in names]

    values = 64 * SSM.inner * 2
    assert kept() == [values] * 3
    assert kept(ssm={"norm": False}) == [values] * 2
    assert kept(training={"batch_first": True}) == [values]


@pytest.mark.parametrize(("fusion", "turned"), [("eager", True), ("compiled", False)])
def test_what_is_compiled_writes_a_delta_net_s_channels_where_they_are_read(
    fusion: str, turned: bool
) -> None:
    modules = {"fusion": fusion, "batch_first": True, "fused_norm": False}
    for ops in passes(only(Mixer(delta=DELTA)), training=modules):
        assert any(getattr(op, "name", "") == "delta_turn" for op in ops) is turned


@pytest.mark.parametrize(
    ("rule", "recorded"),
    [
        ("rows", (180_224, (521, 61_142), (1286, 347_994))),
        ("solved", (147_456, (84, 35_354), (258, 153_044))),
    ],
)
def test_a_delta_rule_without_its_kernels_is_what_was_recorded(rule, recorded):
    """Of eight chunks: products' FLOPs forward, other kernels and bytes, a token and head."""
    mixer = Mixer(delta=DeltaNet(k_heads=8, v_heads=8, k_dim=128, v_dim=128))
    model = only(mixer, replace(LLAMA, sequence_length=512))
    both = passes(model, training={"delta_rule": rule, "batch_first": True}, micro_batch=2)
    products = flops(op for op in both[0] if getattr(op, "dtype", "") == "fp32")
    assert products == 2 * 512 * 8 * recorded[0]
    for ops, (kernels, moved) in zip(both, recorded[1:], strict=True):
        own = [op for op in ops if isinstance(op, Streaming) and "delta_rule" in op.name]
        assert sum(op.launches for op in own) == kernels
        assert sum(op.bytes for op in own) == pytest.approx(2 * 512 * 8 * moved, rel=5e-3)


def test_a_prediction_says_what_no_timing_holds() -> None:
    job = make_job(HYBRID)
    stated = " ".join(ReplaySimulator().without_error_bar(job).assumptions)
    assert "attention within windows run" in stated
    # Timed on this architecture.
    assert "state-space" not in stated
    assert "delta rules" not in stated
    elsewhere = replace(job, gpu=load_catalogue().gpus["a100_80"])
    stated = " ".join(ReplaySimulator().without_error_bar(elsewhere).assumptions)
    assert "state-space scans and delta rules and attention within windows" in stated
    assert "algorithm" not in " ".join(
        ReplaySimulator().without_error_bar(make_job(LLAMA)).assumptions
    )


def test_a_head_for_masked_words_has_a_layer_more() -> None:
    masked = replace(LLAMA, masked_head=True)
    (forward, backward), plain = (
        [
            flops(op for op in block.ops if isinstance(op, Gemm))
            for block in head_blocks(Shard.of(make_job(model)))
        ]
        for model in (masked, LLAMA)
    )
    tokens, hidden = make_job(LLAMA).sequence_length, LLAMA.hidden_size
    assert forward - plain[0] == 2 * tokens * hidden**2
    assert backward - plain[1] == 4 * tokens * hidden**2
    counted = [step_flops(make_job(model)).model for model in (masked, LLAMA)]
    step = make_job(LLAMA).tokens_per_step
    assert counted[0] - counted[1] == pytest.approx(6 * step * hidden**2)
    frozen = Shard.of(make_job(masked, training={"lora": Lora(8)}))
    transform = head_parts(frozen)[-3]
    assert not transform.saved
    assert {op.name for op in transform.backward} == {
        "head_activation_bwd",
        "head_transform_dgrad",
    }
