"""Train the Transformer that predicts queues: ``trainscout network train FILE``.

The weights go into FILE, for ``predictor=transformer weights=FILE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainscout.simulators.laboratory.network.queue_histories import queue_trace, windows
from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import check_output
from trainscout.simulators.predictor.network.hybrid import transformer
from trainscout.simulators.predictor.network.hybrid.settings import HybridSettings
from trainscout.simulators.predictor.network.packet.settings import PacketSettings


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    defaults = HybridSettings()
    parser = command_parser(
        "network train",
        "Train the Transformer that predicts queues, on traffic of its own.",
        "trainscout network train queue.npz --traces 8 --epochs 6\n"
        "trainscout network train queue.npz --congestion dcqcn",
    )
    parser.add_argument("file", type=Path, help="to write the weights to")
    parser.add_argument("--congestion", default="window", choices=("window", "dcqcn"))
    parser.add_argument("--traces", type=int, default=4, help="seeds of random traffic")
    parser.add_argument("--steps", type=int, default=200, help="samples of a trace")
    parser.add_argument("--horizon", type=int, nargs="+", default=[3, 12, 50], help="in samples")
    parser.add_argument("--epochs", type=int, default=6)
    chosen = parser.parse_args(arguments)
    check_output("file", chosen.file)
    settings = PacketSettings(congestion=chosen.congestion)
    found = [
        windows(
            queue_trace(seed, settings, defaults.sample_s, chosen.steps),
            defaults.samples + 1,
            horizon,
        )
        for seed in range(chosen.traces)
        for horizon in chosen.horizon
    ]
    history = np.concatenate([each.history for each in found])
    target = np.concatenate([each.target for each in found])
    model = transformer.train(history, target, chosen.epochs)
    transformer.save(model, chosen.file)
    error = np.abs(transformer.predictor(model)(history) - target).mean()
    print(f"{len(target):,} histories; mean absolute error on them {error / 1e3:.1f} KB")
    return OK
