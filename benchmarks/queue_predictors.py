"""Which predictor of queues is best: ``python -m benchmarks.queue_predictors``.

Mean absolute errors on ports and traffic that nothing was trained on, per horizon; and what each
predictor does to completion times. The Transformer is trained here, on the other half of the ports
and other seeds, for each kind of congestion control. Without torch it is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.network_engines import LOW, MB, PATTERNS, Fabric, errors, run
from trainscout.simulators.laboratory.network.queue_histories import Windows, queue_trace, windows
from trainscout.simulators.predictor.network.hybrid import HybridEngine, HybridSettings
from trainscout.simulators.predictor.network.hybrid.predictors import PREDICTORS
from trainscout.simulators.predictor.network.packet import PacketEngine, PacketSettings

SAMPLE_S = HybridSettings().sample_s
SAMPLES = HybridSettings().samples + 1
HORIZONS = {"60 us": 3, "240 us": 12, "1 ms": 50}
MODES = {
    "window": PacketSettings(),
    "DCQCN, low thresholds": PacketSettings(congestion="dcqcn", dcqcn=LOW, window=2),
}


def joined(parts: list[Windows]) -> Windows:
    return Windows(
        np.concatenate([each.history for each in parts]),
        np.concatenate([each.target for each in parts]),
        np.concatenate([each.port for each in parts]),
    )


def study(steps: int, epochs: int, weights: dict[str, Path]) -> Table:
    simple = {name: each for name, each in PREDICTORS.items() if each is not None}
    learned = ["transformer"] if weights else []
    table = Table(
        "congestion control", "horizon", "histories", *simple, *learned,
        title="Mean absolute error, KB, on held-out ports and traffic",
    )  # fmt: skip
    for mode, settings in MODES.items():
        traces = [queue_trace(seed, settings, SAMPLE_S, steps) for seed in range(6)]
        ports = np.arange(traces[0].shape[1])
        held_out = ports[ports % 2 == 1]
        predictors = dict(simple)
        if weights:
            from trainscout.simulators.predictor.network.hybrid import transformer

            known = joined(
                [
                    windows(trace, SAMPLES, horizon).of(ports[ports % 2 == 0])
                    for trace in traces[:4]
                    for horizon in HORIZONS.values()
                ]
            )
            model = transformer.train(known.history, known.target, epochs)
            transformer.save(model, weights[mode])
            predictors["transformer"] = transformer.predictor(model)
        for name, horizon in HORIZONS.items():
            unseen = joined([windows(each, SAMPLES, horizon).of(held_out) for each in traces[4:]])
            miss = [
                np.abs(predict(unseen.history) - unseen.target).mean()
                for predict in predictors.values()
            ]
            best = min(miss)
            cells = [f"[bold]{m / 1e3:.0f}[/]" if m == best else f"{m / 1e3:.0f}" for m in miss]
            table.add_row(mode, name, f"{len(unseen.target):,}", *cells)
    return table


def completions(weights: dict[str, Path]) -> Table:
    table = Table(
        "congestion control", "pattern", "predictor", "hops", "FCT error mean / p99 / max | job",
        title="Completion times, 64 MB",
    )  # fmt: skip
    fabric = Fabric()
    for mode, settings in MODES.items():
        for name in ("DP ring, ECMP collisions", "all-to-all in groups of 16"):
            pattern = PATTERNS[name](fabric)
            truth = run(fabric.engine(PacketEngine, settings), pattern, 64 * MB)
            for predictor in [*PREDICTORS, *(["transformer"] if weights else [])]:
                path = str(weights[mode]) if predictor == "transformer" else ""
                hybrid = HybridSettings(predictor=predictor, weights=path)
                fast = run(fabric.engine(HybridEngine, settings, hybrid), pattern, 64 * MB)
                saved = f"{truth.hops / fast.hops:.1f}x fewer"
                table.add_row(mode, name, predictor, saved, errors(fast, truth))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="samples of a trace")
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    console = Console(width=130)
    with tempfile.TemporaryDirectory() as folder:
        has_torch = importlib.util.find_spec("torch") is not None
        weights = {mode: Path(folder) / f"{at}.npz" for at, mode in enumerate(MODES)}
        console.print(study(arguments.steps, arguments.epochs, weights if has_torch else {}))
        console.print(completions(weights if has_torch else {}))


if __name__ == "__main__":
    main()
