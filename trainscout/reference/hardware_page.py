"""The page ``docs/hardware.md``: which hardware at which precision, on what evidence."""

from __future__ import annotations

from trainscout.conf.catalogue import Catalogue, load_catalogue
from trainscout.evidence import attention, links, products, runs_by
from trainscout.reference.markdown import TEXTS, markdown_table
from trainscout.simulators.predictor.kernels.coefficients import fitted_gpus
from trainscout.simulators.predictor.kernels.uncertainty import OF_THE_MEDIAN

# Columns of products and the type that each is priced at.
_PRODUCTS = {"fp16, bf16": ("bf16", "fp16"), "tf32": ("tf32",), "fp8": ("fp8",)}


def hardware_page() -> str:
    """The whole page, in Markdown."""
    catalogue = load_catalogue()
    fitted = sorted({catalogue.architectures[fit.architecture].vendor for fit in fitted_gpus()})
    declared = sorted({gpu.architecture.vendor for gpu in catalogue.gpus.values()} - {*fitted})
    page: str = TEXTS["hardware"]
    return page.format(
        fitted=", ".join(fitted),
        declared=", ".join(declared),
        matrix=support_matrix(catalogue),
        of_the_median=OF_THE_MEDIAN,
    )


def support_matrix(catalogue: Catalogue) -> str:
    """GPU x precision x evidence, as a table in Markdown; those with most published runs first."""
    runs = {name: count for (name,), count in runs_by("gpu").items()}
    gpus = sorted(catalogue.gpus.items(), key=lambda item: (-runs.get(item[1].name, 0), item[0]))
    rows = [
        (
            f"`{name}`",
            gpu.architecture.vendor,
            f"`{gpu.architecture.name}`",
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
    heads = ("GPU", "vendor", "architecture", *types, "attention", "links", "runs")
    return markdown_table(heads, rows)
