"""The layers that both sources make, and how they differ: ``python -m ...layer_cases`` rewrites
``known_differences.csv`` for somebody to read and give new rows their reasons."""

from __future__ import annotations

import csv
import fnmatch
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.simulators.jobs import GPT175B, LLAMA, MIXTRAL_8X7B, make_job
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import Mamba2, Mixer
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.program import Chunk
from trainscout.simulators.virtual_cluster.traced.cache import TracedLayer, TracedLayerCache
from trainscout.simulators.virtual_cluster.traced.layer_spec import LayerSpec, layer_specs_of
from trainscout.simulators.virtual_cluster.traced.simulator import traced_workload
from trainscout.simulators.virtual_cluster.traced.tracer import traced_layers
from trainscout.simulators.virtual_cluster.traced.verify import differences, shapes

KNOWN = Path(__file__).parent / "known_differences.csv"
REASONS = KNOWN.with_name("difference_reasons.csv")
LLAMA3_70B = replace(
    LLAMA,
    name="llama3_70b",
    num_layers=80,
    hidden_size=8192,
    num_heads=64,
    num_query_groups=8,
    ffn_hidden_size=28672,
    vocab_size=128256,
    sequence_length=8192,
    vocab_multiple=128,
    qk_norm=False,
    source="Grattafiori et al. 2024 (arXiv 2407.21783), table 3",
)
# With Megatron-Core's own modules, and with keys for each head.
MHA = replace(LLAMA3_70B, num_query_groups=None, sequence_length=4096)
# Layers of every kind that Megatron-Core's hybrid stack has; sizes of Nemotron 3's.
HYBRID = replace(
    LLAMA,
    name="hybrid",
    num_layers=8,
    hidden_size=4096,
    num_heads=32,
    num_query_groups=8,
    ffn_hidden_size=21504,
    gated_mlp=False,
    position="none",
    qk_norm=False,
    moe=Moe(num_experts=16, top_k=4, ffn_hidden_size=1856),
    layers="2*(mamba/none, none/dense, attention/none, none/moe)",
    kinds={"mamba": Mixer(mamba2=Mamba2(heads=128, head_dim=64, state=128, groups=8, chunk=128))},
)
UNFUSED = {"attention": "unfused"}
RECOMPUTED: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "norm": {"recompute": "selective", "recompute_modules": "layernorm"},
    "mlp": {"recompute": "selective", "recompute_modules": "mlp"},
    "experts": {"recompute": "selective", "recompute_modules": "moe"},
    "activation": {"recompute": "selective", "recompute_modules": "layernorm+moe_act"},
}


class Difference(NamedTuple):
    """One line of the file: in which case and block, which source has what more, how often."""

    case: str
    block: str
    source: str
    count: int
    what: str
    reason: str = ""


def _degrees(tp: int, sp: bool, **more: Any) -> tuple[str, dict[str, Any]]:
    name = f"tp{tp}" + (" sp" if sp else "") + "".join(f" {k}{v}" for k, v in more.items())
    return name, {"tp": tp, "sp": sp, **more}


def _cases() -> Iterator[tuple[str, Job]]:
    plain = [
        _degrees(*each) for each in ((1, False), (2, True), (4, False), (8, False), (8, True))
    ]
    for name, recipe in plain:
        for how in ("none", "selective", "full"):
            yield f"gpt {name} {how}", make_job(GPT175B, **recipe, **RECOMPUTED[how])
            job = make_job(GPT175B, **recipe, **RECOMPUTED[how], training=UNFUSED)
            yield f"gpt {name} {how} unfused", job
    for micro_batch in (2, 4):
        for name, recipe in (plain[0], plain[4]):
            job = make_job(GPT175B, **recipe, micro_batch=micro_batch)
            yield f"gpt {name} mb{micro_batch} none", job
    yield "gpt tp2 cp2 none", make_job(GPT175B, tp=2, cp=2)
    yield "gpt tp2 sp cp2 a2a none", make_job(GPT175B, tp=2, sp=True, cp=2, cp_comm_type="a2a")
    for name, recipe in plain:
        for how in ("none", "full", "norm", "mlp"):
            yield f"llama {name} {how}", make_job(LLAMA3_70B, **recipe, **RECOMPUTED[how])
    yield "llama tp4 none unfused", make_job(MHA, tp=4, training=UNFUSED)
    # One group of queries a rank, which nothing rotates: slices of the packed product.
    yield "llama tp8 none unrotated", make_job(replace(LLAMA3_70B, position="none"), tp=8)
    yield "llama tp2 sp cp4 none", make_job(LLAMA3_70B, tp=2, sp=True, cp=4, nodes=8)
    gathered = {"cp": 4, "cp_comm_type": "all_gather", "nodes": 8}
    yield "llama tp2 sp cp4 all_gather none", make_job(LLAMA3_70B, tp=2, sp=True, **gathered)
    for precision in ("fp16", "fp8", "fp8_current"):
        job = make_job(LLAMA3_70B, tp=4, sp=True, training={"precision": precision})
        yield f"llama tp4 sp {precision} none", job
    for name, recipe in (plain[0], plain[4]):
        job = make_job(LLAMA3_70B, **recipe, training={"cross_entropy": "in_place"})
        yield f"llama {name} fused loss none", job
    for name, recipe in (
        _degrees(1, False, ep=8),
        _degrees(2, True, ep=4),
        _degrees(2, True, ep=4, etp=1),
        _degrees(4, True, ep=2, etp=1),
    ):
        for how in ("none", "full", "experts", "activation"):
            job = make_job(MIXTRAL_8X7B, batch=8, **recipe, **RECOMPUTED[how])
            yield f"mixtral {name} {how}", job
    for name, recipe in (
        _degrees(1, False, ep=8),
        _degrees(2, True, ep=4),
        _degrees(2, True, cp=2, ep=4),
    ):
        yield f"hybrid {name} none", make_job(HYBRID, batch=8, **recipe)
    for how in ("experts", "activation"):
        yield f"hybrid tp1 ep8 {how}", make_job(HYBRID, batch=8, ep=8, **RECOMPUTED[how])
    dense = replace(
        HYBRID, moe=None, layers="2*(mamba/none, none/dense, attention/none, none/dense)"
    )
    job = make_job(dense, batch=8, tp=2, sp=True, training={"precision": "fp8_current"})
    yield "hybrid tp2 sp fp8_current none", job
    stored: dict[str, Any] = {"activation_func_fp8_input_store": True}
    yield "llama tp1 stored none", make_job(LLAMA3_70B, **stored)
    yield "mixtral tp1 ep8 stored none", make_job(MIXTRAL_8X7B, batch=8, ep=8, **stored)
    capacity = replace(MIXTRAL_8X7B, moe=replace(_moe(MIXTRAL_8X7B), capacity_factor=1.0))
    yield "mixtral tp1 ep8 capacity none", make_job(capacity, batch=8, ep=8)


def _moe(model: Model) -> Any:
    assert model.moe is not None
    return model.moe


CASES = dict(_cases())


# Degrees and sizes whose layers run the code of the cases beside them, and those of which
# recomputation does.
_DEEP = {"gpt tp2 sp", "gpt tp4", "gpt tp1 mb2", "gpt tp1 mb4", "gpt tp8 sp mb4"}
_DEEP |= {"llama tp2 sp", "llama tp4", "mixtral tp4 sp ep2 etp1"}
_DEEP_RECOMPUTED = {"gpt tp8", "llama tp8", "mixtral tp2 sp ep4"}


def is_deep(case: str) -> bool:
    """Whether only the deep profile runs the case."""
    degree, how = case.removesuffix(" unfused").rsplit(" ", 1)
    return degree in _DEEP or (degree in _DEEP_RECOMPUTED and how != "none")


def trace_cases(directory: Path, cases: Mapping[str, Job]) -> dict[LayerSpec, TracedLayer]:
    """Every layer of these cases."""
    specs = list(dict.fromkeys(spec for job in cases.values() for spec in layer_specs_of(job)))
    gpu = next(iter(cases.values())).gpu
    answers = traced_layers(specs, gpu, TracedLayerCache(directory))
    traced = {}
    for spec, answer in answers.items():
        assert isinstance(answer, TracedLayer), f"{spec}: {answer}"
        traced[spec] = answer
    return traced


def found_differences(case: str, traced: Mapping[LayerSpec, TracedLayer]) -> list[Difference]:
    """How the two sources differ in one case: operations, and bytes that stay."""
    job = CASES[case]
    found = []
    for ours, theirs in zip(
        _runs(build_workload(job)), _runs(traced_workload(job, traced)), strict=True
    ):
        assert ours.parameters == theirs.parameters
        for one, other in ((ours.forward, theirs.forward), (ours.backward, theirs.backward)):
            assert one.name == other.name
            found += [
                Difference(case, one.name, each.source, each.count, " ".join(map(str, each.what)))
                for each in sorted(differences(shapes(one), shapes(other)), key=str)
            ]
            more = other.saved_bytes - one.saved_bytes
            if more and one.name.endswith("_forward"):
                source = "traced" if more > 0 else "builtin"
                found.append(Difference(case, one.name, source, abs(more), "bytes kept"))
    return found


def _runs(workload: Any) -> list[Any]:
    chunks: list[Chunk] = [chunk for stage in workload.stages for chunk in stage.chunks]
    return [run for chunk in chunks for run in chunk.runs]


def known_differences() -> list[Difference]:
    """The file's lines."""
    with KNOWN.open(newline="") as file:
        return [Difference(**{**row, "count": int(row["count"])}) for row in csv.DictReader(file)]


def _reason(line: Difference, reasons: Sequence[Mapping[str, str]]) -> str:
    """Why a line is there, by patterns of its case, block, source and text; first match."""
    for reason in reasons:
        fields = ("case", "block", "source", "what")
        if all(fnmatch.fnmatchcase(getattr(line, each), reason[each]) for each in fields):
            return reason["reason"]
    return ""


def write(path: Path) -> int:
    """Rewrite the file; how many of its lines have no reason."""
    with TemporaryDirectory() as directory:
        traced = trace_cases(Path(directory), CASES)
    lines = [line for case in CASES for line in found_differences(case, traced)]
    with REASONS.open(newline="") as file:
        reasons = list(csv.DictReader(file))
    lines = [line._replace(reason=_reason(line, reasons)) for line in lines]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Difference._fields)
        writer.writerows(lines)
    return sum(not line.reason for line in lines)


if __name__ == "__main__":
    sys.exit(f"{write(KNOWN)} lines without a reason in {KNOWN}")
