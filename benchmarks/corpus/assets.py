"""What the scripts of the corpus read: tiny models, tokenizers and data, all made here.

    python -m benchmarks.corpus.assets FOLDER

Names are those that scripts ask a hub for: a folder of that name in the working directory is taken
instead. All values are random; nobody looks at the loss.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import random
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trainscout.simulators.virtual_cluster.emulation.framework_patches import (
    install_framework_patches,
)

# What ``evaluate.load("glue", "mrpc")`` would bring.
_METRIC = """\
import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        numbers = datasets.Value("int64")
        features = datasets.Features({"predictions": numbers, "references": numbers})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        same = sum(a == b for a, b in zip(predictions, references))
        return {"accuracy": same / len(predictions)}
"""
VOCABULARY = 512
SAMPLES = 256


def write_assets(folder: Path) -> None:
    """All of it; a second or two and a few MB."""
    generator = random.Random(0)
    _text(folder, generator)
    _chats(folder, generator)
    _images(folder)
    _tokens(folder / "tokens")
    _mnist(folder / "data" / "MNIST" / "raw")
    _models(folder)


def _words(generator: random.Random, number: int) -> str:
    lengths = (generator.randint(2, 7) for _ in range(number))
    return " ".join("".join(generator.choices(string.ascii_lowercase, k=k)) for k in lengths)


def _rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _text(folder: Path, generator: random.Random) -> None:
    lines = [_words(generator, generator.randint(8, 60)) for _ in range(SAMPLES * 4)]
    # What minGPT asks its model to continue, so that each letter is known.
    lines[0] = "O God, O God!"
    for name in ("train", "valid", "test"):
        path = folder / "text" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
    _rows(folder / "c4" / "data.jsonl", ({"text": line * 4} for line in lines))
    _rows(
        folder / "roneneldan" / "TinyStories" / "train.jsonl",
        ({"text": line * 6} for line in lines),
    )
    # Pairs of sentences and whether they say the same.
    pairs = [
        {"sentence1": line[:40], "sentence2": line[40:], "label": at % 2, "idx": at}
        for at, line in enumerate(lines)
    ]
    for name in ("train", "validation", "test"):
        _rows(folder / "nyu-mll" / "glue" / f"{name}.jsonl", iter(pairs))
    files = "".join(
        f"  - split: {name}\n    path: {name}.jsonl\n" for name in ("train", "validation", "test")
    )
    config = f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    (folder / "nyu-mll" / "glue" / "README.md").write_text(config)
    (folder / "glue").mkdir(exist_ok=True)
    (folder / "glue" / "glue.py").write_text(_METRIC)
    alpaca = [
        {"instruction": line[:30], "input": "", "output": line[30:90]} for line in lines[:SAMPLES]
    ]
    (folder / "alpaca.json").write_text(json.dumps(alpaca))


def _chats(folder: Path, generator: random.Random) -> None:
    def turn(role: str, words: int) -> dict[str, str]:
        return {"role": role, "content": _words(generator, words)}

    def answer() -> list[dict[str, str]]:
        return [turn("assistant", generator.randint(3, 20))]

    for name in ("train", "test"):
        asked = [[turn("user", generator.randint(3, 12))] for _ in range(SAMPLES)]
        chats = ({"messages": [*question, *answer()]} for question in asked)
        _rows(folder / "chats" / f"{name}.jsonl", chats)
        pairs = ({"prompt": q, "chosen": answer(), "rejected": answer()} for q in asked)
        _rows(folder / "preferences" / f"{name}.jsonl", pairs)
        _rows(folder / "prompts" / f"{name}.jsonl", ({"prompt": q} for q in asked))


def _images(folder: Path) -> None:
    from PIL import Image

    noise = np.random.default_rng(0)
    pets = folder / "pets"
    pets.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            place = folder / "images" / split / kind
            place.mkdir(parents=True, exist_ok=True)
            captions = [
                {"file_name": f"{kind}{at}.jpg", "text": kind} for at in range(SAMPLES // 8)
            ]
            _rows(folder / "captioned" / split / kind / "metadata.jsonl", iter(captions))
            for at in range(SAMPLES // 8):
                pixels = noise.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{kind}{at}.jpg")
                Image.fromarray(pixels).save(
                    folder / "captioned" / split / kind / f"{kind}{at}.jpg"
                )
                if split == "train":
                    # Named by kind, in one folder.
                    Image.fromarray(pixels).save(pets / f"{kind}_{at}.jpg")


def _tokens(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    for name in ("train", "val"):
        noise.integers(0, VOCABULARY, 200_000).astype(np.uint16).tofile(folder / f"{name}.bin")
    with (folder / "meta.pkl").open("wb") as file:
        pickle.dump({"vocab_size": VOCABULARY}, file)


def _mnist(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    # Scripts split the training set by the number it is known to have.
    for name, samples in (("train", 60_000), ("t10k", SAMPLES)):
        pixels = noise.integers(0, 256, (samples, 28, 28), dtype=np.uint8)
        labels = noise.integers(0, 10, samples, dtype=np.uint8)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = [0x0800 + values.ndim, *values.shape]
            data = b"".join(int(number).to_bytes(4, "big") for number in head)
            (folder / f"{name}-{kind}-ubyte").write_bytes(data + values.tobytes())


def _models(folder: Path) -> None:
    # Where torchvision is there, built for CUDA, transformers could not be imported, nor diffusers
    # beside Transformer Engine without its library.
    install_framework_patches()
    sys.modules["transformer_engine"] = None  # type: ignore[assignment]
    import transformers

    tokenizer = _tokenizer(folder)
    sizes = yaml.safe_load(Path(__file__).with_name("tiny_models.yaml").read_text("utf-8"))
    for name, settings in sizes["transformers"].items():
        kind = getattr(transformers, settings.pop("class"))
        kind(kind.config_class(**settings)).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    if importlib.util.find_spec("diffusers") is not None:
        _stable_diffusion(folder / "tiny-sd", sizes["tiny-sd"])
        for name, settings in sizes["diffusers"].items():
            _diffusion_part(settings).save_pretrained(folder / name)


def _diffusion_part(settings: dict[str, Any]) -> Any:
    return getattr(importlib.import_module("diffusers"), settings.pop("class"))(**settings)


def _stable_diffusion(folder: Path, parts: dict[str, Any]) -> None:
    import transformers
    from diffusers import StableDiffusionPipeline
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    words = [*letters, *(f"{each}</w>" for each in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = transformers.CLIPTokenizer(
        vocab={word: at for at, word in enumerate(words)}, merges=[], model_max_length=77
    )
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1}
    text = transformers.CLIPTextConfig(
        vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, **ends
    )
    StableDiffusionPipeline(
        **{name: _diffusion_part(settings) for name, settings in parts.items()},
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=tokenizer,
        safety_checker=None,
        feature_extractor=None,
    ).save_pretrained(folder)


def _tokenizer(folder: Path) -> Any:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator((folder / "text" / "train.txt").read_text().splitlines(), trainer)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=512,
    )
    wrapped.chat_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    wrapped.save_pretrained(folder / "tokenizer")
    return wrapped


if __name__ == "__main__":
    write_assets(Path(sys.argv[1]))
