"""The page ``docs/choices.md``: every choice of every group of ``conf/``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from hydra import compose

from trainscout.commands.listing import NOT_CHOSEN, parameters
from trainscout.conf.build import build_value
from trainscout.conf.catalogue import Catalogue, load_catalogue
from trainscout.evidence import runs_by, runs_of_model, runs_on
from trainscout.optimizer.space import with_choices
from trainscout.reference.markdown import markdown_table
from trainscout.reference.settings import as_written
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, opening_comment, read_yaml
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.model import Model

_INTRODUCTION = """\
# What ships

Every choice of every group, generated from the files in `conf/` by
`python -m trainscout.reference`. Choose with `group=choice`, change a field with
`group.field=value` ([Settings](reference.md)); declarations of
[your own](howto/own-declarations.md) are files like these. A name links to its file, where each
figure has its source; *runs* are published training runs that error bars rest on, of a model's
shape, of a cluster's GPU and fabric, of a framework. `trainscout list` has it on a terminal.
"""

_GENERIC = {
    "training": "Training",
    "space": "Spaces",
    "search": "Searches",
    "objective": "Objectives",
    "simulator": "Simulators",
    "network": "Networks",
    "topology": "Topologies",
    "executor": "Executors",
    "tracking": "Tracking",
    "verify": "Verification",
    "sweep": "Capacity studies",
    "goodput": "Failures and checkpoints",
}


def choices_page() -> str:
    """The whole page, in Markdown. Needs Hydra to be initialised on ``conf``."""
    catalogue = load_catalogue()
    specific = {
        "model": _models(catalogue),
        "gpu": _gpus(catalogue),
        "architecture": _architectures(catalogue),
        "cluster": _clusters(),
        "framework": _frameworks(catalogue),
    }
    generic = {group: _files(group, title) for group, title in _titles(specific).items()}
    return "\n".join([_INTRODUCTION, *specific.values(), *generic.values()])


def _titles(specific: Iterable[str]) -> dict[str, str]:
    """Groups that have no table of their own; a new one is titled by its name."""
    groups = sorted(path.name for path in DECLARATIONS.iterdir() if any(path.glob("*.yaml")))
    left = [name for name in groups if name not in (*specific, *NOT_CHOSEN)]
    ordered = [name for name in _GENERIC if name in left]
    ordered += [name for name in left if name not in _GENERIC]
    return {name: _GENERIC.get(name, name.capitalize()) for name in ordered}


def _models(catalogue: Catalogue) -> str:
    rows = [
        (
            _named("model", name),
            f"{parameters(model) / 1e9:,.1f}",
            str(model.num_layers),
            f"{model.hidden_size:,}",
            "MLA" if model.mla else f"{model.num_heads} / {model.kv_heads}",
            f"{model.ffn_hidden_size:,}",
            _experts(model),
            f"{model.vocab_size:,}",
            f"{model.sequence_length:,}",
            _runs(runs_of_model(model)),
        )
        for name, model in catalogue.models.items()
    ]
    heads = (
        "model",
        "parameters, B",
        "layers",
        "hidden",
        "heads / KV",
        "MLP",
        "experts",
        "vocabulary",
        "tokens a sequence",
        "runs",
    )
    return _titled("Models", "model", markdown_table(heads, rows))


def _experts(model: Model) -> str:
    if model.moe is None:
        return ""
    moe = model.moe
    shared = f" + {moe.shared_ffn_hidden_size:,} shared" if moe.shared_ffn_hidden_size else ""
    return f"{moe.top_k} of {moe.num_experts} x {moe.ffn_hidden_size:,}{shared}"


def _gpus(catalogue: Catalogue) -> str:
    rows = [
        (
            _named("gpu", name),
            gpu.architecture.name,
            *(_tera(gpu.peak_flops.get(each or "")) for each in (gpu.sixteen_bit, "fp8")),
            f"{gpu.memory_bytes / 2**30:.1f}",
            f"{gpu.memory_bandwidth_bytes_per_s / 1e12:.2f}",
            f"{gpu.nvlink_bytes_per_s / 1e9:g}",
            f"{gpu.price_usd_per_hour:g}",
        )
        for name, gpu in catalogue.gpus.items()
    ]
    heads = (
        "gpu",
        "architecture",
        "16-bit, dense TFLOP/s",
        "8-bit",
        "memory, GiB",
        "DRAM, TB/s",
        "NVLink, GB/s each way",
        "$ an hour, assumed",
    )
    return _titled("GPUs", "gpu", markdown_table(heads, rows))


def _architectures(catalogue: Catalogue) -> str:
    rows = [
        (
            _named("architecture", name),
            opening_comment(catalogue.architectures.file(name)),
            architecture.vendor,
            architecture.library,
            architecture.link,
            ", ".join(
                f"`{gpu}`"
                for gpu, each in catalogue.gpus.items()
                if each.architecture.name == name
            ),
        )
        for name, architecture in catalogue.architectures.items()
    ]
    heads = ("architecture", "what it is", "vendor", "collectives", "links", "GPUs of it")
    table = markdown_table(heads, rows)
    return _titled("Architectures", "gpu.architecture", table)


def _tera(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:,.0f}"


def _clusters() -> str:
    rows, catalogue = [], load_catalogue()
    for name in _names("cluster"):
        config = compose("config", [f"cluster={name}"])
        cluster = build_value(Cluster, "cluster", config.cluster)
        rows.append(
            (
                _named("cluster", name),
                f"{cluster.num_gpus:,} = {cluster.num_nodes:,} x {cluster.gpus_per_node}",
                f"`{config.gpu.name}`",
                f"{cluster.nics_per_node} x {cluster.nic_gbps:g}" if cluster.nics_per_node else "",
                cluster.fabric,
                str(cluster.domain),
                cluster.nccl_version,
                _runs(runs_on(catalogue.gpus[config.gpu.name], cluster)),
            )
        )
    heads = (
        "cluster",
        "GPUs = nodes x each",
        "gpu",
        "NICs a node, Gb/s",
        "fabric",
        "GPUs joined by NVLink",
        "NCCL",
        "runs",
    )
    return _titled("Clusters", "cluster", markdown_table(heads, rows))


def _frameworks(catalogue: Catalogue) -> str:
    rows = [
        (
            _named("framework", name),
            opening_comment(catalogue.frameworks.file(name)),
            _differences(framework),
            _runs(runs_by("framework")[name,]),
        )
        for name, framework in catalogue.frameworks.items()
    ]
    heads = ("framework", "what it is", "settings other than the defaults", "runs")
    return _titled("Frameworks", "framework", markdown_table(heads, rows))


def _differences(framework: Framework) -> str:
    changed = (
        f"{field.name}={as_written(getattr(framework, field.name))}"
        for field in fields(Framework)
        if field.name not in ("name", "source")
        and getattr(framework, field.name) != getattr(UNDECLARED, field.name)
    )
    return ", ".join(f"`{setting}`" for setting in changed)


def _files(group: str, title: str) -> str:
    """Any group: the comment at the top of each file, or its source, and what it sets."""
    rows = []
    for name in _names(group):
        content: dict[str, Any] = read_yaml(DECLARATIONS / group / f"{name}.yaml") or {}
        about = [
            opening_comment(DECLARATIONS / group / f"{name}.yaml"),
            str(content.pop("source", "")),
        ]
        content.pop("name", None)
        content.pop("defaults", None)
        if "knobs" in content:
            content["knobs"] = {
                knob: with_choices(knob, entry) for knob, entry in content["knobs"].items()
            }
        sets = "<br>".join(f"`{key}: {value}`" for key, value in _flat(content).items())
        rows.append((_named(group, name), " ".join(part for part in about if part), sets))
    return _titled(title, group, markdown_table((group, "what it is", "what it sets"), rows))


def _flat(content: dict[str, Any]) -> dict[str, str]:
    """Values by name, with what is inside a group named after it."""
    flat: dict[str, str] = {}
    for key, value in content.items():
        inside = value.items() if isinstance(value, dict) else ()
        flat |= {f"{key}.{name}": as_written(part) for name, part in inside}
        if not inside:
            flat[key] = as_written(value)
    return flat


def _named(group: str, name: str) -> str:
    """A choice, with its file one click away: sources of figures stand there."""
    return f"[`{name}`](../conf/{group}/{name}.yaml)"


def _runs(count: int) -> str:
    return f"{count:,}" if count else ""


def _titled(title: str, group: str, body: str) -> str:
    return f"## {title}\n\n`{group}=`\n\n{body}"


def _names(group: str) -> list[str]:
    return sorted(path.stem for path in (DECLARATIONS / group).glob("*.yaml"))
