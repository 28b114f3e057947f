"""The Transformer that predicts queues: it learns, it is kept, and who cannot use it is told."""

import sys

import numpy as np
import pytest

from trainscout.simulators.laboratory.network import train
from trainscout.simulators.laboratory.network.queue_histories import queue_trace, windows
from trainscout.simulators.predictor.network.hybrid import HybridEngine, HybridSettings
from trainscout.simulators.predictor.network.packet import PacketSettings
from trainscout.simulators.predictor.question.errors import InputError

RATE = 25e9
SAMPLES = HybridSettings().samples + 1


def test_windows_are_cut_from_traces():
    trace = np.array([[0, 5], [1, 0], [2, 0], [3, 0], [4, 7]])
    cut = windows(trace, 2, 2)
    assert cut.history.tolist() == [[0, 1], [5, 0], [1, 2]]
    assert cut.target.tolist() == [3, 0, 4]
    assert cut.port.tolist() == [0, 1, 0]
    assert cut.of(np.array([1])).history.tolist() == [[5, 0]]


def test_traces_show_queues():
    trace = queue_trace(0, PacketSettings(), 20e-6, 30)
    assert trace.shape == (30, 96)
    assert trace.max() > 100_000
    # Nothing waits at hosts: they send what they have when they may.
    assert trace[:, :32].max() == 0


def test_it_learns_what_no_simple_one_can_know():
    # Threads of torch wait for each other on a busy machine.
    pytest.importorskip("torch").set_num_threads(1)
    from trainscout.simulators.predictor.network.hybrid import transformer
    from trainscout.simulators.predictor.network.hybrid.predictors import PREDICTORS

    random = np.random.default_rng(0)
    # What came first in the history comes again.
    history = random.uniform(0, 1e6, (4000, 3))
    model = transformer.train(history[:3500], history[:3500, 0], epochs=8)
    unseen = history[3500:]
    errors = {
        name: np.abs(predict(unseen) - unseen[:, 0]).mean()
        for name, predict in (
            *((name, each) for name, each in PREDICTORS.items() if each),
            ("transformer", transformer.predictor(model)),
        )
    }
    assert errors.pop("transformer") < min(errors.values())


def test_what_was_trained_is_used(tmp_path, capsys):
    pytest.importorskip("torch")
    file = tmp_path / "weights.npz"
    few = ["--traces", "1", "--steps", "40", "--epochs", "1", "--horizon", "3"]
    train.main([str(file), *few])
    assert "mean absolute error" in capsys.readouterr().out
    hybrid = HybridSettings(predictor="transformer", weights=str(file))
    engine = HybridEngine([RATE], 1e-6, 1, None, hybrid)
    depths = engine._predictor(np.full((3, SAMPLES), 1e5))
    assert depths.shape == (3,)
    assert (depths >= 0).all()
    with pytest.raises(InputError, match="trained on 10 samples"):
        HybridEngine(
            [RATE], 1e-6, 1, None,
            HybridSettings(predictor="transformer", weights=str(file), samples=12),
        )  # fmt: skip


def test_what_holds_no_weights_is_refused(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "weights.npz"
    np.savez(file, token=np.zeros(3))
    for path in (file, tmp_path / "none.npz"):
        with pytest.raises(InputError) as refused:
            HybridEngine(
                [RATE], 1e-6, 1, None, HybridSettings(predictor="transformer", weights=str(path))
            )
        assert refused.value.field == "hybrid.weights"


def test_without_torch_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="needs torch"):
        HybridEngine([RATE], 1e-6, 1, None, HybridSettings(predictor="transformer", weights="x"))


@pytest.mark.parametrize(("name", "weights"), [("transformer", ""), ("last", "some.npz")])
def test_weights_go_with_the_transformer(name, weights):
    with pytest.raises(InputError) as refused:
        HybridSettings(predictor=name, weights=weights).check()
    assert refused.value.field == "hybrid.weights"
