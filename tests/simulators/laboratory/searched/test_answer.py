from trainscout.simulators.laboratory.searched import answer as module
from trainscout.simulators.laboratory.searched.answer import search_settings


def test_gradients_of_16_bits_bring_no_smaller_moments():
    space = search_settings()[0]
    again = module._with_16_bit_gradients(space)
    assert again["numerics"] == "16bit"
    before, after = (each["parts"]["megatron"]["knobs"] for each in (space, again))
    assert "bf16" in before["optimizer_states"]["choices"]
    assert after["optimizer_states"]["choices"] == ["remainders"]
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"optimizer_states"}
