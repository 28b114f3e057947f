"""A cluster said by its GPUs alone, ``64xH100``: what they usually come in; or by nodes and the
GPUs of each, ``2x8xH200``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainscout.simulators.predictor.question.cluster import MOST_GPUS, Cluster
from trainscout.simulators.predictor.question.errors import InputError, nearest_name
from trainscout.simulators.predictor.question.gpu import Gpu

_COUNTED = re.compile(r"(?:(\d{1,7}) ?x ?)?(\d{1,7}) ?x ?([a-z][a-z0-9_. -]*)", re.IGNORECASE)
FORM = "a number and a GPU: 64xH100"


def counts_gpus(text: str) -> bool:
    """Whether a text has the form of ``64xH100`` or ``2x8xH200``."""
    return _COUNTED.fullmatch(text) is not None


def counted_gpus(field: str, text: str, gpus: Mapping[str, Gpu]) -> tuple[Cluster, str]:
    """The cluster of so many GPUs in their usual servers, and the name of the GPU, which may be
    stated as its maker does (``8xA100-SXM4-80GB``).

    Raises:
        InputError: for another form, an unsupported GPU, or a number that fills no whole nodes.
    """
    found = _COUNTED.fullmatch(text)
    if found is None or not int(found[2]) * int(found[1] or 1):
        turned = re.fullmatch(r"([a-z][\w. -]*?) ?[x*] ?([0-9]+)", text, re.IGNORECASE)
        spaced = re.fullmatch(r"(\d+)(?: ?\* ?| )([a-z][\w. -]*)", text, re.IGNORECASE)
        numbered = re.fullmatch(r"(\d+) ?x ?(\d{4})", text, re.IGNORECASE)
        meant = f"{turned[2]}x{turned[1]}" if turned else None
        meant = f"{spaced[1]}x{spaced[2]}" if spaced else meant
        if numbered and f"rtx{numbered[2]}" in gpus:
            meant = f"{numbered[1]}xrtx{numbered[2]}"
        raise InputError(field, text, "does not say how many of which GPU", FORM, meant)
    stated = re.sub(r"[ .-]+", "_", found[3].strip().lower())
    own_size = int(found[2]) if found[1] else None
    count = int(found[2]) * int(found[1] or 1)
    if count > MOST_GPUS:
        raise InputError(field, text, "is out of range", f"at most {MOST_GPUS} GPUs")
    matching = [stated] if stated in gpus else _called(stated, gpus)
    if len(matching) != 1:
        problem = "names several GPUs" if matching else "names no supported GPU"
        likely = nearest_name(stated, matching or gpus)
        meant = None if likely is None else text[: found.start(3)] + likely
        raise InputError(field, text, problem, matching or gpus, meant)
    name = matching[0]
    server = gpus[name].server
    if own_size and own_size > server.gpus_per_node:
        problem = f"has more GPUs a node than the {server.gpus_per_node} of {name}'s usual servers"
        raise InputError(field, text, problem, FORM, f"{count}x{name}")
    usual = min(server.gpus_per_node, count)
    per_node = own_size or usual
    if count % per_node:
        problem = f"does not fill servers of {per_node} GPUs, in which {name} usually comes"
        near = per_node * max(1, round(count / per_node))
        raise InputError(field, text, problem, f"a multiple of {per_node}: {near}x{name}")
    domain = server.nvlink_domain
    if domain is not None:
        domain = min(domain, count)
    return Cluster(
        name=f"{count}x{name}" + (f"_{own_size}_a_node" if per_node != usual else ""),
        num_nodes=count // per_node,
        gpus_per_node=per_node,
        nics_per_node=per_node,
        nic_gbps=server.nic_gbps,
        fabric="infiniband",
        source=f"assumed: the servers that {name} usually comes in, over InfiniBand",
        nvlink_domain=domain,
        nvswitch=server.nvswitch,
        cpu=server.cpu,
    ), name


def _called(stated: str, gpus: Mapping[str, Gpu]) -> list[str]:
    """The GPUs whose names begin so; else those that are published so, where all that
    distinguishes them from others of their kind (``80``, ``pcie``) is stated."""
    label = stated.replace("_", "-")
    return [name for name in gpus if name.startswith(f"{stated}_")] or [
        name
        for name, gpu in gpus.items()
        if gpu.is_published_as(label) and all(word in label for word in name.split("_")[1:])
    ]


def eight_of(gpu: str, clusters: Iterable[str]) -> str | None:
    """What to ask for instead of a cluster called as a GPU, where no cluster's name begins so."""
    return None if any(name.startswith(gpu) for name in clusters) else f"8x{gpu}"


def counted_fields(field: str, text: str, gpus: Mapping[str, Gpu]) -> dict[str, object]:
    """As ``counted_gpus``, as a file of the group ``cluster`` declares it."""
    cluster, gpu = counted_gpus(field, text, gpus)
    own = {
        each.name: getattr(cluster, each.name)
        for each in dataclasses.fields(cluster)
        if each.default is dataclasses.MISSING or getattr(cluster, each.name) != each.default
    }
    return {"defaults": [{"override /gpu@_global_.gpu": gpu}, "_self_"], **own}


def with_named_gpu(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a file declares as a cluster, ``gpu: NAME`` in it put as Hydra knows it."""
    own = dict(fields)
    if isinstance(own.get("gpu"), str) and isinstance(
        own.setdefault("defaults", ["_self_"]), list
    ):
        chosen = {"override /gpu@_global_.gpu": own.pop("gpu")}
        own["defaults"] = [*own["defaults"], chosen]
    return own
