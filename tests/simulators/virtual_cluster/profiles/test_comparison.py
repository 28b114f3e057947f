"""A profile made from a prediction gives back what it was made with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.profiles.made import (
    COMMUNICATION,
    ELEMENTWISE,
    KERNELS,
    Recorder,
    collective,
    predicted,
    record,
    small_job,
    tensors,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import Gemm
from trainscout.simulators.virtual_cluster.profiles.comparison import (
    Comparison,
    compare_step,
)
from trainscout.simulators.virtual_cluster.profiles.measured import (
    MARKED,
    REPEATED,
    WHOLE,
    measure_profile,
    read_profiles,
)
from trainscout.simulators.virtual_cluster.profiles.observed import (
    CallPrices,
    kernel_rows,
    observed_classes,
    observed_collectives,
    observed_host_s,
    observed_overlap,
    observed_record,
)
from trainscout.simulators.virtual_cluster.profiles.rows import MEMORY_BOUND

FACTORS = {"gemm": 1.25, "attention": 2.0, "optimizer": 1.5}


def compared(path: Path, **asked: object) -> Comparison:
    job = small_job(**asked)  # type: ignore[arg-type]
    prediction = ReplaySimulator().simulate(job)
    return compare_step(measure_profile(path), (0, 0), predicted(job), prediction)


def profile(
    path: Path, steps: int = 1, *, marked: bool = True, shapes: bool = True, **asked: object
) -> Path:
    recorder = Recorder()
    operations = predicted(small_job(**asked))  # type: ignore[arg-type]
    for step in range(steps):
        start_us = recorder.host_us
        record(recorder, operations, lambda kind: FACTORS.get(kind, 1.0), shapes)
        if marked:
            recorder.mark(step, start_us)
    return recorder.write(path)


@pytest.mark.parametrize("made_by", ["huggingface", "any"])
def test_classes_and_operations_differ_by_what_they_were_made_with(
    tmp_path: Path, made_by: str
) -> None:
    """Whether queries, keys and values were one product as predicted, or three."""
    path = profile(tmp_path / "p.json", steps=3, framework=made_by)
    found = compared(path)
    assert (found.passes, found.whole) == (("forward", "backward", "end"), True)
    assert found.profile.steps == 3
    assert found.profile.found == MARKED
    by_class = {row.kernel_class: row for row in found.classes}
    factors = {name: row.measured_s / row.predicted_s for name, row in by_class.items()}
    close = 1e-6 if made_by == "huggingface" else 0.1
    assert factors["gemm"] == pytest.approx(FACTORS["gemm"], rel=close)
    products = [row for row in found.operations if row.shape]
    assert all(row.measured_calls for row in products)
    if made_by == "huggingface":
        assert factors["attention"] == pytest.approx(FACTORS["attention"])
        assert by_class["optimizer"].error == pytest.approx(1 / 1.5 - 1)
        assert by_class[MEMORY_BOUND].error == pytest.approx(0, abs=1e-6)
        assert found.by_shape + found.by_place == pytest.approx(1)
        (end,) = [row for row in found.operations if row.block == "end of step"]
        assert end.measured_s == pytest.approx(end.predicted_s)
        calls = [row.predicted_calls for row in products]
        assert [row.measured_calls for row in products] == pytest.approx(calls)


def test_steps_are_found_by_what_repeats_where_nothing_marks_them(tmp_path: Path) -> None:
    path = profile(tmp_path / "p.json", steps=3, marked=False)
    found = measure_profile(path)
    assert (found.steps, found.found, found.earlier) == (3, REPEATED, 0)
    marked = measure_profile(profile(tmp_path / "q.json", steps=3))
    assert found.step_s == pytest.approx(marked.step_s)
    one = measure_profile(profile(tmp_path / "r.json", steps=1, marked=False))
    assert (one.steps, one.found) == (1, WHOLE)


def test_what_was_in_flight_before_the_profile_belongs_to_no_step(tmp_path: Path) -> None:
    recorder = Recorder()
    for _ in range(4):
        recorder.launch(KERNELS["gemm"], 1e-3)
    recorder.events = [each for each in recorder.events if each["cat"] == "kernel"]
    start_us = recorder.host_us
    record(recorder, predicted(small_job()))
    recorder.mark(0, start_us)
    found = compared(recorder.write(tmp_path / "p.json"))
    assert found.profile.earlier == 4
    gemm = next(row for row in found.classes if row.kernel_class == "gemm")
    assert gemm.error == pytest.approx(0, abs=1e-6)


def test_a_forward_pass_alone_is_compared_with_forward_passes(tmp_path: Path) -> None:
    recorder = Recorder()
    forward = [
        each
        for each in predicted(small_job())
        if each.pass_ == "forward" and each.block != "head_forward"
    ]
    record(recorder, forward)
    found = compared(recorder.write(tmp_path / "p.json"))
    assert (found.passes, found.absent, found.whole) == (("forward",), ("head_forward",), False)
    assert all(row.error == pytest.approx(0, abs=1e-6) for row in found.classes)


def test_a_profile_of_something_else_is_refused_with_what_differs(tmp_path: Path) -> None:
    path = profile(tmp_path / "p.json")
    with pytest.raises(InputError, match="2048 tokens a product as profiled, not 1024") as refused:
        compared(profile(tmp_path / "two.json", micro_batch=2), micro_batch=1)
    assert "micro_batch" in str(refused.value)
    recorder = Recorder()
    recorder.launch(ELEMENTWISE, 1e-3, "aten::add")
    with pytest.raises(InputError, match="no matrix products"):
        compared(recorder.write(tmp_path / "none.json"))
    with pytest.raises(InputError, match=r"records no shapes.*record_shapes=True"):
        compared(profile(tmp_path / "shapeless.json", shapes=False), framework="any")
    with pytest.raises(InputError, match="of another model"):
        compared(path, tp=2, world=2)
    empty = Recorder()
    with pytest.raises(InputError, match="no device work"):
        measure_profile(empty.write(tmp_path / "empty.json"))


def test_what_has_no_shapes_is_matched_in_turn_where_times_agree(tmp_path: Path) -> None:
    path = profile(tmp_path / "p.json", shapes=False)
    found = compared(path)
    assert found.by_shape == 0
    seconds = {row.kernel_class: row.measured_s for row in found.classes}
    shaped_s = seconds["gemm"] + seconds["attention"]
    assert found.by_turn == pytest.approx(shaped_s / sum(seconds.values()))
    gemm = next(row for row in found.classes if row.kernel_class == "gemm")
    assert gemm.measured_s == pytest.approx(1.25 * gemm.predicted_s)
    assert all(row.measured_calls == row.predicted_calls for row in found.operations if row.shape)
    job = small_job()
    narrow = replace(job, model=replace(job.model, ffn_hidden_size=1024, vocab_size=4096))
    with pytest.raises(InputError, match="other times than predicted"):
        compare_step(
            measure_profile(path), (0, 0), predicted(narrow), ReplaySimulator().simulate(narrow)
        )


def test_modules_of_vendors_are_taken_apart(tmp_path: Path) -> None:
    """Transformer Engine's: a norm and a product in one call whose weight is known, and two
    products in one call of which nothing is."""
    recorder = Recorder()
    operations = predicted(small_job(framework="any"))
    products = [each for each in operations if isinstance(each.op, Gemm)]
    forward = [each for each in products if each.pass_ == "forward"]
    backward = [each for each in products if each.pass_ == "backward"]
    for each in forward:
        assert isinstance(each.op, Gemm)
        x, weight = [each.op.m, 1, each.op.k], [each.op.n, each.op.k]
        given = tensors([x, [each.op.k], weight])
        recorder.launch(KERNELS["norm"], 1e-5, "_LayerNormLinear", **given)
        recorder.again(KERNELS["gemm"], 1.5 * each.seconds)
        recorder.again("cublasLt::splitKreduce_kernel", 0.5 * each.seconds)
    for first, second in zip(backward[::2], backward[1::2], strict=True):
        recorder.launch(KERNELS["gemm"], 3 * first.seconds, "_LayerNormLinearBackward")
        recorder.again(KERNELS["gemm"], 3 * second.seconds)
    found = compared(recorder.write(tmp_path / "p.json"), framework="any")
    assert found.passes == ("forward", "backward")
    factors = {
        row.pass_: row.measured_s / row.predicted_s
        for row in found.operations
        if row.shape and "attention_fwd" not in row.name and "attention_bwd" not in row.name
    }
    assert factors == {"forward": pytest.approx(2), "backward": pytest.approx(3)}


def test_collectives_are_counted_by_kind_and_group(tmp_path: Path) -> None:
    job = small_job(world=2, tp=2)
    recorder = Recorder(0, 2)
    record(recorder, predicted(job))
    recorder.launch("ncclDevKernel_Generic", 1e-3, "", COMMUNICATION)
    path = recorder.write(tmp_path / "p.json")
    found = compare_step(
        measure_profile(path), (0, 0), predicted(job), ReplaySimulator().simulate(job)
    )
    rows = {(row.kind, row.group_size): row for row in found.collectives}
    assert rows["unknown", 0].measured_calls == 1
    known = [row for row in found.collectives if row.kind != "unknown"]
    assert known
    assert all(row.measured_calls == row.predicted_calls for row in known)
    assert all(row.measured_s == pytest.approx(row.predicted_s, rel=1e-6) for row in known)


def test_who_comes_early_waits_and_the_collective_took_what_the_last_saw(tmp_path: Path) -> None:
    for rank, seconds in ((0, 5e-3), (1, 1e-3)):
        recorder = Recorder(rank, 2)
        recorder.launch(
            "ncclDevKernel_AllReduce", seconds, "", COMMUNICATION, **collective("all_reduce", 8, 2)
        )
        recorder.write(tmp_path / f"rank{rank}.json")
    met = read_profiles("profile.file", tmp_path)
    assert [each.operations[0].seconds for each in met] == pytest.approx([1e-3, 1e-3])
    assert [each.occupancy.exposed_s for each in met] == pytest.approx([5e-3, 1e-3])
    two = replace(small_job().cluster, gpus_per_node=2)
    (observed,) = observed_collectives(met, CallPrices(small_job().gpu, two))
    assert (observed.calls, observed.waits_included) == (1, False)
    assert observed.measured_s == pytest.approx(1e-3)
    Recorder(1, 2).write(tmp_path / "again.json")
    with pytest.raises(InputError, match="no device work"):
        read_profiles("profile.file", tmp_path)
    (tmp_path / "again.json").write_text((tmp_path / "rank1.json").read_text())
    with pytest.raises(InputError, match="one file a rank"):
        read_profiles("profile.file", tmp_path)


def test_gaps_are_the_hosts_where_the_kernel_had_not_been_launched(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.launch(ELEMENTWISE, 1e-6, "aten::add")
    recorder.host_us += 500
    recorder.launch(ELEMENTWISE, 1e-6, "aten::add")
    found = measure_profile(recorder.write(tmp_path / "p.json"))
    assert found.occupancy.idle_s == pytest.approx(503e-6)
    # The call begins a microsecond after its operation.
    assert found.occupancy.host_gap_s == pytest.approx(500e-6)
    assert found.host_work[0].waited_s == pytest.approx(504e-6)


def test_launches_that_the_device_waited_for_are_what_the_host_needs(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.launch(ELEMENTWISE, 1e-6, "aten::add")
    recorder.host_us += 20
    recorder.launch(ELEMENTWISE, 1e-6, "aten::add")  # 24 us later
    recorder.host_us += 6
    recorder.again(ELEMENTWISE, 1e-6)  # 10 us later
    recorder.host_us += 100
    recorder.wait(60.0)  # of what the host waited itself, nothing counts
    recorder.launch(ELEMENTWISE, 1e-3, "aten::add")
    recorder.host_us += 6
    recorder.launch(ELEMENTWISE, 1e-6, "aten::add")  # the device is busy: not waited for
    found = measure_profile(recorder.write(tmp_path / "p.json"))
    (work,) = found.host_work
    assert (work.launches, work.waited) == (5, 3)
    assert work.waited_s == pytest.approx((24 + 10 + 104 - 60) * 1e-6)
    assert observed_host_s([found]) == pytest.approx(5 / 3 * work.waited_s)
    busy = replace(found, host_work=(replace(work, launches=7),))
    assert observed_host_s([busy]) is None


def test_collectives_are_priced_call_by_call(tmp_path: Path) -> None:
    cluster = replace(small_job().cluster, num_nodes=2, gpus_per_node=8)
    gpu = small_job().gpu
    recorder = Recorder(0, 16)
    for seconds, ranks in ((3e-3, 8), (2e-3, 8), (4e-3, 16)):
        call = collective("all_reduce", 1 << 24, ranks)
        recorder.launch("ncclDevKernel", seconds, "", COMMUNICATION, **call)
    found = measure_profile(recorder.write(tmp_path / "p.json"))
    inside, between = observed_collectives([found], CallPrices(gpu, cluster))
    assert (inside.calls, inside.leaves_node, inside.waits_included) == (2, False, True)
    assert inside.measured_s == pytest.approx(2e-3)
    assert between.leaves_node
    assert between.priced_s > inside.priced_s > 0
    assert not observed_collectives([found], CallPrices(gpu, None))


def test_factors_and_tables_of_kernels_follow_from_shapes_alone(tmp_path: Path) -> None:
    job = small_job()
    found = measure_profile(profile(tmp_path / "p.json", steps=2))
    classes = observed_classes(found.operations, found.steps, job.gpu)
    assert classes["gemm"].factor == pytest.approx(1.25)
    assert classes["gemm"].log_spread == pytest.approx(0, abs=1e-9)
    assert classes["optimizer"].factor is None
    record_ = observed_record([found], job.gpu, job.cluster)
    assert record_["classes"]["gemm"]["operations"] == classes["gemm"].operations
    assert record_["compared"] == {}
    step = compared(tmp_path / "p.json")
    beside = observed_record([found], job.gpu, job.cluster, [step])
    assert beside["compared"]["gemm"]["measured_s"] == pytest.approx(
        FACTORS["gemm"] * beside["compared"]["gemm"]["predicted_s"]
    )
    wanted = job.framework.host_launch_s * sum(
        getattr(each.op, "launches", 1) for each in predicted(job)
    )
    assert beside["host"]["predicted_s"] > wanted
    rows = kernel_rows(found.operations, job.gpu)
    assert len(rows["gemm"]) == classes["gemm"].shapes
    from trainscout.simulators.predictor.kernels.measured import load_measured
    from trainscout.simulators.predictor.kernels.prices import price_kernels
    from trainscout.simulators.virtual_cluster.profiles.observed import kept_files, write_files

    write_files("--output", tmp_path / "kept", kept_files(record_, found.operations, job.gpu))
    table = load_measured(tmp_path / "kept" / "measured_kernels")
    one = next(each for each in found.operations if each.kernel_class == "gemm")
    priced = price_kernels(job.gpu, one.kernels, table)
    assert priced.seconds[0] == pytest.approx(one.seconds, rel=1e-3)
    assert priced.evidence[0] == 0


def test_kernels_beside_communication_measure_overlap_and_nothing_else(tmp_path: Path) -> None:
    job = small_job()
    gemm = next(each for each in predicted(job) if each.op.name == "fc2_fwd")
    recorder = Recorder()
    record(recorder, [gemm])
    recorder.launch("ncclDevKernel", 1.0, "", COMMUNICATION, **collective("all_reduce", 8, 2))
    recorder.device_us -= 0.9e6
    record(recorder, [gemm], lambda _: 1.2)
    found = measure_profile(recorder.write(tmp_path / "p.json"))
    overlap = observed_overlap(found.operations, job.gpu, CallPrices(job.gpu, job.cluster))
    assert overlap.operations == 1
    assert overlap.slowdown == pytest.approx(1.2)
    # On one GPU nobody knows what its communication takes; on two it holds SMs.
    assert overlap.priced is None
    two = replace(job.cluster, gpus_per_node=2)
    known = observed_overlap(found.operations, job.gpu, CallPrices(job.gpu, two))
    assert known.priced is not None
    assert 1 < known.priced < 1.5
    classes = observed_classes(found.operations, 1, job.gpu)
    assert classes["gemm"].factor == pytest.approx(1.0)
