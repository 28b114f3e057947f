"""The transports' files, and what they say of errors."""

from __future__ import annotations

import pytest

from trainscout.simulators.laboratory.collectives.fit import TRANSPORTS, documents
from trainscout.simulators.laboratory.collectives.measurements import BAND_NAMES
from trainscout.simulators.predictor.collectives.transport import (
    DIRECTORY,
    FABRICS,
    left_out_error,
    load,
    transport,
)
from trainscout.simulators.predictor.question.cluster import FABRICS as JOB_FABRICS


def test_every_fabric_of_a_job_has_a_file() -> None:
    assert {*FABRICS, "none"} == set(JOB_FABRICS)
    assert {path.stem for path in DIRECTORY.glob("*.yaml")} == set(TRANSPORTS)


@pytest.mark.parametrize("name", TRANSPORTS)
def test_fitted_parts_say_where_they_are_from(name: str) -> None:
    fitted = load(name)["fitted"]
    assert fitted["command"].startswith("trainscout collectives fit")
    assert fitted["provenance"]
    for entry in fitted["coefficients"].values():
        assert bool(entry["rows"]) == bool(entry["clusters"])
        assert all(value >= 0 for value in entry["terms"].values())
    for bands in fitted["errors"].values():
        assert set(bands) <= set(BAND_NAMES)
        assert all({"fitted", "left_out"} <= set(each) for each in bands.values())


@pytest.mark.parametrize("fabric", FABRICS)
def test_declared_parts_are_complete(fabric: str) -> None:
    found = transport(fabric)
    assert found.message_us > 0
    assert found.eager_bytes > 0
    assert "simple" in found.protocols_for("hopper")
    assert {"ring", "tree"} <= set(found.algorithms)


def test_no_measurements_leave_nccl_constants() -> None:
    found = documents([], "command")
    assert set(found) == set(TRANSPORTS)
    ring = found["infiniband"]["coefficients"]["ring/simple"]
    assert ring["rows"] == 0
    assert ring["terms"]["net_hop"] == 14.0
    assert found["infiniband"]["errors"] == {}


def test_what_an_unmeasured_fabric_may_err_is_what_those_left_out_did() -> None:
    clusters = [each for name in FABRICS for each in load(name)["fitted"]["errors"].values()]
    bands = [band["left_out"] for each in clusters for band in each.values()]
    assert min(bands) < left_out_error() < max(bands)
