"""Configurations that TorchTitan ships, as far as they bear on a step.

Models by name and flavor are those of its 2025 TOML files; configurations by name those of
``torchtitan/models/*/config_registry.py`` in 0.3.
"""

from __future__ import annotations

# (name, flavor) -> the model declared here.
FLAVORS = {
    ("llama3", "8B"): "llama3_8b",
    ("llama3", "70B"): "llama3_70b",
    ("llama3", "405B"): "llama3_405b",
    ("qwen3", "30B-A3B"): "qwen3_30b_a3b",
    ("qwen3", "235B-A22B"): "qwen3_235b_a22b",
    ("deepseek_v3", "671B"): "deepseek_v3",
}

# Configuration -> the model declared here, and the settings it begins from.
CONFIGURATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "llama3_8b": (
        "llama3_8b",
        ("--training.local-batch-size=1", "--training.seq-len=8192", "--training.steps=1000"),
    ),
    "llama3_70b": (
        "llama3_70b",
        (
            "--training.local-batch-size=8",
            "--training.seq-len=8192",
            "--training.steps=1000",
            "--parallelism.tensor-parallel-degree=8",
            "--activation-checkpoint.mode=full",
        ),
    ),
    "llama3_405b": (
        "llama3_405b",
        (
            "--training.local-batch-size=2",
            "--training.seq-len=8192",
            "--training.steps=3000",
            "--parallelism.tensor-parallel-degree=8",
            "--activation-checkpoint.mode=full",
            "--compile.enable",
            "--compile.enable-async-tensor-parallel",
            "--model.converters=float8",
        ),
    ),
    "qwen3_30b_a3b": (
        "qwen3_30b_a3b",
        (
            "--training.local-batch-size=2",
            "--training.seq-len=4096",
            "--training.steps=3000",
            "--activation-checkpoint.mode=full",
        ),
    ),
    "deepseek_v3_671b": (
        "deepseek_v3",
        (
            "--training.local-batch-size=4",
            "--training.seq-len=4096",
            "--training.steps=10000",
            "--parallelism.pipeline-parallel-schedule=Interleaved1F1B",
            "--parallelism.expert-parallel-degree=2",
            "--compile.enable",
            "--compile.components=loss",
        ),
    ),
}
