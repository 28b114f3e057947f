"""How far off predicted memory is, from what was measured, what ran and what failed."""

import math
from dataclasses import replace

import pytest

from tests.simulators.laboratory.published.runs import RUN, declarations
from trainscout.simulators.laboratory.memory import FAILED_LAYOUTS, Evidence, evidence, fit
from trainscout.simulators.laboratory.published.rows import read_rows


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


def test_runs_of_one_publication_weigh_as_one() -> None:
    alone = fit(told("paper", 0.1))
    assert fit(told("paper", *[0.1] * 50)) == alone
    assert fit(told("paper", 0.1) + told("another", 0.1))["any"].bias > alone["any"].bias


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
