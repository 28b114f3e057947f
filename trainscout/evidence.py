"""What declarations rest on: fits of kernels and links, published runs."""

from __future__ import annotations

import csv
import functools
from collections import Counter
from pathlib import Path

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS
from trainscout.simulators.predictor.kernels.choice import choose_attention, choose_gemm
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.uncertainty.table import RESIDUALS

# Read as a table: what predicts and what shows import nothing of the laboratory.
_DATA = DECLARATIONS.parent / "simulators/laboratory/data"
# GPT-2's 50,257 tokens are padded to 51,200.
_PADDING = 0.03


def products(gpu: Gpu, types: tuple[str, ...]) -> str:
    """Evidence of matrix products of the first of these types that the GPU has; "" for none."""
    found = next((each for each in types if each in gpu.peak_flops), None)
    return "" if found is None else choose_gemm(gpu, found).evidence.value


def attention(gpu: Gpu) -> str:
    """Evidence of attention kernels; ``unfused`` where the architecture has none."""
    if not gpu.architecture.attention_kernels or gpu.sixteen_bit is None:
        return "unfused"
    return choose_attention(gpu, gpu.sixteen_bit).evidence.value


def links(gpu: Gpu) -> str:
    """What joins GPUs in a node, and its evidence."""
    facts = gpu.architecture.collectives
    if not gpu.nvlink_links:
        return "PCIe"
    measured = gpu.compute_capability in facts.measured_capabilities
    evidence = Evidence.FITTED if measured else Evidence.ESTIMATED
    return f"{gpu.architecture.link}, {evidence.value}"


def runs_by(*columns: str) -> Counter[tuple[str, ...]]:
    """Published runs that error bars rest on, by columns of the table of residuals."""
    return Counter(tuple(row[each] for each in columns) for row in _residuals())


def runs_of_model(model: Model) -> int:
    """Those of a model's shape; a vocabulary that was padded otherwise is the same. Rows state
    neither indexers, towers nor pooling: of two models of a shape, they are the one without."""
    indexed = any(kind.attention and kind.attention.index for kind in model.kinds.values())
    if indexed or model.towers or model.pooled:
        return 0
    shape = {
        "num_layers": model.num_layers,
        "hidden": model.hidden_size,
        "num_heads": model.num_heads,
        "num_query_groups": model.num_query_groups or model.num_heads,
        "num_experts": model.moe.num_experts if model.moe else 0,
    }
    if not model.moe:  # of experts, rows state either width here
        shape["ffn_hidden"] = model.ffn_hidden_size
    return sum(
        all(_size(row, name) == size for name, size in shape.items())
        and abs(_size(row, "vocab") / model.vocab_size - 1) < _PADDING
        for row in _published()
    )


def runs_on(gpu: Gpu, cluster: Cluster) -> int:
    """Those between nodes of such GPUs with as much of the same fabric for each."""
    rate = cluster.nics_per_node * cluster.nic_gbps / cluster.gpus_per_node
    return runs_by("gpu", "fabric")[gpu.name, f"{cluster.fabric} {rate:g}"]


def _size(row: dict[str, str], name: str) -> int:
    ungrouped = row["num_heads"] if name == "num_query_groups" else ""
    return int(row[name] or ungrouped or 0)


@functools.cache
def _residuals() -> tuple[dict[str, str], ...]:
    return _table(RESIDUALS)


@functools.cache
def _published() -> tuple[dict[str, str], ...]:
    """The rows of published runs behind the residuals."""
    counted = {row["id"] for row in _residuals()}
    tables = (_DATA / "published_runs.csv", *sorted(_DATA.glob("blind_tests/*_runs.csv")))
    return tuple(row for path in tables for row in _table(path) if row["id"] in counted)


def _table(path: Path) -> tuple[dict[str, str], ...]:
    text = path.read_text(encoding="utf-8")
    return tuple(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
