"""What a search holds fixed: everything of a job except its recipe."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.plausible import check_plausible
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import PRECISION_BITS, Training


@dataclasses.dataclass(frozen=True)
class Question:
    """The model, hardware and training that every recipe of one search shares."""

    model: Model
    gpu: Gpu
    cluster: Cluster
    training: Training
    framework: Framework = UNDECLARED

    def job(self, recipe: Recipe) -> Job:
        return Job(self.model, self.gpu, self.cluster, self.training, recipe, self.framework)

    def check(self) -> None:
        """Refuse impossible declarations.

        Raises:
            InputError: naming the field.
        """
        for part in (self.model, self.gpu, self.cluster, self.training, self.framework):
            part.check()
        self.training.check_for(self.model)
        scans = [name for name, mixer in self.model.kinds.items() if mixer.mamba1 is not None]
        if scans and "fp32" not in self.gpu.peak_flops:
            problem = f"has no fp32, at which the scans of kind {scans[0]} compute"
            raise InputError("gpu.peak_flops", ", ".join(self.gpu.peak_flops), problem)
        check_plausible(self)

    @functools.cached_property
    def quantities(self) -> Mapping[str, int]:
        """The numbers a search space may refer to by name."""
        moe = self.model.moe
        return {
            "num_gpus": self.cluster.num_gpus,
            "num_nodes": self.cluster.num_nodes,
            "gpus_per_node": self.cluster.gpus_per_node,
            "nvlink_domain": self.cluster.domain,
            # Tenths of CUDA's compute capability; 0 of other vendors' GPUs.
            "compute_capability": round(10 * self.gpu.compute_capability)
            if self.gpu.architecture.vendor == "nvidia"
            else 0,
            # Whether the framework has schedules that split backward passes, and can.
            "splits_backward": int(
                "zb-h1" in self.framework.schedules and self.framework.fusion != "compiled"
            ),
            "num_layers": self.model.num_layers,
            "num_mtp_layers": self.model.num_mtp_layers,
            "num_heads": self.model.num_heads,
            "num_query_groups": self.model.kv_heads,
            "hidden_size": self.model.hidden_size,
            "latent_attention": int(self.model.mla is not None),
            "num_experts": 1 if moe is None else moe.num_experts,
            "padded_experts": int(moe is not None and moe.padded),
            "sequence_length": self.training.sequence_length or self.model.sequence_length,
            "linear_bits": PRECISION_BITS[self.training.precision],
            "global_batch_size": self.training.global_batch_size,
        }
