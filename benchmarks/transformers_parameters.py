"""Count the parameters of released models as Transformers builds them, on ``meta``.

``python benchmarks/transformers_parameters.py tests/conf/configurations.json`` writes beside each
configuration how many parameters its causal language model has. Needs ``transformers`` (5 or
newer) and no network: configurations are those of the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

# Published configurations name code of their own for what Transformers has under another name.
_SAME = {"kimi_k2": "deepseek_v3"}


def count(given: dict[str, object]) -> int:
    """Parameters of the model that a configuration describes, tied ones once."""
    fields = dict(given)
    kind = str(fields.pop("model_type"))
    config = AutoConfig.for_model(_SAME.get(kind, kind), **fields)
    build = AutoModelForImageTextToText if "vision_config" in given else AutoModelForCausalLM
    with torch.device("meta"):
        model = build.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def main(path: Path) -> None:
    table = json.loads(path.read_text())
    for name, row in table.items():
        row["parameters"] = count(row["config"])
        print(f"{name:60} {row['parameters']:>18,}")
    lines = (f" {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(table)} models, transformers {transformers.__version__}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
