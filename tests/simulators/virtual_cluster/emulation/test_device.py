"""What a script does on the device: streams, memory, communication and races, all written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import Run, emulate, emulate_text
from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    Begin,
    Collective,
    EmptyCache,
    End,
    EventRecord,
    EventWait,
    Free,
    Group,
    Op,
    Phase,
    PointToPoint,
    RecordStream,
    Resize,
    Synchronise,
    ValueRead,
    Violation,
    WorkWait,
)
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("device")
    world = ("--world-size", 16, "--rank", 9, "--local-world-size", 4, "--memory-gib", 8)
    return emulate(folder, "device_use.py", *world)


def test_the_script_ran_through_and_its_exit_code_is_told(run: Run) -> None:
    assert run.code == 1, run.output
    assert "the script ended: exit code 7\n" in run.output


def test_streams_and_events_order_operations(run: Run) -> None:
    section = run.section("streams")
    doubled = next(e for e in run.of("streams", Op) if e.name == "aten.mul_.Tensor")
    assert doubled.stream != 0
    (first, handed_back, end) = run.of("streams", EventRecord)
    assert first.stream == 0
    assert first.timing
    assert handed_back.stream == doubled.stream
    waits = run.of("streams", EventWait)
    assert [(wait.event, wait.stream) for wait in waits] == [
        (first.event, doubled.stream),
        (handed_back.event, 0),
    ]
    assert Synchronise("event", end.event, _site(section, Synchronise)) in section
    assert not run.of("streams", Violation)


def test_a_tensor_used_on_another_stream_without_waiting_is_flagged(run: Run) -> None:
    kinds = [violation.kind for violation in run.of("wrong stream", Violation)]
    assert kinds == ["wrong stream"]


def test_memory_reused_while_another_stream_uses_it_is_flagged_unless_recorded(run: Run) -> None:
    assert run.of("recorded", RecordStream)
    assert not run.of("recorded", Violation)
    kinds = [violation.kind for violation in run.of("freed in use", Violation)]
    assert kinds == ["freed in use"]


def test_different_parts_of_one_buffer_do_not_race(run: Run) -> None:
    assert not run.of("parts", Violation)


def test_using_a_result_before_waiting_for_its_collective_is_flagged(run: Run) -> None:
    assert len(run.of("collective in flight", Violation)) == 1


def test_what_the_host_saw_to_be_over_and_what_asks_for_sizes_alone_do_not_race(run: Run) -> None:
    assert not run.of("seen to be over", Violation)
    # Who asks until an event, a stream or a communication is over, waits for it.
    waited = run.of("seen to be over", Synchronise)
    assert [each.scope for each in waited] == ["event", "stream"]
    assert [each.blocks_host for each in run.of("seen to be over", WorkWait)] == [True, False]


def test_collectives_say_who_takes_part_and_what_moves(run: Run) -> None:
    (group,) = run.of("collectives", Group)
    assert (group.description, group.ranks) == ("ODD", (1, 5, 7, 9))
    calls = run.of("collectives", Collective)
    assert {call.group for call in calls[:-1]} == {group.name}
    found = [(call.kind, call.bytes_in, call.bytes_out, call.sequence) for call in calls]
    assert found == [
        ("all_gather", 4096, 16384, 0),
        ("reduce_scatter", 16384, 4096, 1),
        ("all_to_all", 4096, 4096, 2),
        ("broadcast", 4096, 4096, 3),
        # On the default group, after the all-reduce in flight.
        ("barrier", 0, 0, 1),
    ]
    assert calls[2].splits_in == (256, 256, 256, 256)
    assert calls[2].splits_out == (512, 256, 128, 128)
    assert calls[3].root == 5
    waits = run.of("collectives", WorkWait)
    assert [wait.work for wait in waits] == [call.work for call in calls]
    assert [wait.blocks_host for wait in waits] == [False] * 4 + [True]


def test_transfers_name_global_peers_batches_and_sequence(run: Run) -> None:
    found = [
        (transfer.kind, transfer.peer, transfer.sequence, transfer.batch is None)
        for transfer in run.of("transfers", PointToPoint)
    ]
    assert found == [
        ("send", 1, 0, False),
        ("recv", 7, 0, False),
        ("send", 5, 0, True),
        ("send", 5, 1, True),
    ]
    assert "no such member" in run.output
    assert [violation.kind for violation in run.of("transfers", Violation)] == ["unknown peer"]


def test_reads_of_the_device_wait_for_its_stream(run: Run) -> None:
    reads = run.of("host", ValueRead)
    assert [(read.operation, read.value, read.grade) for read in reads] == [
        ("tolist", (6, 10), "exact"),
        ("item", 8, "exact"),
    ]
    # Communication between hosts is none of the device's.
    assert not run.of("host", Collective)


def test_memory_that_is_not_pinned_makes_the_host_wait(run: Run) -> None:
    # Of each copy: are there bytes that the driver stages, does the host wait?
    expected = [(0, 0), (0, 1), (1, 1), (1, 0), (0, 0), (1, 1), (0, 0)]
    found = [
        (
            any(lower(op).pageable_bytes for op in run.of(f"copy {number}", Op)),
            bool(run.of(f"copy {number}", Synchronise) + run.of(f"copy {number}", ValueRead)),
        )
        for number in range(len(expected))
    ]
    assert found == expected


def test_memory_is_followed_through_resizes_and_frees(run: Run) -> None:
    (big,) = [event for event in run.of("memory", Alloc) if event.bytes == 2**30]
    order = (big, Resize(big.storage, 0), Free(big.storage), EmptyCache())
    places = [run.section("memory").index(event) for event in order]
    assert places == sorted(places)


def test_running_out_of_memory_raises_torchs_error_in_its_words(run: Run) -> None:
    assert "CUDA out of memory. Tried to allocate 9.00 GiB" in run.output
    assert "has a total capacity of 8.00 GiB" in run.output
    assert not run.of("out of memory", Alloc)


def test_a_compiled_function_is_marked(run: Run) -> None:
    section = run.section("compiled")
    opening = section.index(Begin("fused", "gelu"))
    closing = section.index(End("fused"))
    inside = [event.name for event in section[opening:closing] if isinstance(event, Op)]
    assert inside == ["aten.mul.Tensor", "aten.sigmoid.default", "aten.mul.Tensor"]


def test_the_backward_of_compiled_functions_is_marked_recomputation_included(run: Run) -> None:
    section = run.section("compiled backward")
    opened = [event.name for event in section if isinstance(event, Begin)]
    # Both forward; recomputed; then backward, the recomputed one within its own pass.
    assert opened == ["gelu", "gelu", "gelu", "gelu.backward", "gelu.backward"]
    assert sum(isinstance(event, End) for event in section) == 5
    outside, depth = [], 0
    for event in section:
        depth += isinstance(event, Begin) - isinstance(event, End)
        if isinstance(event, Op) and not depth:
            outside.append(event.name)
    assert outside.count("aten.mm.default") == 3
    assert not any("sigmoid" in name for name in outside)


def test_masks_of_blocks_say_how_much_is_computed(run: Run) -> None:
    shares = [
        [value[1] for value in op.inputs if isinstance(value, tuple) and "computed_share" in value]
        for op in run.of("masks of blocks", Op)
        if op.name == "higher_order.flex_attention"
    ]
    # Of 8 x 8 blocks: three of each of four documents; two a row but for the first; nobody knows.
    assert shares == [[12 / 64], [15 / 64], []]


def test_attention_takes_the_kernel_a_gpu_takes(run: Run) -> None:
    names = [op.name for op in run.of("attention", Op) if "attention" in op.name]
    # cuDNN's comes first on a Hopper, unless it is put last, knows no fp32, and gives no gradient
    # to a bias.
    assert names == [
        f"aten._scaled_dot_product_{kernel}_attention.default"
        for kernel in ("cudnn", "cudnn", "efficient", "cudnn", "flash", "efficient")
    ]


def test_products_of_fp32_say_whether_they_may_be_rounded(run: Run) -> None:
    plain, rounded = [op for op in run.of("products of fp32", Op) if op.name == "aten.mm.default"]
    assert lower(plain).kernels[0].dtype == "fp32"  # type: ignore[union-attr]
    assert lower(rounded).kernels[0].dtype == "tf32"  # type: ignore[union-attr]


def test_what_is_one_kernel_on_a_gpu_is_one_operation(run: Run) -> None:
    names = [
        op.name.removeprefix("aten.").removesuffix(".default") for op in run.of("kernels", Op)
    ]
    assert [name for name in names if name not in ("randn", "ones", "fill_.Scalar")] == [
        "_fused_rms_norm",
        "silu",
        "silu_backward",
        "_fused_rms_norm_backward",
    ]


def test_what_cannot_be_emulated_is_refused_in_words(run: Run) -> None:
    assert "AttentionBias" in run.output


def test_recurrent_layers_are_one_operation_a_pass(run: Run) -> None:
    assert "recurrent (12, 32) (4, 3, 16) (4, 3, 16)" in run.output
    assert "recurrent (3, 5, 16) (1, 3, 16)" in run.output
    names = [op.name for op in run.of("recurrent", Op) if "cudnn" in op.name]
    rnn = "aten._cudnn_rnn"
    assert names == [f"{rnn}.default", f"{rnn}_backward.default", f"{rnn}.default"]


def test_tensors_are_loaded_where_they_were_or_where_they_are_told_to_go(run: Run) -> None:
    places = [line.rpartition(" ")[2] for line in run.output.split("\n") if "loaded on" in line]
    assert places == ["cuda:1", "cpu", "cpu", "cuda:1"]
    known = "known again [0.0, 0.25, 0.5, 0.75, 1.0] [[True], [False]] cuda:1 torch.Size([3])"
    assert known in run.output


def test_parameters_keep_their_own_type_and_may_change_size(run: Run) -> None:
    assert "Quantised True 2.0" in run.output
    assert "torch.Size([45000, 1]) torch.uint8 cuda:1" in run.output


def test_steps_have_phases_and_optimizers_use_multi_tensor_kernels(run: Run) -> None:
    phases = [(phase.phase, phase.step) for phase in run.of("training", Phase)]
    step = ["forward", "backward", "other", "optimizer", "other"]
    assert phases == [(phase, number) for number in (0, 1) for phase in step]
    names = [op.name for op in run.of("training", Op)]
    assert names.count("aten._foreach_lerp_.Scalar") == 2
    assert names.count("aten._foreach_norm.Scalar") == 2
    assert not any(name.startswith(("aten.addcdiv", "aten.lerp")) for name in names)


def test_operations_say_where_they_were_called(run: Run) -> None:
    from trainscout.simulators.virtual_cluster.traces.events import Site

    sites = {event.number: event for event in run.trace.events if isinstance(event, Site)}
    (op,) = [op for op in run.of("wrong stream", Op) if op.name == "aten.mul_.Tensor"]
    assert op.site is not None
    assert sites[op.site].file.endswith("device_use.py")


def _site(section: list[object], kind: type) -> int | None:
    return next(event.site for event in section if isinstance(event, kind))  # type: ignore[attr-defined]


def test_shapes_at_other_sizes_are_torch_s(tmp_path: Path) -> None:
    run = emulate(tmp_path, "other_sizes.py", "--world-size", 1)
    assert "all alike" in run.output, run.output


_GROUPED = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

many, few = (torch.randn(1, n, 128, 64, dtype=torch.float16, device="cuda") for n in (8, 2))
for name, keys in (("equal", many), ("grouped", few)):
    torch.cuda.nvtx.range_push(name)
    with torch.autocast("cuda", torch.float16):
        print(name, attend(many, keys, keys, is_causal=True, enable_gqa=True).dtype)
    torch.cuda.nvtx.range_pop()
"""


def test_grouped_heads_without_flash_attention_are_multiplied_in_fp32(tmp_path: Path) -> None:
    one = ("--world-size", 1, "--gpu")
    run = emulate_text(tmp_path, "grouped.py", _GROUPED, *one, "v100_32")
    assert "equal torch.float16" in run.output
    assert "grouped torch.float16" in run.output
    assert any("efficient_attention" in op.name for op in run.of("equal", Op))
    grouped = run.of("grouped", Op)
    assert not any("attention" in op.name for op in grouped)
    products = [op for op in grouped if "mm" in op.name]
    assert [lower(op).kernels[0].dtype for op in products] == ["fp32"] * 2  # type: ignore[union-attr]

    newer = emulate_text(tmp_path, "newer.py", _GROUPED, *one, "a100_80")
    assert any("flash_attention" in op.name for op in newer.of("grouped", Op))
