"""What a prediction takes for granted, in words, so that whoever acts on it knows."""

from __future__ import annotations

from collections.abc import Mapping

from trainscout.simulators.predictor.network.choice import CongestedNetwork
from trainscout.simulators.predictor.question.architecture import StreamingShare
from trainscout.simulators.predictor.question.cluster import Cluster, HostShare
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.framework import UNDECLARED
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.uncertainty.features import LAUNCH_BOUND
from trainscout.simulators.predictor.workload.feed_forward.expert_loads import dropped_routings
from trainscout.simulators.predictor.workload.shard import Shard

from .host import COPY_EFFICIENCY, UPDATE_EFFICIENCY, host_call_s, host_pace


def assumptions_of(
    job: Job, host_share: float, network: CongestedNetwork | None = None
) -> tuple[str, ...]:
    """What the replay assumes about this job beyond its prices, most general first.

    ``host_share``: share of the predicted step that the device waits for the host; ``network``:
    the declared switches, which take a few things for granted less.
    """
    recipe, architecture = job.recipe, job.gpu.architecture
    stated = [
        f"{architecture.runtime} context, {architecture.library} buffers and memory fragmentation "
        "are estimated"
    ]
    if job.world_size > 1:
        alike = f"GPUs' speeds spread by {100 * architecture.speed_spread:g}%"
        if network is None or not network.fabric.link_health:
            alike += ", and no link is slower than its peers"
        stated.append(alike)
    if job.frozen_weights != "16bit":
        products = " and their products as ones in 16" if job.frozen_weights == "int8" else ""
        stated.append(f"weights in few bits are unpacked as fast as bytes are cast{products}")
    if job.loading_s:
        stated.append(
            f"data loaders, in processes of their own, deliver a step's samples in "
            f"{job.loading_s:.3g} s"
        )
    if job.cluster.measured:
        stated.append(_measured_collectives(job.cluster))
    away = job.framework.host_optimizer == "serial" and recipe.optimizer_offload
    if recipe.offloaded_layers or recipe.offload_modules or (away and recipe.zero_stage >= 2):
        stated.append(_copies(job, host_share))
    elif host_share > LAUNCH_BOUND:
        stated.append(_launch_bound(job, host_share))
    if recipe.optimizer_offload:
        stated.append(_host_optimizer(job))
    if job.framework.masked_attention:
        stated.append("attention takes the whole square of queries and keys, padding too")
    if job.attention == "unfused" != job.framework.attention:
        stated.append(
            f"attention is unfused: {job.gpu.name} has no {job.framework.attention} kernels"
        )
    if job.framework.cuda_graphs:
        # NVIDIA-NeMo/Megatron-Bridge@067f987d, skills/nemo-mbridge-perf-cuda-graphs.
        stated.append(
            "memory that CUDA graphs keep is not counted (Megatron-Bridge speaks of a few GB for "
            "layers, of 1.5 to 2 times the peak for whole iterations)"
        )
    scans = any(kind.mamba2 is not None for kind in job.model.kinds.values())
    if scans and recipe.recompute == "full" and job.framework.space == "megatron":
        stated.append(
            "Megatron-Core recomputes hybrids whole since May 2026 (pull request 4496); before, "
            "every activation is kept"
        )
    if job.moe is not None:
        stated.append(_loads_of_experts(job, job.moe))
        looped = job.framework.loops_experts and not job.framework.torch_wrappers
        if looped and recipe.zero_stage == 3:
            stated.append(
                "experts run one after another, but their parameters are gathered layer by layer: "
                "far too fast where each of many has its gathers (measured once: 3 times)"
            )
    estimated = estimated_mixers(job.model, job.gpu.architecture.products)
    if estimated:
        stated.append(
            f"{' and '.join(estimated)} run as the products and bytes of their algorithm: no "
            "timings of their training are published"
        )
    stated += job.model.simplified
    if job.model.diffusion is not None:
        stated.append(
            "latents and encoded texts come with the data; no published step holds modulation and "
            "cross attention"
        )
    if recipe.tp_comm_overlap and not job.framework.batch_first:
        stated.append("a GEMM cut up for TP overlap is as efficient as a whole one")
    if recipe.overlap_param_gather and recipe.pp > 1:
        stated.append("all pipeline stages begin to gather parameters at once")
    if recipe.vpp > 1 and (network is None or "pp" not in network.choice.communicators):
        stated.append("pipeline transfers in flight do not share a NIC")
    return tuple(stated)


def estimated_mixers(model: Model, products: Mapping[str, StreamingShare]) -> list[str]:
    """Mixers whose kernels no backward timing on an architecture holds, in words; ``products`` are
    the architecture's."""
    timed = products["scan_bwd"].measured
    mixers = [model.mixer(layer) for layer in model.layer_kinds]
    attention = [each.attention for each in mixers if each is not None and each.attention]
    found = {
        "state-space scans": any(
            each and (each.mamba1 or (each.mamba2 and not (timed and each.mamba2.steps)))
            for each in mixers
        ),
        "short convolutions": any(each and each.short_conv and not timed for each in mixers),
        "delta rules": any(
            each
            and each.delta
            and not (products["delta_bwd"].measured and each.delta.gate == "scalar")
            for each in mixers
        ),
        "attention within windows": any(each.window for each in attention),
        "indexed attention": any(each.index for each in attention),
        "attention to compressed keys": any(each and each.compressed for each in mixers),
    }
    return [words for words, has in found.items() if has]


def _measured_collectives(cluster: Cluster) -> str:
    kinds = ", ".join(sorted({row.kind.replace("_", "-") for row in cluster.measured}))
    nodes = sorted({row.nodes for row in cluster.measured})
    several = f"{nodes[0]} to {nodes[-1]}" if len(nodes) > 1 else f"{nodes[0]}"
    of = f"{several} nodes" if cluster.measured_between else "one node"
    stated = f"{kinds} take what {cluster.measured_collectives} says of {of}, undisturbed where "
    stated += "it has a high band"
    if cluster.measured_between and nodes[-1] < cluster.num_nodes:
        stated += "; over more nodes their bandwidth is held"
    if nodes[-1] > cluster.num_nodes:
        stated += f"; this cluster has {cluster.num_nodes}"
    if cluster.measured_between and cluster.oversubscription is None:
        stated += "; what else crosses nodes counts their NICs whole"
    return stated


def _host_optimizer(job: Job) -> str:
    host = HostShare.of(job.gpu, job.cluster)
    gigabytes = UPDATE_EFFICIENCY * host.memory_bytes_per_s / 1e9
    return (
        f"the host's CPU updates {job.recipe.optimizer_offload}% of the parameters at "
        f"{gigabytes:.3g} GB/s of its memory a GPU, ranks being bound to cores of their own"
    )


def _copies(job: Job, host_share: float) -> str:
    recipe, gigabytes = job.recipe, COPY_EFFICIENCY * job.gpu.host_bytes_per_s / 1e9
    copied = (
        "activations"
        if recipe.offloaded_layers or recipe.offload_modules
        else "gradients (pinned)"
    )
    return (
        f"copies of {copied} to the host run at {gigabytes:.3g} GB/s beside the passes: "
        f"{host_share:.0%} of the step waits for these or its launches"
    )


def _launch_bound(job: Job, share: float) -> str:
    framework, recipe = job.framework, job.recipe
    pace = host_pace(framework, job.cluster.cpu)
    hosts = "for every host CPU alike" if pace == 1 else f"times {pace:g} on an Arm CPU"
    if call_s := host_call_s(framework, job.cluster.cpu):
        hosts += f" and {call_s * 1e6:.3g} us more per call of PyTorch's communication"
    whose = (
        "no framework is declared, so this is an estimate of the driver's own time"
        if framework == UNDECLARED
        else f"as declared for {framework.name}, {hosts}"
    )
    forward = ""
    if framework.host_forward_s:
        forward = f" and {framework.host_forward_s * 1e6:.3g} us more per operation of a module"
    if product_s := framework.host_product_s(recipe.tp):
        forward += f" and {product_s * 1e6:.3g} us more per product of tensor-parallel ranks"
    if framework.host_unit_s and job.hooks_units:
        forward += f" and {framework.host_unit_s * 1e6:.3g} us more per sharded layer in a pass"
    if framework.host_list_s:
        forward += f" and {framework.host_list_s * 1e6:.3g} us per layer in the step"
    return (
        f"launch-bound: {share:.0%} of the step waits for the host, at "
        f"{framework.host_launch_s * 1e6:.3g} us per kernel{forward} ({whose})"
    )


def _loads_of_experts(job: Job, moe: Moe) -> str:
    if moe.routed:
        popular = f"experts are as popular as {moe.histogram} counted"
    if moe.hot_weight is not None:
        popular = (
            f"{moe.hot_ratio:.0%} of the experts, others in each layer, receive "
            f"{moe.hot_weight:.0%} of all routings"
        )
    if moe.routed:
        if moe.capacity_factor is None:
            return f"{popular}; in memory, as if the busiest GPU were the same in every layer"
        dropped = dropped_routings(Shard.of(job))
        return f"{popular}, and capacity {moe.capacity_factor:g} drops {dropped:.1%} of them"
    if not moe.padded and moe.load_imbalance != 1:
        return f"the busiest GPU's experts receive {moe.load_imbalance:g} times the mean"
    return "experts are evenly loaded"
