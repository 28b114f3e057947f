"""The catalogue: every declaration is read, nothing else passes for one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from trainscout.commands.schemas import register_commands
from trainscout.conf.build import build_question
from trainscout.conf.catalogue import (
    command_defaults,
    declared_gpus,
    load_catalogue,
    with_own_lengths,
)
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import UNDECLARED

GROUPS = ("models", "gpus", "clusters", "trainings", "frameworks", "topologies")
CLUSTER = (
    "name: mine\nsource: me\nnum_nodes: 1\ngpus_per_node: 4\nnics_per_node: 0\n"
    "nic_gbps: 0\nfabric: infiniband\n"
)


@pytest.mark.parametrize("name", GROUPS)
def test_every_declaration_can_be_used(name: str) -> None:
    group = getattr(load_catalogue(), name)
    folder = DECLARATIONS / group.group
    assert dict(group).keys() == {file.stem for file in folder.glob("*.yaml")}
    assert len(group) == len(dict(group))


def test_shipped_clusters_are_references_whose_networks_count_whole() -> None:
    clusters = load_catalogue().clusters.values()
    assert [one.name for one in clusters if not one.network_validated] == ["a40_8"]
    assert all(one.oversubscription == 1 for one in clusters if one.network_validated)


def test_results_call_gpus_and_clusters_what_their_files_are_called() -> None:
    catalogue = load_catalogue()
    for group in (catalogue.gpus, catalogue.clusters, catalogue.models):
        assert all(value.name == name for name, value in group.items())  # type: ignore[attr-defined]


def test_a_cluster_brings_its_gpus() -> None:
    cluster, gpu = load_catalogue().machines("h800_96")
    assert (cluster.num_nodes, cluster.gpus_per_node, gpu.name) == (12, 8, "h800")
    assert load_catalogue().machines("h800_96", "h100")[1].name == "h100"


def test_a_cluster_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(CLUSTER)
    cluster, gpu = load_catalogue().machines(str(path), "a100_80")
    assert (cluster.num_gpus, gpu.name) == (4, "a100_80")
    with pytest.raises(InputError, match="does not say which GPU"):
        load_catalogue().machines(str(path))


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (CLUSTER + "nodes: 3\n", r"mine.yaml: cluster.nodes=3: is not a known name"),
        (CLUSTER + "name: again\n", "name stands twice"),
        (CLUSTER.replace("gpus_per_node: 4", "gpus_per_node: few"), "gpus_per_node=few"),
        (CLUSTER.replace("gpus_per_node: 4", "gpus_per_node: 0"), "gpus_per_node=0"),
        ("- 1\n", "is not a group of fields"),
        ("", "is not a group of fields"),
        ("a: [\n", "cannot be read"),
        ("name: mine\n", "is missing"),
    ],
)
def test_a_file_that_declares_no_cluster_is_refused(
    tmp_path: Path, text: str, stated: str
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match=stated):
        load_catalogue().machines(str(tmp_path / "mine.yaml"), "a100_80")


def test_names_that_are_not_declared_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"--cluster=h800_69.*'h800_96'"):
        load_catalogue().machines("h800_69", prefix="--")
    with pytest.raises(InputError, match=r"gpu=h80: .*'h800'"):
        load_catalogue().gpus.chosen("gpu", "h80")
    with pytest.raises(KeyError):
        load_catalogue().gpus["h80"]


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + ".yaml"])
def test_no_name_is_too_long_to_be_unknown(name: str) -> None:
    with pytest.raises(InputError, match="is not a known choice"):
        load_catalogue().machines(name)


def test_own_folders_stand_first(tmp_path: Path) -> None:
    shipped = load_catalogue()
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(CLUSTER)
    (tmp_path / "cluster" / "h800_96.yaml").write_text(CLUSTER)
    own = load_catalogue(tmp_path)
    assert set(own.clusters) == {*shipped.clusters, "mine"}
    assert own.clusters["h800_96"].num_gpus == 4
    assert own.gpus["h100"] == shipped.gpus["h100"]
    assert "mine" not in load_catalogue().clusters


def test_a_folder_without_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no GPU declaration"):
        declared_gpus(tmp_path)
    assert declared_gpus(None) is load_catalogue().gpus


def test_a_miss_is_wrong_input_and_a_missing_key() -> None:
    with pytest.raises(InputError, match="did you mean 'llama3_8b'"):
        load_catalogue().models["lama3_8b"]
    assert load_catalogue().models.get("lama3_8b") is None


def test_a_declaration_may_take_over_another(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "ours.yaml").write_text("defaults: [h100_64]\nnum_nodes: 3\n")
    assert load_catalogue(tmp_path).clusters["ours"].num_gpus == 24
    (tmp_path / "cluster" / "ours.yaml").write_text("defaults: [h100_65]\n")
    with pytest.raises(InputError, match="did you mean 'h100_64'"):
        load_catalogue(tmp_path).clusters["ours"]


def test_names_mean_what_they_mean_to_commands() -> None:
    register_commands("explain")
    register_commands("simulate")
    with initialize_config_module("trainscout.conf", version_base="1.3"):
        for name, space in load_catalogue().spaces.items():
            assert space == compose("explain", [f"space={name}"]).space
        # Clusters with a GPU of their own, of another size than eight, and with a rack's links.
        for name in ("v100_16", "gb200_nvl72", "mi300x_8"):
            composed = build_question(compose("simulate", [f"cluster={name}"]))
            assert load_catalogue().machines(name) == (composed.cluster, composed.gpu)


def test_commands_start_from_what_their_files_say() -> None:
    settings, chosen = command_defaults("explain")
    assert (settings["search"]["top_k"], chosen["search"]) == (1, "auto")


@pytest.mark.parametrize(
    ("model", "said", "length", "packed"),
    [
        ("vit_l16", {}, None, ()),
        ("clip_vit_l14", {}, None, ()),
        ("deepseek_v3_2", {}, 4096, ()),
        ("llama3_8b", {}, 4096, "shipped"),
        ("clip_vit_l14", {"sequence_length": 60}, 60, ()),
        ("clip_vit_l14", {"sequence_length": 4096}, 4096, ()),
        ("vit_l16", {"packed_lengths": (64, 128, 192, 256, 512)}, 4096, "shipped"),
        ("vit_l16", {"packed_lengths": (7,)}, 4096, (7,)),
    ],
)
def test_lengths_of_shipped_trainings_are_of_packed_texts(
    model: str, said: dict[str, Any], length: int | None, packed: object
) -> None:
    """What was said goes as it was said, and is refused by what looks at it."""
    named = load_catalogue()
    training = dataclasses.replace(named.trainings["lora"], **said)
    fitted = with_own_lengths(training, named.models[model], said)
    own = named.trainings["lora"].packed_lengths if packed == "shipped" else packed
    assert (fitted.sequence_length, fitted.packed_lengths) == (length, own)


def test_a_script_runs_the_framework_that_is_named_or_whose_code_launches() -> None:
    catalogue = load_catalogue()
    assert catalogue.framework_of_script("nanotron") == catalogue.frameworks["nanotron"]
    undeclared = catalogue.framework_of_script(None)
    assert dataclasses.replace(undeclared, alternatives=()) == UNDECLARED
    # Frameworks with the same code differ in nothing that a trace is charged.
    folders = {each.name: each.code for each in undeclared.alternatives}
    assert folders["megatron_core"] == ("megatron/core",)
    charged: dict[tuple[str, ...], set[tuple[float, ...]]] = {}
    for each in undeclared.alternatives:
        times = (each.host_launch_s, each.host_forward_s, each.host_tp_product_s)
        charged.setdefault(each.code, set()).add((*times, each.host_unit_s))
    assert all(len(times) == 1 for times in charged.values())
    with pytest.raises(InputError, match="nanotron"):
        catalogue.framework_of_script("nanotorn")
