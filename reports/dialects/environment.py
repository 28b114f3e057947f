"""Variables of the environment that change how a job runs, under every framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainscout.reports.dialects.options import Options
from trainscout.simulators.predictor.question.job import Job

VARIABLES = ("NCCL_ALGO", "NCCL_MAX_NCHANNELS", "PYTORCH_CUDA_ALLOC_CONF")
_NCCL_ALGO = {"ring": "Ring", "tree": "Tree", "nvls": "NVLS", "nvls_tree": "NVLSTree"}


def write_environment(job: Job) -> dict[str, str]:
    """What the recipe and the declared software ask of NCCL and PyTorch."""
    environment = {}
    if job.network.nccl_algo is not None:
        environment["NCCL_ALGO"] = _NCCL_ALGO[job.network.nccl_algo]
    if job.network.nccl_max_channels is not None:
        environment["NCCL_MAX_NCHANNELS"] = str(job.network.nccl_max_channels)
    if job.framework.expandable_segments:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return environment


def read_environment(
    environment: Mapping[str, str], part: str, options: Options
) -> dict[str, Any]:
    """Fields of the ``recipe`` or the ``framework`` that variables say something of."""
    if part == "framework":
        grows = "expandable_segments:true" in environment.get(VARIABLES[2], "").lower()
        return {"expandable_segments": True} if grows else {}
    fields: dict[str, Any] = {}
    ours = {theirs: algo for algo, theirs in _NCCL_ALGO.items()}
    algo, channels = environment.get(VARIABLES[0]), environment.get(VARIABLES[1], "")
    if algo in ours:
        fields["nccl_algo"] = ours[algo]
    elif algo is not None:
        options.assume(f"NCCL_ALGO={algo}", "NCCL chooses its algorithms")
    if channels.isdigit():
        fields["nccl_max_channels"] = int(channels)
    return fields
