"""The least squares recover what they should, and what was written covers what is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.in_process import command
from tests.simulators.laboratory.collectives.test_measurements import row
from tests.simulators.predictor.collectives import machines as m
from tests.simulators.predictor.collectives.machines import GIB, MIB, cluster, group
from trainscout.simulators.laboratory.collectives import fit as fitting
from trainscout.simulators.laboratory.collectives import least_squares as fit
from trainscout.simulators.laboratory.collectives.measurements import Measurement, describe
from trainscout.simulators.predictor.collectives import transport
from trainscout.simulators.predictor.collectives.cost import options_of
from trainscout.simulators.predictor.collectives.execution import (
    net_terms,
    node_terms,
    with_inner_hops,
)
from trainscout.simulators.predictor.collectives.graph import wiring_of
from trainscout.simulators.predictor.collectives.p2p import all_to_all_terms
from trainscout.simulators.predictor.question.gpu import Gpu

main = command("collectives", "fit")

TRUTH = {"launch": 9.0, "hop": 1.2, "stream": 1.1}
PRIOR = {"launch": 6.6, "hop": 0.6, "stream": 1.0}


def ring_rows() -> list[dict[str, float]]:
    return [
        {"launch": 1.0, "hop": hops, "stream": stream}
        for hops in (2.0, 6.0, 14.0)
        for stream in (0.1, 1.0, 10.0, 100.0, 1000.0)
    ]


def test_exact_data_give_back_their_coefficients_beyond_offsets() -> None:
    rows = ring_rows() * 60
    offsets = np.full(len(rows), 50.0)
    times = offsets + np.array([fit.weigh(row, TRUTH) for row in rows])
    assert fit.solve(rows, times, offsets, PRIOR) == pytest.approx(TRUTH, rel=0.02)


def test_one_wild_measurement_does_not_move_the_rest() -> None:
    rows = ring_rows() * 3
    times = np.array([fit.weigh(row, TRUTH) for row in rows])
    times[4] *= 20
    found = fit.solve(rows, times, np.zeros(len(rows)), PRIOR)
    assert found == pytest.approx(TRUTH, rel=0.05)


def test_long_calls_alone_tell_no_start() -> None:
    # Each takes 60 us more than its bytes: how they were driven, as far as anyone can tell.
    rows = [row for row in ring_rows() if row["stream"] >= 100]
    times = np.array([fit.weigh(row, TRUTH | {"launch": 60.0}) for row in rows])
    found = fit.solve(rows, times, np.zeros(len(rows)), PRIOR)
    assert found["launch"] < 2 * PRIOR["launch"]


def test_a_hop_is_never_free() -> None:
    # Two ranks only: launch and hop cannot be distinguished.
    rows = [{"launch": 1.0, "hop": 2.0, "stream": stream} for stream in (0.1, 1.0, 10.0)]
    times = np.array([3.0 + row["stream"] for row in rows])
    found = fit.solve(rows, times, np.zeros(len(rows)), PRIOR)
    assert found["hop"] >= fit.LEAST_HOP * PRIOR["hop"]


@pytest.mark.parametrize("fabric", transport.FABRICS)
@pytest.mark.parametrize("gpu", [m.V100, m.A100, m.A100_PCIE, m.H100, m.B200])
@pytest.mark.parametrize("per_node", [1, 8])
def test_every_option_has_coefficients(fabric: str, gpu: Gpu, per_node: int) -> None:
    wiring = wiring_of(group(per_node, 4), gpu, cluster(4, 8, version="2.27", fabric=fabric))
    hardware = (
        wiring.architecture.collectives.coefficients_of if wiring.link == "nvlink" else "pci"
    )
    for kind in ("all_reduce", "all_gather", "broadcast"):
        for option in options_of(kind, wiring):
            node = transport.node_coefficients(hardware, option.algorithm, option.protocol)
            net = transport.net_coefficients(fabric, option.algorithm, option.protocol)
            assert set(node_terms(kind, MIB, option, wiring)) <= set(node.terms)
            counted = with_inner_hops(net_terms(kind, MIB, option, wiring), node.terms)
            assert set(counted) <= set(net.terms)
    inside, between = all_to_all_terms(MIB, wiring)
    assert set(inside) <= set(transport.node_coefficients(hardware, "alltoall", "simple").terms)
    assert set(between) <= set(transport.net_coefficients(fabric, "alltoall", "simple").terms)


def test_borrowed_coefficients_claim_no_measurements() -> None:
    assert transport.node_coefficients("", "ring", "simple").rows == 0
    assert transport.net_coefficients("ethernet", "ring", "simple").rows == 0
    assert transport.node_coefficients("hopper", "ring", "simple").rows > 100


def test_clusters_and_bands_count_alike_in_the_averages() -> None:
    def call(cluster: str, size: str, nodes: str) -> Measurement:
        told = {"notes": f"cluster={cluster}", "bytes": size, "num_nodes": nodes}
        return describe("", row(**told))

    errors = [(call("a", "8", "1"), -0.1), (call("b", "8", "1"), 0.3)]
    errors += [(call("b", str(GIB), "2"), off) for off in (0.4, 0.5, -0.6)]
    assert fitting.average(errors) == {
        "clusters": 2,
        "by_size_band": {"<=16KiB": 0.2, ">64MiB": 0.5},
        "between_nodes": 0.5,
        "all": 0.3,
    }


# A training cluster of each transport that has been measured, as a table's rows say it.
MEASURED = {
    "nvlink": {"notes": "cluster=aic_h100_sxm", "num_gpus": "8", "num_nodes": "1"},
    "pcie": {
        "notes": "cluster=sugarlxn_4090",
        "num_gpus": "4",
        "num_nodes": "1",
        "gpu": "RTX4090",
        "intra_link": "PCIe",
    },
    "infiniband": {"notes": "cluster=dell_xe9680_h100;8xCX7 400G IB"},
    "roce": {"notes": "cluster=gcp_a3ultra_h200;A3 Ultra, RoCE"},
    "efa": {"notes": "cluster=aws_p5_h100;p5, EFA"},
    "slingshot": {"notes": "cluster=cscs_alps_gh200;Slingshot-11", "source": "ofi1.9.2"},
    "tcpx": {"notes": "cluster=gcp_a3mega_h100;TCPXO"},
}


def write_results(path: Path, counts: dict[str, int]) -> Path:
    lines = [",".join(row())]
    for name, count in counts.items():
        for number in range(count):
            sizes = {"bytes": str(2 ** (10 + number)), "time_us": str(30 + 2**number / 50)}
            lines.append(",".join(row(**MEASURED[name], **sizes).values()))
    path.write_text("\n".join(lines) + "\n")
    return path


def shipped() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(transport.DIRECTORY.iterdir())}


ENOUGH = dict.fromkeys(MEASURED, fitting.FEWEST_ROWS)


def test_calls_start_later_by_what_short_ones_take_or_by_the_median_of_fabrics() -> None:
    short = fit.row_of(describe("", row(**MEASURED["efa"], bytes="8192", time_us="1")))
    assert short.net_key is not None
    as_infiniband = replace(short, net_key=("infiniband", short.net_key[1]))
    found = fit.fit([replace(short, time_us=fit.predict_us(fit.fit([]), as_infiniband) + 40)])
    for fabric, later_us in (("efa", 40.0), ("roce", 20.0), ("omni_path", 20.0)):
        own, base = (found.terms[name, "tree/simple"] for name in (fabric, "infiniband"))
        assert own["net_start"] - base["net_start"] == pytest.approx(later_us)


def test_not_every_call_is_fitted_to() -> None:
    limits = {"most_bytes_beyond_pairs": 65536}
    for gpus, size, usable in (("2", 65537, True), ("4", 65536, True), ("4", 65537, False)):
        told = MEASURED["pcie"] | {"num_gpus": gpus, "bytes": str(size)}
        assert fit._usable(describe("", row(**told)), limits) is usable
    # Nor is one whose release's rules nobody knows.
    for version, usable in (("2.9.9", False), ("2.10.3", True)):
        call = describe("", row(**MEASURED["efa"], nccl_version=version))
        assert fit._usable(call, {}) is usable


def test_launches_of_one_thread_are_counted_and_not_fitted_to() -> None:
    # One thread drove all GPUs where that cluster ran on one node, a process each on several.
    cluster = {"notes": "cluster=azure_nda100v4_aisimu", "bytes": "8192", "gpu": "A100"}
    cases = [("1", "95", 33.6, False), ("1", "105", 33.6, True), ("2", "45", 0.0, True)]
    for nodes, time_us, least_us, usable in cases:
        gpus = str(8 * int(nodes))
        call = describe("", row(**cluster, num_gpus=gpus, num_nodes=nodes, time_us=time_us))
        found = fit.row_of(call)
        assert found.least_us == pytest.approx(least_us)
        assert fit.predict_us(fit.fit([]), found) >= least_us
        assert fit._usable(call, {}) is usable


@pytest.mark.parametrize(
    ("counts", "stated"),
    [
        ({}, "has a header and no rows"),
        ({"efa": 1}, "rows=1: are too few: none is of a validation cluster"),
        (ENOUGH | {"efa": 0}, "rows=0: are too few of efa to fit it"),
        (ENOUGH | {"tcpx": fitting.FEWEST_ROWS - 1}, "are too few of tcpx"),
    ],
)
def test_too_little_to_fit_to_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], counts: dict[str, int], stated: str
) -> None:
    results, before, out = write_results(tmp_path / "t.csv", counts), shipped(), tmp_path / "out"
    out.mkdir()
    for arguments in ([str(results)], [str(results), "--output", str(out)]):
        assert main(arguments) == 2
        shown = capsys.readouterr()
        assert stated in shown.err
        assert shown.err.count("\n") == 1
        assert shown.out == ""
    assert not list(out.iterdir())
    assert shipped() == before


def test_a_fit_is_shown_and_written_only_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, before, out = write_results(tmp_path / "t.csv", ENOUGH), shipped(), tmp_path / "out"
    assert main([str(results)]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert set(shown) == {*fitting.TRANSPORTS, "errors"}
    assert shipped() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]

    out.mkdir()
    errors = tmp_path / "errors.yaml"
    asked = [str(results), "--output", str(out), "--errors", str(errors)]
    assert main(asked) == 0
    written = {path.stem: yaml.safe_load(path.read_text()) for path in out.iterdir()}
    assert set(written) == set(fitting.TRANSPORTS)
    recorded = f"trainscout collectives fit t.csv --output {out} --errors {errors}"
    for name, document in written.items():
        assert document["declared"] == transport.load(name)["declared"]
        assert document["fitted"]["command"] == recorded
        assert document["fitted"]["coefficients"] == shown[name]["coefficients"]
    assert yaml.safe_load(errors.read_text()) == {"command": recorded, "errors": shown["errors"]}
    assert shipped() == before


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = write_results(tmp_path / "t.csv", ENOUGH)
    for folder in (tmp_path / "none", results):
        assert main([str(results), "--output", str(folder)]) == 2
        assert capsys.readouterr().err.startswith("error: --output=")
