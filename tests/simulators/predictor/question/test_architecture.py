"""Architectures as data: what conf declares, what is refused, and that no code asks for a name."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from statistics import median

import pytest

import trainscout
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.question.architecture import Architecture
from trainscout.simulators.predictor.question.errors import InputError

ARCHITECTURES = load_catalogue().architectures
FITTED = ("volta", "ampere", "hopper", "blackwell")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_is_named_after_its_architecture_and_read_back_equal(name: str) -> None:
    found = ARCHITECTURES[name]
    assert found.name == name
    assert typed_value(Architecture, "architecture", dataclasses.asdict(found)) == found


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_figure_of_a_file_has_a_source(name: str) -> None:
    group = ARCHITECTURES
    told = {"name", "vendor", "runtime", "library", "link", "defaults", "sources"}
    told |= {"streaming", "products"}
    from trainscout.simulators.predictor.io.yaml_files import read_yaml

    own = read_yaml(group.file(name))
    stated = set(own) - told
    flags = {"fp8_transposes", "microscaling", "newest_attention", "attention_of"}
    flags |= {"split_accumulation_factor", "per_tensor_factor"}
    needed = stated - (flags if name == "generic" else set())
    assert needed <= set(own["sources"])
    shares = (*group[name].streaming.values(), *group[name].products.values())
    assert all(share.source for share in shares)


def test_the_generic_architecture_is_the_median_of_the_declared() -> None:
    generic = ARCHITECTURES["generic"]
    known = [ARCHITECTURES[name] for name in FITTED]
    assert generic.context_bytes == median(each.context_bytes for each in known)
    assert generic.measurement_spread == max(each.measurement_spread for each in known)
    for kind, share in generic.streaming.items():
        assert not share.measured
        middle = median(each.streaming[kind].value for each in known)
        assert share.value == pytest.approx(middle, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"context_bytes": -1}, "context_bytes"),
        ({"misaligned_factors": {"two": 1.5}}, "misaligned_factors"),
        ({"attention_kernels": ["flash9"]}, "attention_kernels"),
        ({"speed_spred": 0.02}, "speed_spred"),
        ({"collectives": {"link_gbs": {"2.20": [20]}}}, "link_gbs"),
        ({"collectives": {"link_gbs": {"2.20.0": [20], "2.10.0": [20]}}}, "link_gbs"),
        ({"collectives": {"link_gbs": {"2.20.0": []}}}, "link_gbs"),
    ],
)
def test_impossible_figures_are_refused_by_field(changes: dict, field: str) -> None:
    fields = dataclasses.asdict(ARCHITECTURES["hopper"])
    collectives = {**fields["collectives"], **changes.get("collectives", {})}
    with pytest.raises(InputError) as refused:
        typed_value(
            Architecture, "architecture", {**fields, **changes, "collectives": collectives}
        ).check()
    assert field in refused.value.field


def test_an_unknown_architecture_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'hopper'"):
        load_catalogue().with_architecture({"architecture": "hoper"})


def test_no_code_of_the_predictor_names_an_architecture_or_a_gpu() -> None:
    """Whatever depends on one stands in ``conf/architecture``, ``conf/gpu`` or the fits."""
    catalogue = load_catalogue()
    names = {*catalogue.architectures, *catalogue.gpus} - {"generic"}
    folder = Path(trainscout.__file__).parent / "simulators" / "predictor"
    files = sorted(folder.resolve().rglob("*.py"))
    assert len(files) > 100
    for file in files:
        tree = ast.parse(file.read_text("utf-8"))
        found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & names
        assert not found, f"{file.relative_to(folder)} names {found}"
