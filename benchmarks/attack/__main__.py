"""Attack the project, seeded, with a budget for each kind of attack:

    python -m benchmarks.attack                    # the slice that CI runs, and a little more
    python -m benchmarks.attack --full             # 10,000 jobs, all wrong inputs, 100 kills, ...
    python -m benchmarks.attack jobs --count 500 --seed 7

Exit code 1 when anything was wrong; each finding is a line that says how to come to it again.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time

BUDGETS = {
    "jobs": (100, 10_000),
    "mutations": (40, 1_000),
    "mistakes": (20, 100),
    "searches": (5, 50),
    "kills": (5, 100),
    "stores": (20, 500),
    "files": (300, 20_000),
}
"""Of each kind of attack: how many by default, and with ``--full``."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack the project.")
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(BUDGETS)} (default: all)")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = False
    for kind in options.kinds or BUDGETS:
        count = options.count or BUDGETS[kind][options.full]
        started_s = time.monotonic()
        tried, wrong = importlib.import_module(f"benchmarks.attack.{kind}").attack(
            options.seed, count
        )
        took_s = time.monotonic() - started_s
        print(f"{kind}: {tried:,} tried, {len(wrong)} wrong, {took_s:.0f} s", flush=True)
        print(*wrong, sep="\n", end="\n" if wrong else "")
        failed |= bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main())
