"""HyGra's queue predictor: a small Transformer over a queue's history (section V-C). Needs torch.

Each sample is a token. Depths are divided by the deepest of their history, so that one network
serves queues of all depths; it predicts the change from the last sample on that scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainscout.simulators.predictor.network.hybrid.predictors import Floats, Predictor
from trainscout.simulators.predictor.question.errors import InputError

_WIDTH, _HEADS, _LAYERS = 32, 4, 2


def network(samples: int) -> Any:
    """An untrained network, ``torch.nn.Module``: (n, samples) -> (n,).

    Raises:
        InputError: when torch is not installed.
    """
    torch = _torch()
    nn: Any = torch.nn
    base: Any = nn.Module

    class Network(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Linear(1, _WIDTH)
            self.place = nn.Parameter(torch.zeros(samples, _WIDTH))
            layer = nn.TransformerEncoderLayer(
                _WIDTH, _HEADS, 2 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
            self.head = nn.Linear(_WIDTH, 1)

        def forward(self, history: Any) -> Any:
            tokens = self.token(history[:, :, None]) + self.place
            return history[:, -1] + self.head(self.encoder(tokens)[:, -1])[:, 0]

    return Network()


def train(history: Floats, target: Floats, epochs: int, seed: int = 0) -> Any:
    """A network that predicts ``target``, shape (n,), from ``history``, shape (n, samples).

    The loss is the mean absolute error on the scale of each history.
    """
    torch = _torch()
    torch.manual_seed(seed)
    model = network(history.shape[1])
    scale = _scale(history)
    inputs = torch.tensor(history / scale[:, None], dtype=torch.float32)
    wanted = torch.tensor(target / scale, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batch = 512
    steps = epochs * -(-len(inputs) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(batch):
            loss = (model(inputs[rows]) - wanted[rows]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model


def save(model: Any, path: Path) -> None:
    """Write the weights as arrays."""
    arrays = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def load(path: Path) -> tuple[Predictor, int]:
    """A predictor from saved weights, and how many samples it wants.

    Raises:
        InputError: when the file is no such weights.
    """
    torch = _torch()
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.tensor(file[name]) for name in file.files}
        samples = len(arrays["place"])
        model = network(samples)
        model.load_state_dict(arrays)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        problem = f"holds no weights of this network ({error})"
        raise InputError("hybrid.weights", str(path), problem) from error
    return predictor(model), samples


def predictor(model: Any) -> Predictor:
    """A trained network as a predictor of depths."""
    torch = _torch()

    def predict(history: Floats) -> Floats:
        scale = _scale(history)
        with torch.no_grad():
            out = model(torch.tensor(history / scale[:, None], dtype=torch.float32)).numpy()
        depths: Floats = np.maximum(out.astype(np.float64) * scale, 0.0)
        return depths

    return predict


def _scale(history: Floats) -> Floats:
    deepest: Floats = np.maximum(history.max(axis=1), 1.0)
    return deepest


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        allowed = "frozen, last, mean, autoregressive, zero; or install trainscout[trace]"
        raise InputError("hybrid.predictor", "transformer", "needs torch", allowed) from error
    return torch
