"""From the groups ``network`` and ``topology`` to what a simulator is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from tests.conf.conftest import names
from trainscout.commands.schemas import register_commands
from trainscout.commands.simulator_choice import build_simulator
from trainscout.conf.build import build_question
from trainscout.simulators.predictor.network.choice import COMMUNICATORS
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.registry import SimulatorSpec, check_simulator


@pytest.fixture(scope="module")
def simulate() -> Iterator[Callable[..., DictConfig]]:
    register_commands("simulate")
    with initialize_config_module("conf", version_base="1.3"):
        yield lambda *overrides: compose("simulate", overrides=list(overrides))


def test_the_white_box_model_is_what_there_was_before(simulate: Callable[..., DictConfig]) -> None:
    assert build_simulator(simulate()) == SimulatorSpec()
    assert build_simulator(simulate("network=whitebox")).identity() == "replay"


@pytest.mark.parametrize("engine", [name for name in names("network") if name != "whitebox"])
@pytest.mark.parametrize("topology", names("topology"))
def test_every_engine_plays_over_every_topology(
    simulate: Callable[..., DictConfig], engine: str, topology: str
) -> None:
    config = simulate(f"network={engine}", f"topology={topology}", "cluster=h100_64")
    spec = build_simulator(config)
    assert spec.network is not None
    assert spec.network.choice.engine == engine
    assert spec.network.choice.communicators == COMMUNICATORS
    assert spec.network.fabric.name == topology
    question = build_question(config)
    check_simulator(spec, question.gpu, question.cluster)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["topology.oversubscription=2"], "topology"),
        (["topology=fat_tree"], "topology"),
        (["network=flow", "topology.oversubscription=0.5"], "topology.oversubscription"),
        (["network=flow", "network.communicators=[db]"], "network.communicators"),
        (["network=flow", "network.engine=ether"], "network.engine"),
        (
            ["network=flow", "+topology.link_health.leaf0-spine99=0"],
            "topology.link_health.leaf0-spine99",
        ),
        (["network=packet", "+network.packet.packt_bytes=1"], "network.packet.packt_bytes"),
        (["network=packet", "+network.packet.dcqcn.gg=1"], "network.packet.dcqcn.gg"),
        (["network=hybrid", "+network.hybrid.rat=1"], "network.hybrid.rat"),
        (["network=packet", "network.packet.window=0.5"], "network.packet.window"),
    ],
)
def test_what_cannot_be_played_is_refused(
    simulate: Callable[..., DictConfig], overrides: list[str], field: str
) -> None:
    config = simulate(*overrides, "cluster=h100_64")
    question = build_question(config)
    with pytest.raises(InputError) as refused:
        check_simulator(build_simulator(config), question.gpu, question.cluster)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("expert,tokens\n0,5\n7,5\n", None),
        ("expert,tokens\n0,5\n8,5\n", "counts routings of 9 experts"),
        ("expert,tokens\n0,9\n7,1\n", "more than one a token"),
        ("expert,tokens,layer\n0,5,0\n7,5,0\n0,5,1\n7,5,1\n", "counts routings of 2 layers"),
        ("expert,count\n", "has no column tokens"),
        (None, "cannot be read"),
    ],
)
def test_measured_histograms_are_read_and_checked(
    simulate: Callable[..., DictConfig], tmp_path: Path, rows: str | None, problem: str | None
) -> None:
    file = tmp_path / "loads.csv"
    if rows is not None:
        file.write_text(rows)
    config = simulate("model=mixtral_8x7b", f"model.moe.histogram={file}")
    if problem is not None:
        with pytest.raises(InputError, match=problem) as refused:
            build_question(config)
        assert refused.value.field == "model.moe.histogram"
        return
    moe = build_question(config).model.moe
    assert moe is not None
    assert moe.measured_layers == ((5, 0, 0, 0, 0, 0, 0, 5),)
    assert moe.balanced.measured == ()
    hot = ("model.moe.hot_ratio=0.25", "model.moe.hot_weight=0.4")
    config = simulate("model=mixtral_8x7b", f"model.moe.histogram={file}", *hot)
    with pytest.raises(InputError, match="beside a measured histogram"):
        build_question(config)


def test_routings_are_not_given_by_hand(simulate: Callable[..., DictConfig]) -> None:
    config = simulate("model=mixtral_8x7b", "model.moe.measured=[1,1,1,1,1,1,1,1]")
    with pytest.raises(InputError, match="is read from a file"):
        build_question(config)


def test_measured_collectives_are_read_with_the_cluster(
    simulate: Callable[..., DictConfig], tmp_path: Path
) -> None:
    file = tmp_path / "own.csv"
    file.write_text("collective,nodes,bus_GBps\nall_gather,2,100\n")
    given = f"cluster.measured_collectives={file}"
    (row,) = build_question(simulate(given)).cluster.measured
    assert (row.kind, row.nodes, row.bytes, row.high_gbs) == ("all_gather", 2, 2**30, 100)
    config = simulate(given, "network=flow")
    question = build_question(config)
    with pytest.raises(InputError, match="plays over again"):
        check_simulator(build_simulator(config), question.gpu, question.cluster)
    file.write_text("collective,nodes\nall_gather,2\n")
    with pytest.raises(InputError, match="has no column bus_GBps") as refused:
        build_question(simulate(given))
    assert refused.value.field == "cluster.measured_collectives"
