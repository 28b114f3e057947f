"""Figures and names in the answers of docs/faq.md are those of the code."""

import re

from tests.docs.blocks import ROOT
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.flops import attention_core_flops, layer_flops
from trainscout.simulators.predictor.question.layers import DENSE_LAYER

PAGE = " ".join((ROOT / "docs" / "faq.md").read_text("utf-8").split())


def causal_half(model, sequence: int) -> float:
    """By what share counting half of attention lowers MFU."""
    forward = model.num_layers * layer_flops(model, sequence, DENSE_LAYER)
    forward += 2 * model.hidden_size * model.vocab_size
    return model.num_layers * attention_core_flops(model, sequence) / forward / 2


def test_what_counting_half_of_attention_does_to_mfu():
    stated = re.search(
        r"by (\d+) % of it for `(\w+)` at ([\d,]+) tokens, (\d+) % at ([\d,]+), "
        r"and (\d+) % for `(\w+)` at ([\d,]+)",
        PAGE,
    )
    assert stated
    models = load_catalogue().models
    for share, model, tokens in (
        (stated[1], stated[2], stated[3]),
        (stated[4], stated[2], stated[5]),
        (stated[6], stated[7], stated[8]),
    ):
        length = int(tokens.replace(",", ""))
        assert round(100 * causal_half(models[model], length)) == int(share), (model, tokens)
