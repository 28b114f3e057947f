"""``trainscout list``: what ships, and what a folder of one's own declares, one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainscout.conf.catalogue import Catalogue, load_catalogue
from trainscout.evidence import products, runs_by, runs_of_model, runs_on
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import json_text, show_text
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, opening_comment
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.replay.assumptions import estimated_mixers

# Files of fitted coefficients that nobody chooses by name.
NOT_CHOSEN = ("transport",)
_PLURALS = {
    "search": "searches",
    "topology": "topologies",
    **{name: name for name in ("goodput", "tracking", "training", "verify")},
}
_WIDTH = 99
# The GPU of whose kernels most timings are published: what none of them holds, none does.
_MOST_TIMED = "h100"


def kinds() -> dict[str, str]:
    """Groups of declarations by the name of several: ``models`` are of the group ``model``."""
    groups = sorted(path.name for path in DECLARATIONS.iterdir() if any(path.glob("*.yaml")))
    return {_PLURALS.get(name, f"{name}s"): name for name in groups if name not in NOT_CHOSEN}


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    known = kinds()
    parser = command_parser(
        "list",
        "List what can be chosen by name: models, GPUs, clusters, spaces, searches and so on; of "
        "models, GPUs, clusters and frameworks also what predictions rest on: fitted kernels and "
        "links, and how many published runs error bars come from.",
        "trainscout list                     # what there is to list\n"
        "trainscout list models\n"
        "trainscout list clusters --config-dir ours --json",
        usage="[KIND] [--config-dir DIR] [--json]",
    )
    parser.add_argument("kind", nargs="?", metavar="{" + ",".join(known) + "}")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own, too")
    parser.add_argument("--json", action="store_true", help="names and descriptions as JSON")
    options = parser.parse_args(arguments)
    if options.config_dir is not None and not options.config_dir.is_dir():
        raise InputError("--config-dir", options.config_dir, "is no folder")
    catalogue = load_catalogue(*filter(None, [options.config_dir]))
    if options.kind is None:
        rows = {kind: ", ".join(catalogue.contents(group)) for kind, group in known.items()}
    else:
        group = known.get(options.kind, options.kind)
        if group not in known.values():
            require_choice("trainscout list", options.kind, known)
        rows = described(group, catalogue)
    show_text(json_text(rows) if options.json else _lines(rows))
    return OK


def described(group: str, catalogue: Catalogue) -> dict[str, str]:
    """What each declaration of a group is, in a few words."""
    describe = _DESCRIPTIONS.get(group)
    if describe is not None:
        return {name: describe(name, catalogue) for name in catalogue.contents(group)}
    declared = catalogue.contents(group)
    return {
        name: opening_comment(declared.file(name)) or str(declared[name].get("source", ""))
        for name in declared
    }


def _model(name: str, catalogue: Catalogue) -> str:
    model = catalogue.models[name]
    timed = catalogue.gpus[_MOST_TIMED].architecture.products
    guessed = ", ".join(estimated_mixers(model, timed))
    experts = f"{model.moe.top_k} of {model.moe.num_experts} experts, " if model.moe else ""
    return (
        f"{parameters(model) / 1e9:,.1f} B, {model.num_layers} layers of "
        f"{model.hidden_size:,}, {experts}{model.sequence_length:,} tokens; "
        f"{_runs(runs_of_model(model))}{f'; estimated: {guessed}' if guessed else ''}"
    )


def parameters(model: Model) -> int:
    """Parameters of one replica of a model as the workload on a single GPU has them, vocabulary
    padded."""
    from trainscout.simulators.predictor.question.cluster import Cluster
    from trainscout.simulators.predictor.question.job import Job
    from trainscout.simulators.predictor.question.recipe import Recipe
    from trainscout.simulators.predictor.question.training import Training
    from trainscout.simulators.predictor.workload.megatron import build_workload

    one = Cluster("one", 1, 1, 0, 0.0, "none", "")
    training = Training(global_batch_size=1, tokens=1.0)
    job = Job(model, load_catalogue().gpus[_MOST_TIMED], one, training, Recipe())
    (stage,) = build_workload(job).stages
    return stage.parameters.total


def _gpu(name: str, catalogue: Catalogue) -> str:
    gpu = catalogue.gpus[name]
    half = gpu.sixteen_bit
    flops = "" if half is None else f"{gpu.peak_flops[half] / 1e12:,.0f} TFLOP/s in 16 bit; "
    bandwidth = f"{gpu.memory_bandwidth_bytes_per_s / 1e12:.2f} TB/s"
    kernels = products(gpu, ("bf16", "fp16"))
    return (
        f"{gpu.architecture.name}, {gpu.memory_bytes / 2**30:.1f} GiB at {bandwidth}, "
        f"{flops}"
        f"{kernels}, {_runs(runs_by('gpu')[gpu.name,])}"
    )


def _cluster(name: str, catalogue: Catalogue) -> str:
    cluster, gpu = catalogue.machines(name)
    text = f"{cluster.num_gpus:,} {gpu.name} in nodes of {cluster.gpus_per_node}"
    if not cluster.nics_per_node:
        return f"{text}; {_runs(runs_by('gpu', 'fabric')[gpu.name, 'node'])}"
    network = f"{cluster.nics_per_node} x {cluster.nic_gbps:g} Gb/s {cluster.fabric}"
    return f"{text}, {network} a node; {_runs(runs_on(gpu, cluster))}"


def _framework(name: str, catalogue: Catalogue) -> str:
    about = opening_comment(catalogue.frameworks.file(name))
    # What stands for several has no runs of its own.
    if catalogue.frameworks[name].alternatives:
        return about
    return f"{_runs(runs_by('framework')[name,])}; {about}"


def _runs(count: int) -> str:
    return f"{count:,} run{'s' * (count != 1)}" if count else "no run"


_DESCRIPTIONS: dict[str, Callable[[str, Catalogue], str]] = {
    "model": _model,
    "gpu": _gpu,
    "cluster": _cluster,
    "framework": _framework,
}


def _lines(rows: dict[str, str]) -> str:
    """A line a row: its first sentence, cut where that gets too long."""
    wide = max(map(len, rows), default=0) + 2
    first = {name: " ".join(text.split()).partition(". ")[0] for name, text in rows.items()}
    lines = (f"{name:{wide}}{text}".rstrip() for name, text in first.items())
    cut = (line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4].rstrip()} ..." for line in lines)
    return "".join(f"{line}\n" for line in cut)
