import pytest
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import OmegaConf

from trainscout.commands import kept_compositions
from trainscout.commands.hydra_setup import prepare_hydra

ASKED = ["model=gpt13b", "cluster=a800_8", "search=tpe"]


@pytest.fixture
def compositions(monkeypatch):
    """How often Hydra composed files, so far."""
    for kept in ("_lists", "_configs"):
        monkeypatch.setattr(kept_compositions, kept, {})
    made, whole = [], kept_compositions._COMPOSE
    monkeypatch.setattr(
        kept_compositions, "_COMPOSE", lambda *given: made.append(given) or whole(*given)
    )
    prepare_hydra()
    with initialize_config_module("trainscout.conf", version_base="1.3"):
        yield made


def test_the_same_choices_are_composed_twice_and_then_copied(compositions):
    found = [
        compose("config", [*ASKED, "training.global_batch_size=64", f"seed={seed}"])
        for seed in range(4)
    ]
    assert len(compositions) == 2
    assert [each.seed for each in found] == [0, 1, 2, 3]
    found[3].model.num_layers = 1
    again = compose("config", [*ASKED, "training.global_batch_size=8", "seed=0"])
    assert again.model.num_layers == found[0].model.num_layers > 1
    assert OmegaConf.to_container(again) != OmegaConf.to_container(found[0])
    again.training.global_batch_size = 64
    assert again == found[0]
    with pytest.raises(HydraException, match="top_k"):
        compose("config", [*ASKED, "top_k=5"])


def test_other_choices_are_composed_anew(compositions):
    for _ in range(3):
        found = [compose("config", [*ASKED, f"space={name}"]) for name in ("moye", "megatron")]
        assert found[0].space.name != found[1].space.name
    assert len(compositions) == 4
