"""How far off predicted memory is, from what was measured, what ran and what failed."""

import math
from dataclasses import replace

import pytest

from tests.simulators.laboratory.published.runs import RUN, declarations
from trainscout.simulators.laboratory.memory import (
    FAILED_LAYOUTS,
    SWEPT_RUNS,
    Evidence,
    bands,
    evidence,
    failed_for_memory,
    fit,
)
from trainscout.simulators.laboratory.published.reading.rows import read_rows


def told(publication: str, *offs: float) -> list[Evidence]:
    return [Evidence(publication, "theirs", off, 1.0) for off in offs]


def near(rooms: list[float], *, failed: bool) -> list[Evidence]:
    return [
        Evidence(f"paper {place}", "theirs", None, room, failed)
        for place, room in enumerate(rooms)
    ]


def test_what_many_publications_measured_is_what_is_believed() -> None:
    found = [each for place in range(60) for each in told(f"paper {place}", 0.05, 0.15)]
    spread = fit(found)["theirs"]
    assert spread.bias == pytest.approx(0.1, abs=0.02)
    assert spread.scale == pytest.approx(0.05, abs=0.015)


def test_a_run_that_was_another_than_it_says_is_no_error_of_predictions() -> None:
    found = [each for place in range(60) for each in told(f"paper {place}", 0.05, 0.15)]
    as_told, with_another = fit(found)["theirs"], fit(found + told("another", -0.7))["theirs"]
    assert with_another.bias == pytest.approx(as_told.bias, abs=0.005)
    assert with_another.scale == pytest.approx(as_told.scale, rel=0.1)


def test_runs_of_one_publication_weigh_at_most_as_one_and_a_single_run_as_half() -> None:
    def moved(*offs: float) -> float:
        return fit(told("paper", *offs))["any"].bias

    assert 0 < moved(0.1) < moved(0.1, 0.1) < moved(*[0.1] * 50) <= moved(*[0.1] * 500)
    halves = fit(told("paper", 0.1) + told("another", 0.1))["any"]
    assert halves.bias == pytest.approx(moved(*[0.1] * 500), abs=1e-3)


def test_bands_say_what_publications_left_out_measured() -> None:
    found = [each for place in range(10) for each in told(f"paper {place}", *[0.1] * 4, 0.9)]
    *_, last = bands(found).splitlines()
    assert last.startswith("measured, 10 publications alike: 0% below 20%, ")
    assert last.endswith(", 80% below 80%, 80% below 90%, 80% below 98%")


def test_what_ran_beyond_the_capacity_and_what_failed_below_it_pull_apart() -> None:
    nothing = fit([])["any"]
    ran, failed = near([-0.1] * 20, failed=False), near([0.1] * 20, failed=True)
    far = [replace(each, failed=True, room=-3.0) for each in ran]
    assert fit(ran + far)["theirs"].bias < nothing.bias < fit(failed)["theirs"].bias
    # What ran where nobody says what failed was published because it ran.
    assert fit(ran)["any"] == nothing
    # Far from the capacity nothing is learnt.
    assert fit(near([3.0, -3.0], failed=False))["any"] == nothing


def test_rows_are_evidence_of_what_they_publish() -> None:
    row = replace(RUN, measured_peak_mem_gib=10.0, memory_kind="allocated", recompute="none")
    (measured,) = evidence([row], declarations())
    (ran,) = evidence([replace(row, memory_kind="device")], declarations())
    assert (measured.kind, ran.kind) == ("measured", "ran")
    assert measured.room == ran.room
    (doubled,) = evidence([replace(row, measured_peak_mem_gib=20.0)], declarations())
    assert measured.off is not None
    assert doubled.off == pytest.approx(measured.off + math.log(2))
    assert evidence([replace(row, quality="C")], declarations()) == []
    for inferred in ("sp num_gpus", "vocab, recompute", "micro_batch"):
        assert evidence([replace(row, inferred_fields=inferred)], declarations()) == []


def test_the_layouts_that_failed_can_be_predicted() -> None:
    rows = read_rows(FAILED_LAYOUTS)
    assert len(rows) == 929
    found = evidence(rows[::200], declarations(), failed=True)
    assert found
    assert {each.kind for each in found} == {"failed"}


def test_layouts_whose_failure_something_else_explains_are_no_evidence_of_memory() -> None:
    failed = replace(RUN, pp=2, cp=None, num_layers=8)
    assert failed_for_memory([failed], []) == [failed]
    assert failed_for_memory([failed], [replace(failed, id="ran", cp=1)]) == []
    for other in (
        replace(failed, tp=4),
        replace(failed, micro_batch=4),
        replace(failed, global_batch=4),
        replace(failed, dist_optimizer="zero0"),
        replace(failed, source="another sweep"),
    ):
        assert failed_for_memory([failed], [other]) == [failed]
    assert failed_for_memory([replace(failed, pp=9)], []) == []
    assert failed_for_memory([replace(failed, pp=8)], []) != []


def test_of_the_sweep_the_layouts_that_ran_too_and_those_short_of_layers_are_left_out() -> None:
    rows, ran = read_rows(FAILED_LAYOUTS), read_rows(SWEPT_RUNS)
    short = [row for row in rows if (row.pp or 1) > (row.num_layers or 0)]
    assert len(short) == 52
    assert len(rows) - len(failed_for_memory(rows, [])) == len(short)
    assert len(rows) - len(failed_for_memory(rows, ran)) == len(short) + 13
