"""What newcomers type (``mistakes.yaml``): each is answered with what they meant.

``python -m benchmarks.attack.mistakes`` prints the answers, for people to read.
"""

from __future__ import annotations

import random
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.attack.forked import Ended, run_command
from trainscout.simulators.predictor.io.yaml_files import read_yaml

_CLUSTER = (
    "name: mine\nsource: ours\nnum_nodes: 4\ngpus_per_node: 8\nnics_per_node: 8\n"
    "nic_gbps: 400\nfabric: infiniband\n"
)
_FILES = {
    "no_gpu.yaml": _CLUSTER,
    "partial.yaml": "name: mine\nnum_nodes: 4\n",
    "tabs.yaml": "name: mine\n\tnum_nodes: 4\n",
    "twice.yaml": _CLUSTER + "num_nodes: 8\n",
    "whisper.json": '{"model_type": "whisper", "d_model": 512}',
    "bert.json": '{"model_type": "bert", "hidden_size": 768}',
    "tokenizer_config.json": '{"tokenizer_class": "LlamaTokenizer"}',
    "strings.json": '{"model_type": "llama", "hidden_size": "4096"}',
    "kv5.json": '{"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5}',
    "marked.json": '\ufeff{"model_type": "llama"}',
    "broken.json": '{"model_type": "llama"',
    "checkpoint/readme.md": "weights\n",
    "short.yaml": "name: mine\nnum_layers: 32\n",
    "hello.sh": "echo hello\n",
    "tp3.sh": "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 512 "
    "--tensor-model-parallel-size 3 --bf16\n",
    "runs.xlsx": "PK\x03\x04",
    "semicolons.csv": "model;cluster\nllama3_8b;h100_64\n",
    "script.py": "print(1)\n",
    "train.log": "hello\n",
    "milliseconds.csv": "model,cluster,tp,pp,global_batch_size,step_time_s\n"
    "llama3_8b,h100_64,1,1,512,5400\n",
}


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """How many mistakes were made, and which answers do not help, a line each."""
    chosen = list(_mistakes())
    random.Random(seed).shuffle(chosen)
    chosen = chosen[:count]
    wrong = []
    for _, command, words, code in chosen:
        ended = _answer(command)
        text = ended.err + (ended.out if code != 2 else "")
        if ended.code != code:
            wrong.append(f"{command}: exit code {ended.code}: {ended.err[-200:]!r}")
        elif not re.search(words, text, re.DOTALL) or "Traceback" in text:
            wrong.append(f"{command}: says no {words!r}: {text[:300]!r}")
    return len(chosen), wrong


def _mistakes() -> Iterator[tuple[str, str, str, int]]:
    """Who makes it, the command, what its answer holds, its exit code."""
    listed: dict[str, list[list[Any]]] = read_yaml(Path(__file__).with_suffix(".yaml"))
    for who, mistakes in listed.items():
        for command, words, *code in mistakes:
            yield who, command, str(words), code[0] if code else 2


def _answer(command: str) -> Ended:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _FILES.items():
            Path(folder, name).parent.mkdir(exist_ok=True)
            Path(folder, name).write_text(text, encoding="utf-8")
        return run_command(shlex.split(command), Path(folder))


if __name__ == "__main__":
    for who, command, _, _ in _mistakes():
        ended = _answer(command)
        print(f"{who}: trainscout {command}\n  {ended.code}: {(ended.err or ended.out)[:300]}")
