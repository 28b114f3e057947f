"""The schemas are the declared values, unfrozen."""

from __future__ import annotations

import dataclasses

import pytest
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from tests.conf.conftest import DECLARATIONS
from trainscout.conf.schema import structured
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe


@pytest.mark.parametrize("cls", DECLARATIONS.values(), ids=list(DECLARATIONS))
def test_twin_has_the_same_fields_and_defaults(cls: type) -> None:
    config = OmegaConf.structured(structured(cls))
    fields = {field.name: field for field in dataclasses.fields(cls)}
    content = OmegaConf.to_container(config)
    assert isinstance(content, dict)
    assert list(content) == list(fields)
    for name, value in content.items():
        field = fields[str(name)]
        if field.default is not dataclasses.MISSING:
            assert (tuple(value) if isinstance(value, list) else value) == field.default
        elif field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
            assert value == (dataclasses.asdict(made) if dataclasses.is_dataclass(made) else made)
        else:
            assert value == MISSING


def test_twin_can_be_written() -> None:
    config = OmegaConf.structured(structured(Recipe))
    config.tp = 8
    assert config.tp == 8


def test_frozen_class_itself_could_not_be_used() -> None:
    # The reason for the twin; when OmegaConf changes this, the twin can go.
    with pytest.raises(OmegaConfBaseException):
        OmegaConf.structured(Recipe).tp = 8


@pytest.mark.parametrize(
    ("field", "value"),
    [("tp", "eight"), ("tp", 2.5), ("tp", None), ("sp", "maybe"), ("etp", "x"), ("tp", True)],
)
def test_twin_refuses_wrong_types(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        OmegaConf.structured(structured(Recipe))[field] = value


def test_twin_refuses_unknown_keys_at_every_depth() -> None:
    schema = OmegaConf.structured(structured(Model))
    with pytest.raises(ConfigKeyError):
        OmegaConf.merge(schema, {"hiden_size": 3})
    with pytest.raises(ConfigKeyError):
        OmegaConf.merge(schema, {"moe": {"topk": 3}})


def test_optional_fields_take_null_and_a_value() -> None:
    config = OmegaConf.structured(structured(Recipe))
    config.etp = 2
    config.etp = None
    assert config.etp is None


def test_nested_dataclass_becomes_typed() -> None:
    schema = OmegaConf.structured(structured(Model))
    merged = OmegaConf.merge(
        schema, {"moe": {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 64}}
    )
    assert merged.moe.dispatcher == Moe(8, 2, 64).dispatcher
    with pytest.raises(ValidationError):
        merged.moe.top_k = "two"
