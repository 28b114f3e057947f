"""Traffic of memory-bound pieces under each level of fusion, counted pass by pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import LLAMA, MLA_MOE, TINY, make_job
from trainscout.simulators.predictor.question.layers import DENSE_LAYER, WHOLE, AttentionMixer
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.elementwise import (
    activation_ops,
    loss_ops,
    norm_ops,
    repeat_ops,
    rope_ops,
)
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.mixers.attention import attention_parts
from trainscout.simulators.predictor.workload.mixers.unfused_attention import unfused_core
from trainscout.simulators.predictor.workload.model.ends import head_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.part import Part, residual
from trainscout.simulators.predictor.workload.shard import Shard

SIZE = 2


def shard(model: Model = LLAMA, **software: Any) -> Shard:
    return Shard.of(make_job(model, training=software))


def moved(ops: list[ir.Op]) -> int:
    return sum(op.bytes for op in ops if isinstance(op, ir.Streaming))


def launches(ops: list[ir.Op]) -> int:
    return sum(op.launches for op in ops if isinstance(op, ir.Streaming))


def test_rms_norm_written_in_pytorch() -> None:
    forward, backward = norm_ops(shard(fusion="eager", fused_norm=False), "norm", 1000)
    cast, square, mean, scale, cast_back, weight = 2 + 4, 4 + 4, 4, 10, 4 + 2, 10
    assert moved(forward) == 1000 * (cast + square + mean + scale + cast_back + weight)
    # Weight: dx, then x dy written and summed; the casts; scale: dx, x dy written and summed;
    # the mean's gradient spread, the square's (x^1, times two, times that), and a sum of both.
    power = 8 + 8 + 12
    undone = 10 + (2 + 2 + 2) + 2 + 2 * (2 + 4) + 10 + 12 + 4 + 10 + power + 12
    assert moved(backward) == 1000 * undone
    beside_kernels = shard(fusion="fused", fused_norm=False)
    assert moved(norm_ops(beside_kernels, "norm", 1000)[0]) == moved(forward)
    kernel = norm_ops(shard(fusion="eager", fused_norm=False, norm_kernel=True), "norm", 1000)
    assert launches(kernel[0]) == 1
    assert [moved(ops) for ops in kernel] == [1000 * (2 + 2), 1000 * (2 + 2 + 2)]


def test_norms_of_queries_and_keys_are_written_as_the_layers_are() -> None:
    model = replace(LLAMA, qk_norm=True)

    def norms(**software: Any) -> tuple[list[ir.Op], list[ir.Op]]:
        job = shard(model, **software)
        width = (job.heads + job.kv_heads) * model.qk_head_dim
        parts = attention_parts(job, WHOLE)
        found = tuple(
            [op for part in parts for op in ops(part) if op.name.startswith("qk_norm")]
            for ops in (lambda part: part.forward, lambda part: part.backward)
        )
        alike = norm_ops(job, "norm", job.tokens * width)
        # One norm of queries, and one of keys.
        assert [moved(ops) for ops in found] == [moved(ops) for ops in alike]
        assert [launches(ops) for ops in found] == [2 * launches(ops) for ops in alike]
        return found[0], found[1]

    written, fused = norms(fusion="eager", fused_norm=False), norms(fusion="fused")
    assert moved(written[0]) > 5 * moved(fused[0])


def test_gelu_written_in_pytorch() -> None:
    gpt = replace(TINY, position="learned")
    software = {"fusion": "eager", "writes_gelu": True}
    forward, backward = activation_ops(shard(gpt, **software), "act", 1000)
    power, scaled, summed, root, tanh, one_more, half, product = 2, 2, 3, 2, 2, 2, 2, 3
    assert moved(forward) == 1000 * SIZE * (
        power + scaled + summed + root + tanh + one_more + half + product
    )
    assert launches(forward) == 8
    # Both factors; the half, tanh, root and scale; the power's own, of x^2, times three and times
    # the gradient; and two sums of the three that reach x.
    assert moved(backward) == 1000 * SIZE * (2 * 3 + 2 + 3 + 2 + 2 + (2 + 2 + 3) + 2 * 3)
    plain = shard(gpt, fusion="eager")
    for rotary_or_gated in (replace(gpt, position="rope"), replace(gpt, gated_mlp=True)):
        written = activation_ops(shard(rotary_or_gated, **software), "act", 10)
        assert written == activation_ops(shard(rotary_or_gated, fusion="eager"), "act", 10)

    def kept(of: Shard) -> int:
        return layer_blocks(of, DENSE_LAYER, "none")[0].saved_bytes

    inner = plain.tokens * gpt.ffn_hidden_size * SIZE
    assert kept(shard(gpt, **software)) - kept(plain) == 3 * inner


def test_dropout_is_a_kernel_of_its_own_where_nothing_fuses() -> None:
    model = replace(TINY, dropout=True)
    elements = shard(model).local_tokens * model.hidden_size
    fused, eager = (
        residual(shard(model, fusion=fusion), "residual").forward for fusion in ("fused", "eager")
    )
    assert (moved(list(fused)), launches(list(fused))) == (elements * (3 * SIZE + 1), 1)
    assert (moved(list(eager)), launches(list(eager))) == (elements * (5 * SIZE + 1), 2)
    without = replace(TINY, dropout=False)
    assert (
        moved(list(residual(shard(without, fusion="eager"), "r").forward)) == 3 * SIZE * elements
    )


def test_layer_norm_is_one_kernel_everywhere() -> None:
    plain = norm_ops(shard(TINY, fusion="eager", fused_norm=False), "norm", 10)
    for one, other in zip(plain, norm_ops(shard(TINY), "norm", 10), strict=True):
        assert (moved(one), launches(one)) == (moved(other), launches(other))
        assert [op.kind for op in one] == [f"{op.kind}_plain" for op in other]


def test_a_compiled_rms_norm_is_one_kernel_of_the_compiler() -> None:
    forward, backward = norm_ops(shard(fusion="compiled", fused_norm=False), "norm", 10)
    assert [op.kind for op in (*forward, *backward)] == ["norm_fwd_plain", "norm_bwd_plain"]
    assert [moved(way) for way in (forward, backward)] == [2 * 10 * SIZE, 3 * 10 * SIZE]


@pytest.mark.parametrize("fusion", ["fused", "compiled"])
def test_fused_pieces_read_and_write_each_tensor_once(fusion: str) -> None:
    fused = shard(fusion=fusion)
    assert [moved(way) for way in norm_ops(fused, "norm", 10)] == [2 * 10 * SIZE, 3 * 10 * SIZE]
    assert [moved(way) for way in rope_ops(fused, 10)] == [2 * 10 * SIZE] * 2
    # SwiGLU: gate and value in, product out; backward both and the gradient in, two out.
    assert [moved(way) for way in activation_ops(fused, "act", 10)] == [60, 100]


def test_eager_pieces_move_and_launch_more() -> None:
    fused, eager = shard(), shard(fusion="eager", fused_norm=False)
    for piece in (
        lambda s: norm_ops(s, "norm", 10),
        lambda s: rope_ops(s, 10),
        lambda s: activation_ops(s, "act", 10),
    ):
        for one, other in zip(piece(fused), piece(eager), strict=True):
            assert moved(other) > moved(one)
            assert launches(other) > launches(one)


def test_halves_turned_in_pytorch_come_back_through_zeros() -> None:
    eager = {way: shard(fusion="eager", rope=way) for way in ("halves", "complex")}
    # Both products; the half turned back; of two slices zeros and a copy; two sums; as it lay.
    turned = 2 * 2 + 1 + 2 * (1 + 1) + 2 * 3 + 2
    assert moved(rope_ops(eager["halves"], 10)[1]) == 10 * SIZE * turned
    # Heads ahead of tokens: ten bytes an element of both products, the half and the second sum.
    ahead = rope_ops(shard(fusion="eager", batch_first=True), 10)
    assert moved(ahead[1]) == 10 * (2 * 10 + 5 + 2 * 4 + 6 + 10 + 4)
    assert len({moved(way) for way in rope_ops(eager["complex"], 10)}) == 1


@pytest.mark.parametrize("way", ["pairs", "complex", "packed"])
def test_rotary_positions_that_are_cast_anyway_move_the_same_under_autocast(way: str) -> None:
    plain = shard(fusion="eager", fused_norm=False, rope=way)
    under = replace(plain, autocast=True)
    assert under.casts_apart
    assert rope_ops(under, 10) == rope_ops(plain, 10)


def test_a_turned_share_of_heads_is_cut_out_and_put_beside_the_rest() -> None:
    """Of ten elements five are turned; kernels made by hand copy the others as they go."""
    half = replace(LLAMA, rotary_fraction=0.5)
    for software in ({"fusion": "eager"}, {"fused_rope": False}):
        whole = [moved(ops) for ops in rope_ops(shard(**software), 10)]
        part = [moved(ops) for ops in rope_ops(shard(half, **software), 10)]
        assert part == [whole[0] // 2 + 4 * 10, whole[1] // 2 + 14 * 10]
    assert rope_ops(shard(half), 10) == rope_ops(shard(), 10)


def test_neighbours_turned_in_pytorch_come_back_through_zeros() -> None:
    pairs = shard(fusion="eager", rope="pairs")
    # In fp32, of every other element four products, two sums; back four products, of which one
    # lies in order, a sign, and zeros for each with three sums.
    ahead = 6 + 4 * 6 + 2 * 6 + 8 + 6
    back = 6 + 3 * 6 + 5 + 6 + 4 * 8 + 3 * 12 + 6
    assert [moved(way) for way in rope_ops(pairs, 10)] == [10 * ahead, 10 * back]
    compiled = shard(fusion="compiled", rope="pairs")
    assert rope_ops(compiled, 10) == rope_ops(shard(fusion="compiled"), 10)


def test_keys_are_put_beside_values_for_flash_attention_s_rotation() -> None:
    heads, groups = LLAMA.num_heads, LLAMA.kv_heads
    packed = shard(fusion="eager", rope="packed")
    ahead, back = (moved(way) for way in rope_ops(packed, heads + groups))
    # Queries and keys are copied out of the product and turned, keys and values put together and
    # by token.
    assert ahead == SIZE * (heads * (2 + 2) + groups * (2 + 2 + 2 + 2) + groups * (2 + 2 + 2))
    assert back == SIZE * (heads * (2 + 2 + 2) + groups * (2 + 2 + 2) + groups * (2 + 2))


def test_halves_of_one_product_are_read_element_by_element() -> None:
    apart, joined = (shard(fusion="eager", joined_halves=way) for way in (False, True))
    assert [moved(way) for way in activation_ops(apart, "act", 10)] == [100, 180]
    # SiLU and product, 10 bytes each; back the other product, of tensors that lie alike, and the
    # copy of both gradients.
    both = [moved(way) for way in activation_ops(joined, "act", 10)]
    assert both == [10 * (10 + 10), 10 * (6 + 10 + 10 + 8)]
    own = shard(fusion="eager", separate_projections=True)
    assert activation_ops(own, "act", 10) == activation_ops(apart, "act", 10)


def test_gelu_is_one_kernel_in_pytorch_too() -> None:
    eager, fused = shard(TINY, fusion="eager"), shard(TINY)
    assert activation_ops(eager, "act", 10) == activation_ops(fused, "act", 10)


def test_softmax_is_a_kernel_for_each_operation_in_fp32_unless_fused_or_compiled() -> None:
    fused, eager, compiled = (
        {part.module: part for part in attention_parts(shard(TINY, **software), WHOLE)}[
            "core_attn"
        ]
        for software in (
            {"attention": "unfused"},
            {"attention": "unfused", "fused_softmax": False},
            {"attention": "unfused", "fused_softmax": False, "fusion": "compiled"},
        )
    )
    one = shard(TINY)
    scores = one.batch * one.heads * one.sequence**2

    def softmax(ops: tuple[ir.Op, ...]) -> int:
        return sum(op.bytes for op in ops if isinstance(op, ir.Streaming) and "softmax" in op.name)

    assert softmax(fused.forward) == 2 * SIZE * scores
    assert softmax(eager.forward) == (6 * SIZE + 8) * scores
    assert softmax(eager.backward) == (4 * SIZE + 12) * scores
    assert softmax(compiled.forward) == softmax(fused.forward)
    assert softmax(compiled.backward) == softmax(fused.backward) == 3 * SIZE * scores
    kept = [sum(alloc.bytes for alloc in part.saved) for part in (fused, eager, compiled)]
    assert [more - kept[0] for more in kept] == [0, 4 * scores, SIZE * scores]


def test_attention_by_blocks_leaves_out_those_that_are_masked() -> None:
    def core(mixer: AttentionMixer, **software: Any) -> Part:
        parts = attention_parts(shard(TINY, attention="unfused", **software), mixer)
        return next(part for part in parts if part.module == "core_attn")

    def flops(part: Part) -> tuple[int, int]:
        passes = (part.forward, part.backward)
        products = [[op for op in ops if isinstance(op, ir.Gemm)] for ops in passes]
        ahead, back = (sum(2 * op.batch * op.m * op.n * op.k for op in ops) for ops in products)
        return ahead, back

    length = TINY.sequence_length
    whole, quarters = core(WHOLE), core(WHOLE, attention_block=length // 4)
    # Ten blocks of sixteen; backward makes the scores again.
    assert [16 * each for each in flops(quarters)] == [
        10 * flops(whole)[0],
        10 * (flops(whole)[1] + flops(whole)[0] // 2),
    ]
    seen = core(replace(WHOLE, causal=False), attention_block=length // 4)
    assert flops(seen)[0] == flops(whole)[0]
    # Kept of them are the sums of exponentials.
    one = shard(TINY)
    assert quarters.saved_bytes == 4 * one.batch * one.heads * length


def test_heads_of_no_multiple_of_8_left_the_tensor_cores_until_cuda_11_6() -> None:
    def types(head: int, tensor_cores: bool) -> set[str]:
        model = replace(TINY, hidden_size=head * TINY.num_heads)
        core = unfused_core(shard(model, tensor_core_heads=tensor_cores))
        return {op.dtype for op in (*core.forward, *core.backward) if isinstance(op, ir.Gemm)}

    assert types(108, True) == types(128, False) == {"bf16"}
    assert types(108, False) == {"fp32"}


def test_losses_by_how_much_they_read() -> None:
    plain = {"in_place": 100, "compiled": 60, "returned": 100, "fp32": 400, "eager": 400}
    traffic = {
        kind: sum(moved(way) for way in loss_ops(shard(cross_entropy=kind), 10))
        for kind in (*plain, "fp32_in_place", "shifted")
    }
    # In fp32, beside casts there and back; a copy in fp32, and one into zeros on the way back.
    assert traffic == {**plain, "fp32_in_place": 200 + 120, "shifted": 400 + 80 + 120}
    one = shard(cross_entropy="pieces")
    forward, backward = (sum(map(moved, [each])) for each in loss_ops(one, 10))
    assert (forward, backward) == (60, 2 * SIZE * one.tokens * one.model.hidden_size)


def test_logged_losses_read_the_logits_after_the_backward_pass() -> None:
    plain, logging = (
        head_blocks(shard(cross_entropy="compiled", logged_losses=n)) for n in (0, 2)
    )
    assert logging[0] == plain[0]
    more = moved(list(logging[1].ops)) - moved(list(plain[1].ops))
    logits = LLAMA.padded_vocab_size(1) * shard().tokens
    # Each casts 16 bits to 32, reads those and writes as many.
    assert more == 2 * (2 + 4 + 4 + 4) * logits
    assert logging[1].peak_bytes == plain[1].peak_bytes


def test_fusion_leaves_the_products_alone() -> None:
    fused = Shard.of(make_job(LLAMA))
    eager = replace(fused, fusion="eager", fused_norm=False)
    for one, other in zip(
        layer_blocks(fused, DENSE_LAYER, "none"),
        layer_blocks(eager, DENSE_LAYER, "none"),
        strict=True,
    ):
        products = [[op for op in b.ops if not isinstance(op, ir.Streaming)] for b in (one, other)]
        kept = [[op for op in ops if hasattr(op, "m")] for ops in products]
        assert kept[0] == kept[1] != []


def test_complex_rotations_are_not_fused() -> None:
    one, other = shard(fusion="compiled"), shard(fusion="compiled", rope="complex")
    cast, product, cast_back = 2 + 4, 4 + 4, 4 + 2
    for plain, apart in zip(rope_ops(one, 10), rope_ops(other, 10), strict=True):
        assert moved(plain) == 10 * 2 * SIZE
        assert moved(apart) == 10 * (cast + product + cast_back)


def test_repeated_keys_are_written_attended_to_kept_and_exchanged_whole() -> None:
    heads, groups = LLAMA.num_heads, LLAMA.kv_heads
    assert groups < heads
    grouped, repeated = shard(), shard(repeats_kv=True)
    assert repeat_ops(grouped, 100) == ([], [])
    # Read once a group, written once a head; gradients the other way round.
    assert [moved(way) for way in repeat_ops(repeated, 100)] == [100 * (1 + heads // groups)] * 2
    ring = {
        once: attention_parts(
            Shard.of(make_job(LLAMA, cp=2, training={"repeats_kv": once})), WHOLE
        )
        for once in (False, True)
    }

    def found(once: bool, kind: type) -> list[Any]:
        return [op for part in ring[once] for op in part.forward if isinstance(op, kind)]

    assert {op.kv_heads for op in found(False, ir.Attention)} == {groups}
    assert {op.kv_heads for op in found(True, ir.Attention)} == {heads}
    (few,), (many,) = found(False, ir.SendRecv), found(True, ir.SendRecv)
    assert many.bytes == few.bytes * heads // groups
    more = sum(part.saved_bytes for part in ring[True]) - sum(p.saved_bytes for p in ring[False])
    tokens, width = Shard.of(make_job(LLAMA, cp=2)).tokens, LLAMA.qk_head_dim * SIZE
    assert more == 2 * (heads - groups) * width * tokens


def test_flash_attention_gets_several_sequences_copied_with_the_batch_outermost() -> None:
    """Q and K, as V is cut out of its product anyway, and the output back; not cuDNN's kernels."""

    def copied(of: str = "flash2", vendor: str = "nvidia", batch: int = 2, **software: Any) -> int:
        job = make_job(LLAMA, micro_batch=batch, training=software)
        newest = replace(job.gpu.architecture, newest_attention=of, vendor=vendor)
        job = replace(job, gpu=replace(job.gpu, architecture=newest))
        core = attention_parts(Shard.of(job), WHOLE)[-2]
        assert moved(list(core.backward)) == 0
        return moved(list(core.forward))

    declared = {"attention": "flash", "puts_batch_first": True}
    one = Shard.of(make_job(LLAMA, micro_batch=2))
    width = 2 * one.heads + one.kv_heads
    assert copied(**declared) == 2 * one.tokens * width * one.model.qk_head_dim * 2
    assert not copied(batch=1, **declared) + copied(puts_batch_first=False)
    assert not copied("flash", **declared)
    assert copied("flash", **declared | {"attention": "flash2"}) == copied(**declared)
    assert not copied(vendor="amd", **declared)


def test_heads_of_their_own_are_not_repeated() -> None:
    assert shard(TINY, repeats_kv=True) == shard(TINY)


def test_latent_rotary_positions_one_by_one_take_the_recorded_launches() -> None:
    """Of Q and of K eleven kernels forward and ten back, and joins (Megatron-Core 0.16)."""

    def launches(fused: bool) -> list[int]:
        job = make_job(MLA_MOE, training={"fused_rope": fused})
        run = build_workload(job).stages[0].chunks[0].runs[-2]
        return [
            op.launches
            for block in (run.forward, run.backward)
            for op in block.ops
            if getattr(op, "name", "").startswith("rope_")
        ]

    assert launches(True) == [2, 2]
    assert launches(False) == [28, 22]


def test_hand_fused_activations_are_clamped_by_kernels_of_their_own() -> None:
    clamped = replace(LLAMA, clamped_mlp=True)
    ahead, back = activation_ops(shard(clamped), "act", 1000)
    plain, plain_back = activation_ops(shard(), "act", 1000)
    assert moved(ahead) - moved(plain) == 16 * 1000
    assert moved(back) - moved(plain_back) == 30 * 1000
    # A constant is made on the device; compilers and eager code hold it.
    assert sum(isinstance(op, ir.HostSync) for op in ahead) == 1
    by_compiler = shard(clamped, fusion="compiled")
    assert moved(activation_ops(by_compiler, "act", 1000)[0]) == moved(
        activation_ops(shard(fusion="compiled"), "act", 1000)[0]
    )


def test_no_hand_made_kernel_has_a_temperature() -> None:
    scaled = replace(LLAMA, scaled_rope=True)
    assert moved(rope_ops(shard(scaled), 1000)[0]) == moved(
        rope_ops(shard(fusion="eager"), 1000)[0]
    )
    compiled = shard(scaled, fusion="compiled")
    assert moved(rope_ops(compiled, 1000)[0]) == moved(rope_ops(shard(), 1000)[0])


@pytest.mark.parametrize("pace", [1, 10])
def test_packed_sequences_are_turned_one_after_another(pace: int) -> None:
    """Of Q and of K 13 kernels forward and 12 back for each, at PyTorch's pace of launches."""
    facts = {"fusion": "fused", "fused_rope": False, "host_launch_s": pace * 7e-6}
    looped = facts | {"rope_by_document": True}
    packs = LLAMA.sequence_length // 20
    at_once = rope_ops(shard(**facts, packed_lengths=(20,)), 1000)
    by_one = rope_ops(shard(**looped, packed_lengths=(20,)), 1000)
    more = [launches(one) - launches(all_) for one, all_ in zip(by_one, at_once, strict=True)]
    assert more == [-(-26 * packs // pace), -(-24 * packs // pace)]
    # The host has to read their lengths, and each gradient comes out of a copy of all.
    assert [type(op) for op in by_one[0]] == [ir.HostSync, ir.Streaming]
    assert moved(by_one[1]) - moved(at_once[1]) == 2 * SIZE * 1000 * packs
    # Neither of whole sequences, nor of one kernel.
    assert rope_ops(shard(**looped), 1000) == rope_ops(shard(**facts), 1000)
    fused = {"packed_lengths": (20,), "fused_rope": True}
    assert rope_ops(shard(**looped | fused), 1000) == rope_ops(shard(**facts | fused), 1000)


def test_latent_rotary_positions_of_packed_sequences_too() -> None:
    def found(**software: Any) -> int:
        parts = attention_parts(shard(MLA_MOE, fused_rope=False, **software), WHOLE)
        return sum(launches(list(part.forward)) for part in parts)

    packed = {"packed_lengths": (8,)}
    more = 26 * MLA_MOE.sequence_length // 8
    assert found(**packed, rope_by_document=True) == found(**packed) + more
