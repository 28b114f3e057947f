import pytest

from tests.reports.search_page.searches import RECIPES, simulated
from trainscout.reports.search_page.page_data import FRAGMENTATION, memory_stages


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_worst_stage_sums_to_what_it_needs(recipe):
    memory = simulated(recipe).memory
    figures = memory_stages(memory)
    needs = [sum(stage["bytes"]) for stage in figures["stages"]]
    assert needs[memory.worst_stage] == memory.capacity_bytes - memory.headroom_bytes
    assert max(needs) == needs[memory.worst_stage]
    assert len(needs) == recipe.pp


def test_kinds_are_in_words_with_fragmentation_last():
    figures = memory_stages(simulated(RECIPES[0]).memory)
    assert figures["kinds"][0] == "parameters"
    assert "communication buffers" in figures["kinds"]
    assert figures["kinds"][-1] == FRAGMENTATION
    stage = simulated(RECIPES[0]).memory.per_stage[0]
    assert figures["stages"][0]["bytes"][0] == stage.kind["parameters"]
    unused = stage.peak_reserved_bytes - stage.peak_allocated_bytes
    assert figures["stages"][0]["bytes"][-1] == unused
