"""Figures and names in the answers of docs/faq.md are those of the code."""

import re

from tests.docs.blocks import ROOT
from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.registry import SAMPLERS
from trainscout.optimizer.space import with_choices
from trainscout.simulators.predictor.answer.flops import attention_core_flops, layer_flops
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.layers import DENSE_LAYER
from trainscout.simulators.predictor.question.training import Training

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


def test_what_the_answers_name_exists():
    catalogue = load_catalogue()
    for name in re.findall(r"`gpu=(\w+)`", PAGE):
        assert name in catalogue.gpus
    assert {"h100_96_hbm2e", "a100_80"} <= set(catalogue.gpus)
    assert "exact" in SAMPLERS
    for space in re.findall(r"`space=(\w+)`", PAGE):
        assert (ROOT / "conf" / "space" / f"{space}.yaml").is_file()
    Training(1, 1.0, optimizer="adam_bf16").check()


def test_the_large_space_has_what_the_answer_says():
    knobs = read_yaml(ROOT / "conf" / "space" / "large.yaml")["knobs"]
    assert with_choices("zero_stage", knobs["zero_stage"])["choices"] == [0, 1, 2, 3]
    assert "fp8" in with_choices("precision", knobs["precision"])["choices"]


def test_context_parallelism_starts_where_the_answer_says():
    assert "context parallelism from 4,096 tokens on" in PAGE
    text = (ROOT / "conf" / "space" / "megatron.yaml").read_text("utf-8")
    assert "when: sequence_length >= 4096" in text
