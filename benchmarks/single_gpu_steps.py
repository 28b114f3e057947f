"""Train small models on the GPU at hand; rows for ``trainscout validate``.

    python -m benchmarks.single_gpu_steps --gpu h200 --output runs_h200.csv

Plain PyTorch: fp32 parameters under bf16 autocast, fused AdamW, gradients accumulated over
micro-batches, no recomputation, no compiler. Each case is a declared model cut to the layers
that fit one GPU. A row has the median step time and the peak of the caching allocator. A row
that is there is not measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.torch_transformer import build
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.device.results import ResultFile
from trainscout.simulators.laboratory.device.timing import Clock, open_torch
from trainscout.simulators.laboratory.published.rows import Row
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.model import Model

COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
WARM_UP_STEPS = 3
STEPS = 10
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """One training job on one GPU: a declared model cut to ``layers``."""

    model: str
    layers: int
    micro_batch: int
    micro_batches: int

    @property
    def name(self) -> str:
        return f"{self.model}_l{self.layers}_mb{self.micro_batch}x{self.micro_batches}"


# Below 40 GB of parameters, gradients and moments each, so that an A100 can run them too.
CASES = (
    Case("llama3_8b", 4, 1, 4),
    Case("llama3_8b", 4, 2, 4),
    Case("llama2_7b", 8, 1, 4),
    Case("llama2_7b", 8, 4, 2),
    Case("gpt3_2b7", 24, 1, 4),
    Case("gpt3_2b7", 24, 4, 2),
)


class Trainer(Protocol):
    """One job that can take steps."""

    def step(self) -> object: ...

    def peak_bytes(self) -> int:
        """Most bytes the caching allocator has held."""
        ...


class TorchTrainer:
    """Plain PyTorch on one device."""

    def __init__(self, torch: Any, device: str, model: Model, case: Case) -> None:
        self._torch, self._device, self._case = torch, device, case
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with torch.device(device):
            self._module = build(torch, model, model.sequence_length)
        self._optimizer = torch.optim.AdamW(self._module.parameters(), lr=1e-4, fused=True)
        shape = (case.micro_batch, model.sequence_length)
        self._ids = torch.randint(0, model.vocab_size, shape, device=device)

    def step(self) -> None:
        torch = self._torch
        for _ in range(self._case.micro_batches):
            with torch.autocast(self._device, torch.bfloat16):
                logits = self._module(self._ids).flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, self._ids.flatten())
            (loss / self._case.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)

    def peak_bytes(self) -> int:
        return int(self._torch.cuda.max_memory_allocated()) if self._device == "cuda" else 0


def measure(trainer: Trainer, clock: Clock) -> tuple[float, int]:
    """Median seconds of a step after a warm-up, and the peak bytes."""
    clock.seconds(trainer.step, WARM_UP_STEPS)
    seconds = statistics.median(clock.seconds(trainer.step, 1) for _ in range(STEPS))
    return seconds, trainer.peak_bytes()


def row_of(case: Case, model: Model, gpu: str, framework: str) -> dict[str, object]:
    """The columns of a published run that say what was trained."""
    return {
        "id": f"steps_{gpu}_{case.name}",
        "source": "benchmarks.single_gpu_steps",
        "gpu": gpu,
        "num_gpus": 1,
        "gpus_per_node": 1,
        "framework": framework,
        "model": f"{model.name}({model.num_layers} layers)",
        "num_layers": model.num_layers,
        "hidden": model.hidden_size,
        "ffn_hidden": model.ffn_hidden_size,
        "num_heads": model.num_heads,
        "num_query_groups": model.kv_heads,
        "vocab": model.vocab_size,
        "seq_len": model.sequence_length,
        "gated_mlp": int(model.gated_mlp),
        **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "vpp"), 1),
        "sp": 0,
        "micro_batch": case.micro_batch,
        "global_batch": case.micro_batch * case.micro_batches,
        "recompute": "none",
        "dist_optimizer": 0,
        "dtype": "bf16",
        "tp_overlap": 0,
        "grad_overlap": 0,
        "memory_kind": "allocated",
        "notes": "fp32 parameters, bf16 autocast, fused AdamW, SDPA",
        "quality": "A",
    }


def run(
    cases: Sequence[Case],
    models: dict[str, Model],
    gpu: str,
    device: str,
    file: ResultFile,
) -> int:
    """Measure the cases whose row is missing; returns how many were added.

    Raises:
        InputError: without PyTorch or the device.
    """
    torch, clock = open_torch(device)
    added = 0
    for case in cases:
        model = dataclasses.replace(models[case.model], num_layers=case.layers)
        row = row_of(case, model, gpu, f"PyTorch {torch.__version__} eager")
        if row in file:
            continue
        try:
            seconds, peak = measure(TorchTrainer(torch, device, model, case), clock)
        except RuntimeError as error:
            print(f"skipped {case.name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        row["measured_iter_s"] = round(seconds, 6)
        if peak:
            row["measured_peak_mem_gib"] = round(peak / GIB, 3)
        file.append(row)
        added += 1
        print(f"{case.name}: {seconds:.4f} s, {peak / GIB:.2f} GiB")
    return added


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 for a wrong input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.single_gpu_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpu", required=True, help="declared GPU this machine has (conf/gpu)")
    parser.add_argument("--output", required=True, type=Path, help="CSV of runs")
    given = parser.parse_args(arguments)
    try:
        catalogue = load_catalogue()
        require_choice("--gpu", given.gpu, catalogue.gpus)
        # Before the file exists: without a GPU there is nothing to write.
        open_torch("cuda")
        file = ResultFile(given.output, COLUMNS, ("id",))
        added = run(CASES, catalogue.models, given.gpu, "cuda", file)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{added} runs measured; {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
