"""Run the corpus: public training scripts, unmodified, each as rank 0 of a small job.

    python -m benchmarks.corpus --sources DIR [--only TEXT] [--jobs N] [--page docs/corpus.md]

Repositories are brought by hand into DIR, packages installed (``pip install --no-deps``). A script
passes when ``trainscout run --steps 2`` exits 0: it trained two steps and left a trace.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.corpus.assets import write_assets

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("scripts.yaml")
PAGE = Path(__file__).with_name("page.md")
# Repositories with so many scripts that run are named on the page.
MANY = 5
LIMIT_S = 600
# No hub, no tracker; and what Megatron-LM asks of its environment.
ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
}
VERDICTS = {
    0: "passes",
    1: "the script fails",
    3: "gap",
    4: "broken invariant",
    124: f"not done in {LIMIT_S} s",
}


@dataclass(frozen=True)
class Outcome:
    """How one script ended: exit code, seconds, and the line that says why it failed."""

    name: str
    source: str
    code: int
    wall_s: float
    reason: str


def run_script(entry: dict[str, Any], sources: Path, assets: Path) -> Outcome:
    """One entry of ``scripts.yaml``."""
    repository, _, commit = entry["source"].partition("@")
    source = sources / f"{repository.rpartition('/')[2]}-{commit}"
    with tempfile.TemporaryDirectory() as out:
        words = entry["command"]
        text = " ".join(words) if isinstance(words, list) else words
        script = shlex.split(text.format(src=source, assets=assets, out=out))
        # ``below``: the script reads ../data.
        folder = assets / "below" if entry.get("below") else assets
        folder = source if entry.get("inside") else folder
        folder.mkdir(exist_ok=True)
        for place, made in entry.get("links", {}).items():
            (source / place).parent.mkdir(parents=True, exist_ok=True)
            (source / place).unlink(missing_ok=True)
            (source / place).symlink_to(assets / made)
        options = ["--world-size", str(entry.get("world_size", 8)), "--gpu", "h100"]
        command = [sys.executable, "-m", "trainscout", "run", *options, "--steps", "2"]
        # ``importable``: the package that the repository would install.
        own = [str(source), str(source / "src")] if entry.get("importable") else []
        paths = os.pathsep.join([str(ROOT), *own, *filter(None, [os.environ.get("PYTHONPATH")])])
        began_s = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, "--output", f"{out}/traces", "--", *script],
                cwd=folder,
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    **{
                        name: value.format(src=source, assets=assets, out=out)
                        for name, value in entry.get("environment", {}).items()
                    },
                    "PYTHONPATH": paths,
                    # What scripts build is for this Python.
                    "PATH": os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", "")]),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
            code, output = done.returncode, done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as late:
            code, output = 124, (late.stdout or b"").decode(errors="replace")
        wall_s = time.perf_counter() - began_s
    reason = _reason(code, output)
    for place in (f"{source}/", f"{assets}/", f"{sys.prefix}/lib/"):
        reason = reason.replace(place, "")
    return Outcome(entry["name"], entry["source"], code, wall_s, reason)


def _reason(code: int, output: str) -> str:
    if not code:
        return ""
    lines = [line.strip() for line in output.splitlines()]
    for start in ("gap of the emulator", "broken invariant"):
        found = [line for line in lines if line.startswith(start)]
        if found:
            return found[-1]
    errors = [line for line in lines if "Error" in line.partition(":")[0] and ": " in line]
    return errors[-1] if errors else "".join(lines[-1:])


def page(entries: list[dict[str, Any]], outcomes: list[Outcome]) -> str:
    """The page of the documentation; scripts without an outcome are counted and not shown."""
    ended = [each for each in outcomes if each.name in {entry["name"] for entry in entries}]
    passing = Counter[str]()
    failed = []
    for outcome in ended:
        if outcome.code:
            verdict = VERDICTS.get(outcome.code, f"exit {outcome.code}")
            reason = outcome.reason.replace("|", "/")[:110]
            failed.append(f"| {outcome.name} | {outcome.source} | {verdict}: {reason} |\n")
        else:
            passing[outcome.source.partition("@")[0]] += 1
    samples, without = [], Counter[str]()
    for day, numbers, listed in _samples():
        tried = [each for each in listed if "none" not in each]
        unreached = [each for each in listed if each.get("none") == "not reached"]
        others = [each for each in listed if "none" in each and each not in unreached]
        first = _scripts(each for each in tried if not each["first"])
        now = _scripts(each for each in tried if not each["now"])
        number = _scripts(tried)
        counts = f"{number} | " + " | ".join(
            f"{passed} ({passed / number:.0%})" if number else "0" for passed in (first, now)
        )
        rest = f"{_scripts(others)} | {_scripts(unreached)}"
        samples.append(f"| {day} | {len(numbers)} | {counts} | {rest} |\n")
        for each in others:
            without[each["none"].partition(":")[0]] += _scripts([each])
        for each in tried:
            if each["now"]:
                why = each["first"] if each["now"] == "the same" else each["now"]
                name = ", ".join(each["scripts"])
                failed.append(f"| {name} | {each['source']} | {why} |\n")
            else:
                passing[each["source"].partition("@")[0]] += len(each["scripts"])
    return PAGE.read_text("utf-8").format(
        passed=sum(not each.code for each in ended),
        run=len(ended),
        number=len(entries),
        samples="".join(samples),
        failed="".join(failed),
        without=", ".join(f"{why} ({number})" for why, number in without.items() if number > 9),
        passing=textwrap.fill(
            ", ".join(f"{name} {number}" for name, number in passing.items() if number >= MANY),
            width=100,
            break_on_hyphens=False,
        ),
        few=sum(number < MANY for number in passing.values()),
    )


def _samples() -> list[tuple[str, list[int], list[dict[str, Any]]]]:
    """Of each day its samples, and their entries."""
    days = yaml.safe_load(SCRIPTS.with_name("samples.yaml").read_text("utf-8"))
    found = []
    for day, numbers in days.items():
        files = [SCRIPTS.with_name("samples") / f"{each:02}.yaml" for each in numbers]
        entries = [entry for file in files for entry in yaml.safe_load(file.read_text("utf-8"))]
        found.append((day, numbers, entries))
    return found


def _scripts(entries: Iterable[dict[str, Any]]) -> int:
    return sum(len(each["scripts"]) for each in entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="REPOSITORY-COMMIT folders")
    parser.add_argument("--only", default="", help="scripts whose name or source has this text")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at the same time")
    parser.add_argument("--page", type=Path, help="write the table here")
    args = parser.parse_args()
    entries = [
        entry
        for entry in yaml.safe_load(SCRIPTS.read_text(encoding="utf-8"))["scripts"]
        if args.only in entry["name"] or args.only in entry["source"]
    ]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        assets = Path(folder)
        write_assets(assets)
        pool = ThreadPoolExecutor(args.jobs)
        sources = args.sources.absolute()
        for outcome in pool.map(lambda entry: run_script(entry, sources, assets), entries):
            outcomes.append(outcome)
            verdict = VERDICTS.get(outcome.code, outcome.code)
            took = f"{outcome.wall_s:.0f} s"
            print(f"{outcome.name}: {verdict}, {took} {outcome.reason}", flush=True)
            # Whoever ends this early has the rows so far.
            if args.page is not None:
                args.page.write_text(page(entries, outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
