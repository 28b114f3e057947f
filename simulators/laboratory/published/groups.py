"""The names under which rows are summed up. They label results and decide nothing else."""

from __future__ import annotations

import re

from trainscout.simulators.laboratory.published.families import family_label
from trainscout.simulators.laboratory.published.rows import Row

# Publications that share a repository but are different measurements, by their source text.
_SOURCES = (
    (r"dlperf", "DLPerf, Megatron-LM"),
    (r"awsome-distributed-training", "AWS samples"),
    (r"ground_truth_single", "vTrain single-node sweep"),
    (r"ground_truth_multi", "vTrain multi-node sweep"),
    (r"vtrain", "vTrain"),
    (r"dgxc-benchmarking", "NVIDIA dgxc-benchmarking"),
    (r"megatron-bridge", "Megatron-Bridge"),
    (r"llm-foundry", "llm-foundry"),
    (r"bigscience.*gpt2\.md", "BigScience V100"),
    (r"bigscience", "BigScience A100"),
    (r"parallel folding", "MoE Parallel Folding"),
    (r"mlperf|mlcommons", "MLPerf Training"),
    (r"simumax", "SimuMax"),
    (r"torchtitan", "TorchTitan"),
    (r"xtuner.*megatron", "XTuner, Megatron on Qwen3"),
    (r"xtuner", "XTuner"),
    (r"internevo|internlm", "InternEvo"),
    (r"flagperf.*(megatron/|flagscale)", "FlagPerf, Megatron-LM"),
    (r"flagperf.*deepspeed", "FlagPerf, DeepSpeed"),
    (r"flagperf.*paddle", "FlagPerf, PaddlePaddle"),
    (r"kempnerforge.*moe_", "KempnerForge, experts"),
    (r"kempnerforge", "KempnerForge"),
    (r"zero.?bubble", "Zero Bubble"),
    (r"cases_april2021|narayanan et al\. 2021.*table 1", "Narayanan 2021 Table 1"),
    (r"narayanan et al\. 2021.*table 2", "Narayanan 2021 Table 2"),
    (r"korthikanti", "Korthikanti 2022"),
    (r"cases_jan2021", "Megatron-LM January 2021"),
    (r"tables\.tex|may 2020", "Megatron-LM 2020"),
    (r"model_table\.png|strong_scaling\.png", "Megatron-LM H100 tables"),
    (r"megatron-lm.*(golden|functional_tests|tests/)", "Megatron-LM CI"),
    (r"megatron-lm.*readme", "Megatron-LM README"),
    (r"mt-nlg", "MT-NLG"),
    (r"megascale", "MegaScale"),
    (r"llama 3 herd", "Llama 3 report"),
    (r"nemo-framework-launcher", "NeMo launcher"),
    (r"nemo@.*performance_summary", "NeMo 24.07 docs"),
    (r"nemo@.*long_sequence", "NeMo long sequences"),
    (r"benchmarks_interactive\.html", "Ultra-Scale sweep"),
    (r"nanotron", "nanotron"),
    (r"moe-modelzoo", "Megatron-MoE-ModelZoo"),
    (r"megatron-core moe", "Megatron-Core MoE"),
    (r"automodel", "NeMo AutoModel"),
    (r"fms-fsdp", "fms-fsdp"),
    (r"jax-toolbox.*pax", "JAX-Toolbox PaxML"),
    (r"maxtext", "MaxText"),
    (r"gpu-recipes", "Google gpu-recipes"),
    (r"moye", "Moye"),
    (r"phantora", "Phantora"),
    (r"deepseek", "DeepSeek-V3 report"),
)

_SCALES = ((8, "1-8"), (64, "9-64"), (256, "65-256"), (1024, "257-1024"))
_LARGEST = "1025+"


def source_group(row: Row) -> str:
    """The publication a row comes from; its source column up to the first detail otherwise."""
    text = row.source.lower()
    for pattern, label in _SOURCES:
        if re.search(pattern, text):
            return label
    head = re.split(r"[@:;(]| table ", row.source, maxsplit=1, flags=re.IGNORECASE)[0]
    return head.strip() or "unnamed"


def scale_group(num_gpus: int | None) -> str:
    """GPUs, in powers of about four."""
    if num_gpus is None:
        return "unknown"
    return next((label for most, label in _SCALES if num_gpus <= most), _LARGEST)


def family_group(row: Row) -> str:
    return family_label(row.model)


def precision_group(row: Row) -> str:
    return row.dtype or "not published"
