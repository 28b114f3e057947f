"""The ``verify`` group: which recipes are re-checked after a search."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module

from trainscout.commands.schemas import register_commands
from trainscout.commands.search_plan import SearchPlan, build_plan
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traced import tracer


def plan(*settings: str) -> SearchPlan:
    register_commands("optimize")
    with initialize_config_module("conf", version_base="1.3"):
        return build_plan(compose("config", list(settings)))


def test_nothing_is_verified_unless_asked() -> None:
    assert plan().verified == 0


def test_the_best_three_or_as_many_as_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "_is_installed", lambda module: True)
    assert plan("verify=traced").verified == 3
    assert plan("verify=traced", "verify.top_k=5").verified == 5


@pytest.mark.parametrize(
    ("setting", "field"), [("verify.name=live", "verify.name"), ("verify.top_k=0", "verify.top_k")]
)
def test_what_cannot_be_is_refused(setting: str, field: str) -> None:
    with pytest.raises(InputError) as refused:
        plan("verify=traced", setting)
    assert refused.value.field == field


def test_what_is_missing_is_said_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "_is_installed", lambda module: False)
    with pytest.raises(InputError, match=r"pip install '\.\[megatron\]'") as refused:
        plan("verify=traced")
    assert refused.value.field == "verify.name"
