"""Write the pages of the configuration reference: ``python -m trainscout.reference --help``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import initialize_config_module
from omegaconf import OmegaConf

from trainscout.commands.hydra_setup import run_directory
from trainscout.commands.listing import described, kinds
from trainscout.commands.schemas import register_commands
from trainscout.conf.catalogue import Catalogue, load_catalogue
from trainscout.evidence import attention, links, products, runs_by
from trainscout.reference.settings import as_written
from trainscout.reference.settings_page import TEXTS, settings_page
from trainscout.simulators.predictor.io.command_line import OK, explain
from trainscout.simulators.predictor.io.markdown import table
from trainscout.simulators.predictor.io.output import write_whole
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.kernels.uncertainty import OF_THE_MEDIAN
from trainscout.simulators.predictor.question.errors import InputError

# What a file says beside values: its name, and sources of figures, one click away.
_NO_VALUES = ("name", "defaults", "source", "sources")
# The values that are shown, of groups that users ask for them; what others are sums them up.
_SHOWN: dict[str, tuple[str, ...] | None] = {
    "cluster": ("nvlink_domain", "nvswitch", "cpu", "nccl_version"),
    **dict.fromkeys(("training", "sweep", "goodput")),  # all
}


def choices_page() -> str:
    """The whole page, in Markdown."""
    titles: dict[str, str] = TEXTS["groups"]
    # GPUs have a page of their own.
    groups = [group for group in kinds().values() if group != "gpu"]
    groups.sort(key=lambda each: ([*titles, each].index(each), each))
    catalogue = load_catalogue()
    tables = [_group(group, titles.get(group, group.capitalize()), catalogue) for group in groups]
    return "\n".join([TEXTS["choices"], *tables])


def _group(group: str, title: str, catalogue: Catalogue) -> str:
    """What each file is, as ``trainscout list`` has it, and what it sets."""
    rows = []
    for name, about in described(group, catalogue).items():
        values = _flat(group, name).items()
        sets = "<br>".join(f"`{key}: {value}`" for key, value in values)
        # Most have no run, which the page says once.
        about = re.sub("[;,] no run|no run; ", "", about)
        rows.append((f"[`{name}`](../conf/{group}/{name}.yaml)", about, sets))
    shown = 3 if any(sets for *_, sets in rows) else 2
    heads = (group, "what it is", "what it sets")[:shown]
    cells = table(heads, [row[:shown] for row in rows], left=heads)
    return f"## {title}\n\n`{group}=`\n\n{cells}\n"


def _flat(group: str, choice: str) -> dict[str, str]:
    """Values of a file by name, with what is inside a group named after it."""
    flat: dict[str, str] = {}
    if group not in _SHOWN:
        return flat
    shown = _SHOWN[group]
    content: dict[str, Any] = read_yaml(DECLARATIONS / group / f"{choice}.yaml") or {}
    for key, value in content.items():
        if key in _NO_VALUES or key not in (shown or (key,)):
            continue
        inside = value.items() if isinstance(value, dict) else ()
        flat |= {f"{key}.{name}": as_written(part) for name, part in inside}
        if not inside:
            flat[key] = as_written(value)
    return flat


# Columns of products and the type that each is priced at.
_PRODUCTS = {"fp16, bf16": ("bf16", "fp16"), **{name: (name,) for name in ("tf32", "fp32", "fp8")}}


def hardware_page() -> str:
    """The whole page, in Markdown."""
    page: str = TEXTS["hardware"]
    return page.format(matrix=support_matrix(load_catalogue()), of_the_median=OF_THE_MEDIAN)


def support_matrix(catalogue: Catalogue) -> str:
    """What each GPU is, by precision on which evidence, as a table in Markdown; those with most
    published runs first."""
    runs = {name: count for (name,), count in runs_by("gpu").items()}
    gpus = sorted(catalogue.gpus.items(), key=lambda item: (-runs.get(item[1].name, 0), item[0]))
    described_gpus = described("gpu", catalogue)
    rows = [
        (
            f"[`{name}`](../conf/gpu/{name}.yaml)",
            described_gpus[name].split(";")[0],
            f"{gpu.price_usd_per_hour:g}",
            *(products(gpu, types) for types in _PRODUCTS.values()),
            products(gpu, ("fp8",)) if gpu.architecture.microscaling else "",
            products(gpu, ("fp4",)),
            attention(gpu),
            links(gpu),
            f"{runs[name]:,}" if name in runs else "",
        )
        for name, gpu in gpus
    ]
    types = (*_PRODUCTS, "mxfp8", "nvfp4")
    heads = ("GPU", "what it is", "$ an hour", *types, "attention", "links", "runs")
    return table(heads, rows, left=heads) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code (0 done, 2 wrong input)."""
    parser = argparse.ArgumentParser(
        prog="python -m trainscout.reference",
        description="Write docs/reference.md, choices.md and hardware.md from the code and conf/.",
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the pages")
    docs = parser.parse_args(arguments).docs
    try:
        if not docs.is_dir():
            raise InputError("--docs", docs, "is no folder", "the docs folder")
        for name, text in reference_pages().items():
            write_whole(docs / name, text)
    except Exception as error:
        return explain(error, debug=False)
    return OK


def reference_pages() -> dict[str, str]:
    """What the generated pages of ``docs/`` have to contain."""
    register_commands()
    OmegaConf.register_new_resolver("run_directory", run_directory, replace=True)
    with initialize_config_module("trainscout.conf", version_base="1.3"):
        return {
            "reference.md": settings_page(),
            "choices.md": choices_page(),
            "hardware.md": hardware_page(),
        }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
