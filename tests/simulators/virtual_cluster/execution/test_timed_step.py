"""Which step of a trace is timed, and the memory that ranks need over it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulators.virtual_cluster.execution.scripts import (
    BIG,
    MIB,
    SMALL,
    Script,
    alone,
    finite,
    gemm_s,
    play,
    steps,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces import events


def test_the_last_step_counts_and_setup_does_not() -> None:
    step = play(steps(3))
    assert step.step_time_s == pytest.approx(gemm_s(BIG, 1) + gemm_s(SMALL, 1))
    assert step.breakdown_s["optimizer"] == pytest.approx(gemm_s(SMALL, 1))
    times = step.ranks[0].times
    assert np.isnan(times.start_s[:8]).all()
    assert finite(times.start_s).min() == 0.0
    once = play(steps(1))
    assert once.step_time_s == pytest.approx(gemm_s(8192, 1) + gemm_s(SMALL, 1))
    assert not any("no optimizer" in each for each in once.assumptions)
    forward = Script(0, 1)
    forward.gemm(SMALL)
    assert any("no optimizer" in each for each in play(forward).assumptions)


def test_what_is_said_of_device_work_is_of_the_step_that_is_timed() -> None:
    script = alone()
    for number in range(2):
        script.step(number)
        script.gemm(SMALL)
        script.step(number, "optimizer")
        script.gemm(SMALL)
        script.step(number, "other")
        # Before the next forward pass, as a second-order optimizer's factors; then at the end.
        for _ in range(1 + 2 * number):
            script.gemm(BIG)
    step = play(script)
    assert step.step_time_s == pytest.approx(gemm_s(BIG, 1) + 2 * gemm_s(SMALL, 1))
    assert step.ranks[0].flops == 2 * BIG**3 + 4 * SMALL**3


def test_what_the_last_step_alone_does_is_said() -> None:
    script = steps(2)
    assert not any("now and then" in each for each in play(script).assumptions)
    # Text is generated after the second update: it falls to the third step.
    script.step(2)
    for _ in range(4):
        script.gemm(SMALL)
    script.step(2, "optimizer")
    script.gemm(SMALL)
    (told,) = [each for each in play(script).assumptions if "now and then" in each]
    assert told.startswith("the last step launches 5 kernels, the one before 2: ")


def sampled(updates: int, *, read: bool, every: int = 3) -> Script:
    """Four products more before every so many updates, of whose result the others make use."""
    script = alone()
    for number in range(updates):
        script.step(number)
        text = 100 + number // every * every
        for _ in range(1 if number % every else 4):
            script.gemm(SMALL)
        if read or number % every == 0:
            sample = events.TensorSpec("bfloat16", (SMALL, SMALL), text)
            script.events.append(events.Op("aten.mm.default", (sample, sample), (sample,), 0))
        else:
            script.gemm(SMALL)
        script.step(number, "optimizer")
        script.gemm(SMALL)
    return script


@pytest.mark.parametrize("more", range(4))
def test_updates_that_share_what_one_sampled_are_a_step_together(more: int) -> None:
    step = play(sampled(6 + more, read=True))
    assert step.step_time_s == pytest.approx((5 + 2 + 2 + 3) * gemm_s(SMALL, 1))
    assert "every 3 updates of parameters do the same again: together" in str(step.assumptions)
    assert step.ranks[0].flops == 12 * 2 * SMALL**3


def test_what_no_later_update_reads_is_shared_out_over_steps() -> None:
    step = play(sampled(8, read=False))
    assert step.step_time_s == pytest.approx((5 + 2 + 2 + 3) / 3 * gemm_s(SMALL, 1))
    assert "their mean is stated" in str(step.assumptions)
    assert step.ranks[0].flops == 4 * 2 * SMALL**3


@pytest.mark.parametrize("updates", [4, 5, 6])
def test_weights_averaged_after_every_second_update_count_by_half(updates: int) -> None:
    script = alone()
    for number in range(updates):
        script.step(number)
        script.gemm(BIG)
        script.step(number, "optimizer")
        script.gemm(SMALL)
        script.step(number, "other")
        if number % 2:
            script.gemm(BIG)
    expected = gemm_s(SMALL, 1) + 1.5 * gemm_s(BIG, 1)
    if updates == 4:
        # Seen once: after the second update, or after the last, which is no part of a step.
        expected = gemm_s(SMALL, 1) + gemm_s(BIG, 1)
    assert play(script).step_time_s == pytest.approx(expected)


@pytest.mark.parametrize("updates", [4, 5, 6])
def test_an_evaluation_after_every_second_update_counts_by_half(updates: int) -> None:
    script = alone()
    for number in range(updates):
        script.step(number)
        script.gemm(BIG)
        script.step(number, "optimizer")
        script.gemm(SMALL)
        if number % 2:
            script.step(number + 1)
            for _ in range(3):
                script.gemm(BIG)
    expected = gemm_s(SMALL, 1) + 2.5 * gemm_s(BIG, 1)
    if updates == 4:
        # Traced once: what follows the last update is no part of a step.
        expected = gemm_s(SMALL, 1) + gemm_s(BIG, 1)
    assert play(script).step_time_s == pytest.approx(expected)


@pytest.mark.parametrize("updates", [5, 7])
def test_what_an_optimizer_does_every_third_time_counts_by_a_third(updates: int) -> None:
    script = alone()
    for number in range(updates):
        script.step(number)
        for _ in range(60):
            script.gemm(SMALL)
        script.step(number, "optimizer")
        for _ in range(40):
            script.gemm(SMALL)
        # Few beside the others, but long.
        weight = events.TensorSpec("bfloat16", (1, BIG, BIG), 1)
        for _ in range(4 if number % 3 == 2 else 0):
            script.events.append(events.Op("aten.bmm.default", (weight, weight), (weight,), 0))
    step = play(script)
    said = [each for each in step.assumptions if "so many steps" in each]
    if updates == 5:
        (told,) = said
        assert told.startswith("step 2 runs aten.bmm.default 4 times, the last 0: ")
        assert step.step_time_s == pytest.approx(100 * gemm_s(SMALL, 1))
    else:
        assert not said
        assert step.step_time_s > 100 * gemm_s(SMALL, 1) + gemm_s(BIG, 1)


def test_communication_of_earlier_steps_alone_is_said() -> None:
    scripts = [Script(rank, 2) for rank in range(2)]
    for script in scripts:
        script.group("g", 0, 1)
        for number in range(4):
            script.step(number)
            script.gemm(SMALL)
            script.step(number, "optimizer")
            script.gemm(SMALL)
            script.step(number, "other")
            if number == 1:
                script.collective("g", MIB)
    (told,) = [each for each in play(*scripts).assumptions if "communications" in each]
    assert told.startswith("step 2 launches 1 communications, the last 0: ")


def test_what_only_earlier_steps_do_is_said() -> None:
    # Text is sampled once, for more updates than were traced.
    step = play(sampled(3, read=True))
    (told,) = [each for each in step.assumptions if "forward passes" in each]
    assert told.startswith("forward passes of step 0 launch 5 operations, those of the last 2: ")
    assert not any("forward passes" in each for each in play(steps(3)).assumptions)


@pytest.mark.parametrize(("sizes", "step"), [((8, 6, 4), 0), ((4, 2, 4), 1), ((16, 15, 16), None)])
def test_steps_that_differ_in_length_are_said(sizes: tuple[int, ...], step: int | None) -> None:
    script = alone()
    for number, size in enumerate(sizes):
        script.step(number)
        script.gemm(1024 * size)
        script.step(number, "optimizer")
        script.gemm(SMALL)
    told = [each for each in play(script).assumptions if "times as many elements" in each]
    if step is None:
        assert not told
        return
    (only,) = told
    ratio = (sizes[step] / sizes[-1]) ** 2
    assert only.startswith(
        f"step {step} works on {ratio:.3g} times as many elements as the last, "
    )


def test_an_evaluation_after_each_update_is_no_longer_text() -> None:
    # That after the last is of no step, that of the first belongs to the second.
    script = alone()
    for number in range(3):
        script.step(number)
        for _ in range(3 if number else 1):
            script.gemm(BIG)
        script.step(number, "optimizer")
        script.gemm(SMALL)
    assert not any("times as many elements" in each for each in play(script).assumptions)


def test_an_evaluation_that_ends_the_script_is_no_step() -> None:
    script = steps(3)
    script.step(3)
    for _ in range(4):
        script.gemm(BIG)
    assert play(script).step_time_s == pytest.approx(gemm_s(BIG, 1) + gemm_s(SMALL, 1))


@pytest.mark.parametrize("turns", [2, 3])
def test_optimizers_that_step_by_turns_make_one_step_together(turns: int) -> None:
    script = Script(0, 1, begun=False)
    for number in range(3 * turns):
        # Of the last in turn others than of those before it.
        storage = 1 + (number % turns == turns - 1)
        script.step(number)
        script.gemm(BIG if storage == 1 else SMALL)
        script.step(number, "optimizer")
        weight = events.TensorSpec("bfloat16", (SMALL, SMALL), storage)
        script.events.append(events.Op("aten.mm.default", (weight, weight), (weight,), 0))
        if number in (0, turns - 1):
            # Only where its last optimizer has not stepped before is one's part taken for all.
            said = any("by turns" in each for each in play(script).assumptions)
            assert said == (number == turns - 1)
    expected = (turns - 1) * gemm_s(BIG, 1) + (turns + 1) * gemm_s(SMALL, 1)
    step = play(script)
    assert step.step_time_s == pytest.approx(expected)
    assert not any("by turns" in each for each in step.assumptions)


def test_ranks_that_traced_other_steps_are_refused() -> None:
    scripts = [Script(rank, 2) for rank in range(2)]
    for script in scripts:
        for number in range(script.rank + 1):
            script.step(number)
            script.gemm(SMALL)
    with pytest.raises(InputError, match=r"traces\.steps"):
        play(*scripts)


def test_memory_over_the_step() -> None:
    script = steps(2)
    script.alloc(1, 30 * MIB)
    script.gemm(BIG, stream=3)
    script.record_stream(1, 3)
    script.free(1)
    script.alloc(2, 30 * MIB)
    script.synchronise()
    script.alloc(3, 30 * MIB)
    memory = play(script).ranks[0].memory
    # The second cannot have the first one's memory yet, the third can.
    reserved = memory.over_time.reserved_bytes.tolist()
    assert reserved == [30 * MIB, 30 * MIB, 60 * MIB, 60 * MIB]
    assert memory.peak_reserved_bytes == 60 * MIB
    held = {"allocated": 60 * MIB, "deferred": 0, "free": 0, "largest_free": 0}
    assert memory.over_time.at_peak == held
    assert np.diff(memory.time_s).min() >= 0
    outside = sum(memory.outside_bytes.values())
    assert memory.headroom_bytes == memory.capacity_bytes - 60 * MIB - outside
    assert not memory.runs_out


def test_a_rank_that_runs_out_of_memory_says_by_how_much() -> None:
    script = steps(1)
    for storage in range(3):
        script.alloc(storage, 40 * 2**30)
    step = play(script)
    memory = step.ranks[0].memory
    assert memory.runs_out
    assert not step.fits
    assert memory.peak_reserved_bytes == 120 * 2**30
    assert memory.headroom_bytes < -40 * 2**30


def test_a_rank_fits_whose_cache_the_allocator_can_give_back() -> None:
    script = steps(1)
    # What is cached of the first does not serve the others; all three would be 77 GiB of 76.
    for storage, gib in enumerate((24, 26)):
        script.alloc(storage, gib * 2**30)
        script.synchronise()
        script.free(storage)
        script.synchronise()
    script.alloc(2, 27 * 2**30)
    step = play(script)
    memory = step.ranks[0].memory
    assert memory.over_time.retries == 1
    assert step.fits
    assert memory.peak_reserved_bytes == 50 * 2**30
