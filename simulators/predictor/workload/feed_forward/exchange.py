"""Tokens on their way to experts and back: exchanged, gathered, put in order."""

from __future__ import annotations

import math
from dataclasses import replace

from trainscout.simulators.predictor.workload.ir import Collective, Gemm, Op, Streaming
from trainscout.simulators.predictor.workload.shard import Shard

from .expert_loads import busiest, routed_rows

COUNTS = "share_counts"
_WEIGHTS = "dispatch_weights"


def dispatch(shard: Shard, sent: int, received: int, suffix: str = "") -> list[Op]:
    """Tokens to their experts: sort by expert, exchange over ep, gather over etp."""
    moe = shard.moe
    if moe.dispatcher == "allgather":
        gathered = _among_all(shard, f"dispatch{suffix}", "all_gather")
        return [*gathered, Streaming(f"permute{suffix}", _mover(shard), 2 * received, launches=2)]
    if moe.dispatcher == "deepep" and shard.ep > 1:
        ops = _exchanged_once(shard, sent, f"dispatch{suffix}", f"permute{suffix}")
    else:
        ops = _permute(shard, f"permute{suffix}", sent)
        if suffix and isinstance(ops[0], Gemm):
            # The router's weights stand in the mask that combines, which has a gradient too.
            ops.append(replace(ops[0], name="combine_mask_grad"))
        if shard.ep > 1:
            most = busiest(shard, sent)
            ops.append(Collective(f"dispatch{suffix}", "all_to_all", most, "ep", shard.dtype))
            ops.append(_weights(shard, suffix))
    if apart(shard) > 1:
        name = f"dispatch_gather{suffix}"
        ops.append(Collective(name, "all_gather", received, "etp", shard.dtype))
        if moe.dispatcher == "alltoall" and not suffix:
            ops.append(_gathered_weights(shard, "all_gather"))
    return ops + _sort(shard, f"sort{suffix}", received)


def combine(shard: Shard, sent: int, received: int, suffix: str = "") -> list[Op]:
    """Expert outputs back to their tokens, weighted by the router."""
    moe = shard.moe
    if moe.dispatcher == "allgather":
        unpermute = Streaming(f"unpermute{suffix}", _mover(shard), 2 * received, launches=2)
        return [unpermute, *_among_all(shard, f"combine{suffix}", "reduce_scatter")]
    ops = _sort(shard, f"unsort{suffix}", received)
    if apart(shard) > 1:
        name = f"combine_reduce{suffix}"
        ops.append(Collective(name, "reduce_scatter", received, "etp", shard.dtype))
        if moe.dispatcher == "alltoall" and suffix:
            ops.append(_gathered_weights(shard, "reduce_scatter"))
    if moe.dispatcher == "deepep" and shard.ep > 1:
        return ops + _exchanged_once(shard, sent, f"combine{suffix}", f"unpermute{suffix}")[::-1]
    if shard.ep > 1:
        most = busiest(shard, sent)
        ops.append(Collective(f"combine{suffix}", "all_to_all", most, "ep", shard.dtype))
    return ops + _permute(shard, f"unpermute{suffix}", sent)


def _mover(shard: Shard) -> str:
    """What moves tokens: kernels made for it, or PyTorch's that pick rows by index."""
    return "permute" if shard.written_dispatch else "token_permute"


def _permute(shard: Shard, name: str, sent: int) -> list[Op]:
    """Token copies put in their experts' order, or back from it: moved, or multiplied by a mask
    of each token and each place that experts have (``Framework.masked_dispatch``)."""
    groups = _mask_groups(shard)
    if not groups:
        return [Streaming(name, _mover(shard), 2 * sent, launches=2)]
    tokens, places = shard.local_tokens // groups, routed_rows(shard) // groups
    return [Gemm(name, places, travelling(shard), tokens, shard.dtype, batch=groups)]


def _mask_groups(shard: Shard) -> int:
    """So many groups of a rank's tokens have masks of their own; 0 without masks."""
    if not (shard.masked_dispatch and shard.moe.padded):
        return 0
    return shard.batch if shard.masked_dispatch == "sequence" else 1


def mask_bytes(shard: Shard) -> int:
    """Bytes of the masks: one of truth values that dispatches, one of weights that combines."""
    groups = _mask_groups(shard)
    pairs = shard.local_tokens * routed_rows(shard) // max(1, groups)
    return pairs * (1 + shard.element_bytes) if groups else 0


def _exchanged_once(shard: Shard, sent: int, exchange: str, move: str) -> list[Op]:
    """Tokens sent once to each GPU that hosts an expert of theirs, and put in order; beside those
    copies, every token is read or written once on its own GPU."""
    moved = _sent_once(shard, shard.ep) + busiest(shard, sent)
    return [deepep(shard, exchange), Streaming(move, _mover(shard), moved, launches=2)]


def deepep(shard: Shard, name: str) -> Collective:
    """One of DeepEP's exchanges: inside an NVLink domain a copy is passed on while others arrive,
    and the network between domains decides."""
    traffic = _sent_once(shard, shard.ep_domains if shard.ep_domains > 1 else shard.ep)
    stored = traffic + token_bytes(shard)
    return Collective(name, "all_to_all", traffic, "ep", shard.dtype, stored_bytes=stored)


def _weights(shard: Shard, suffix: str) -> Collective:
    """The router's weight of every token copy travels with it (backward: its gradient, back)."""
    size = routed_rows(shard) * shard.element_bytes
    return Collective(f"{_WEIGHTS}{suffix}", "all_to_all", size, "ep", shard.dtype)


def _gathered_weights(shard: Shard, kind: str) -> Collective:
    """The weights of all token copies that an expert's ranks share (backward: their gradients)."""
    size = busiest(shard, routed_rows(shard) * shard.etp) * shard.element_bytes
    return Collective(f"{_WEIGHTS}_shared", kind, size, "etp", shard.dtype)


def _sort(shard: Shard, name: str, received: int) -> list[Op]:
    """Chunks come by the rank they are from, gathered ones included, and are sorted by local
    expert, where there are several; DeepEP's are put in order as they come."""
    ordered = shard.moe.dispatcher == "deepep" and shard.ep > 1
    if ordered or shard.moe.num_experts == shard.ep or shard.ep * shard.etp == 1:
        return []
    return [Streaming(name, _mover(shard), 2 * received)]


def is_exchange(op: Collective) -> bool:
    """Whether a collective of an expert layer moves tokens to experts or back."""
    return op.communicator in ("ep", "etp_ep") and not op.name.startswith((COUNTS, _WEIGHTS))


def exchanged_bytes(shard: Shard, op: Collective) -> int:
    """What an exchange of tokens leaves on the busiest rank: those of its experts, or its own."""
    if not op.name.startswith("combine"):
        return op.bytes
    if shard.moe.dispatcher == "deepep":
        return token_bytes(shard)
    return routed_rows(shard) * travelling(shard) * shard.element_bytes


def _reached(destinations: int, shard: Shard) -> float:
    """Different destinations that host an expert of one token, routed evenly: at most all.

    Handed out in turn, a token's experts lie at one, and at one more for each border between two
    destinations that is not a border between tokens.
    """
    top_k, held = shard.moe.top_k, shard.moe.num_experts // destinations
    if shard.moe.experts_in_turn:
        return min(destinations, 1 + top_k / held - top_k / math.lcm(top_k, held))
    return destinations * (1 - (1 - 1 / destinations) ** top_k)


def _sent_once(shard: Shard, destinations: int) -> int:
    """Bytes of tokens that go (or come) once to each destination hosting an expert of theirs."""
    return busiest(shard, round(token_bytes(shard) * _reached(destinations, shard)))


def _among_all(shard: Shard, name: str, kind: str) -> list[Op]:
    """Every rank of the etp x ep group gathers all tokens, and keeps those of its experts; or what
    experts made of all tokens is summed where they came from."""
    ranks = shard.ep * shard.etp
    size = token_bytes(shard) * ranks
    return [Collective(name, kind, size, "etp_ep", shard.dtype)] if ranks > 1 else []


def apart(shard: Shard) -> int:
    """Ranks of an expert's tensor-parallel group that hold different tokens."""
    return shard.etp if shard.sp else max(1, shard.etp // shard.tp)


def token_bytes(shard: Shard) -> int:
    """Bytes of a rank's tokens, each once, on their way to experts."""
    return shard.local_tokens * travelling(shard) * shard.element_bytes


def travelling(shard: Shard) -> int:
    """Width of a token on its way to experts."""
    return shard.moe.latent_size or shard.model.hidden_size
