"""Write what TorchTitan reads besides its configuration: a tokenizer and a data set.

python examples/torchtitan_assets.py --output torchtitan_assets

One token a byte and lines of random letters: enough to train on when nobody looks at the loss.
Lines are longer than sequences: of shorter ones, attention within documents computes less.
"""

import argparse
import json
import random
import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"


def write_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BEGIN, END])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": BEGIN, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def write_data(folder: Path, samples: int, letters: int) -> None:
    """TorchTitan gives every data-parallel rank its own samples: at least one each."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    with (folder / "data.jsonl").open("w") as file:
        for _ in range(samples):
            text = "".join(generator.choices(string.ascii_lowercase + " ", k=letters))
            file.write(json.dumps({"text": text}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("torchtitan_assets"))
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--letters", type=int, default=16384, help="letters a sample")
    args = parser.parse_args()
    write_tokenizer(args.output / "tokenizer")
    write_data(args.output / "data", args.samples, args.letters)


if __name__ == "__main__":
    main()
