"""Models by their names on the Hugging Face Hub, shipped or downloaded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conf.released import config_of
from trainscout.commands.listing import parameters
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize(
    ("name", "shipped", "billions"),
    [
        ("https://huggingface.co/meta-llama/Llama-3.1-8B", "llama3_8b", 8.03),
        ("NousResearch/Meta-Llama-3-8B-Instruct", "llama3_8b", 8.03),
        ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2_5_1_5b", 1.54),
        ("Qwen/Qwen2.5-3B", "qwen2_5_3b", 3.09),
        ("Qwen/Qwen2.5-14B-Instruct-AWQ", "qwen2_5_14b", 14.77),
        ("unsloth/Qwen2.5-32B", "qwen2_5_32b", 32.76),
        ("Qwen/Qwen2.5-VL-3B-Instruct", "qwen2_5_vl_3b", 3.75),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl_7b", 8.29),
        ("Qwen/Qwen2-7B-Instruct", "qwen2_5_7b", 7.62),
        ("Qwen/Qwen3.5-27B", "qwen3_5_27b", 27.36),
        ("unsloth/Qwen3.5-4B", "qwen3_5_4b", 4.54),
        ("Qwen/Qwen3.5-9B", "qwen3_5_9b", 9.41),
        ("openai/clip-vit-large-patch14", "clip_vit_l14", 0.43),
        ("google/siglip-so400m-patch14-384", "siglip_so400m", 0.88),
        ("google/vit-large-patch16-224", "vit_l16", 0.30),
        ("Qwen/Qwen3.5-35B-A3B", "qwen3_5_35b_a3b", 35.11),
        ("unsloth/gemma-2-2b-it", "gemma2_2b", 2.61),
        ("google/gemma-2-9b", "gemma2_9b", 9.24),
        ("google/gemma-2-27b-it", "gemma2_27b", 27.23),
        ("google/gemma-2b", "gemma_2b", 2.51),
        ("google/gemma-4-31B-it", "gemma4_31b", 30.70),
        ("google/gemma-4-26B-A4B-it", "gemma4_26b_a4b", 25.23),
        ("google/gemma-4-E4B", "gemma4_e4b", 7.46),
        ("google/gemma-7b", "gemma_7b", 8.54),
        ("microsoft/Phi-3-mini-4k-instruct", "phi3_mini", 3.82),
        ("microsoft/phi-4", "phi4_14b", 14.66),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "llama3_2_vision_11b", 10.67),
        ("meta-llama/Llama-3.2-90B-Vision", "llama3_2_vision_90b", 88.59),
    ],
)
def test_names_of_the_hub(name: str, shipped: str, billions: float) -> None:
    """Sizes are those that the Hub shows (Qwen3.5's: that Transformers counts, without MTP)."""
    model = load_catalogue().models.chosen("model", name)
    assert model.name == shipped
    assert parameters(replace(model, vocab_multiple=1)) / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("HF_HOME", "hub/models--nobody--Small/snapshots/0123"),
        ("HF_HUB_CACHE", "models--nobody--Small/snapshots/0123"),
        ("MODELSCOPE_CACHE", "models/nobody/Small"),
        ("XDG_CACHE_HOME", "modelscope/hub/nobody/Small"),
    ],
)
def test_what_was_downloaded_is_read_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, folder: str
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    models = load_catalogue().models
    with pytest.raises(InputError, match="is no model of the Hugging Face Hub that ships"):
        models.chosen("model", "nobody/Small")
    file = tmp_path / folder / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(config_of("Qwen/Qwen3-0.6B")))
    monkeypatch.setenv(variable, str(tmp_path))
    model = models.chosen("model", "nobody/Small")
    assert (model.name, model.num_layers) == ("Small", 28)
