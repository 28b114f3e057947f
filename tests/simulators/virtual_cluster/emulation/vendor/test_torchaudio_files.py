"""Sound files that TorchCodec would read or write, without it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def _torchaudio(monkeypatch: pytest.MonkeyPatch, calls: list[Any], **modules: Any) -> Any:
    from trainscout.simulators.virtual_cluster.emulation.vendor.torchaudio import (
        go_without_torchcodec,
    )

    for name in ("torchcodec", "torchcodec.decoders", "soundfile"):
        monkeypatch.setitem(sys.modules, name, modules.get(name.replace(".", "_")))
    module: Any = ModuleType("torchaudio._torchcodec")
    module.load_with_torchcodec = lambda *given, **named: (given, named)
    module.save_with_torchcodec = lambda *given, **named: calls.append((given, named))
    go_without_torchcodec(module)
    return module


def test_soundfile_acts_where_torchcodec_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = np.arange(12, dtype=np.float32).reshape(6, 2)
    soundfile: Any = ModuleType("soundfile")
    soundfile.read = lambda file, count, start, **_: (frames[start : start + count], 24000)
    written: list[Any] = []
    soundfile.write = lambda *given: written.append(given)
    module = _torchaudio(monkeypatch, [], soundfile=soundfile)
    load = module.load_with_torchcodec
    samples, rate = load("a.wav", 1, 3, backend="sox")
    assert rate == 24000
    assert torch.equal(samples, torch.from_numpy(frames[1:4]).T)
    assert torch.equal(load("a.wav", 1, 3, channels_first=False)[0], torch.from_numpy(frames[1:4]))
    module.save_with_torchcodec("b.wav", torch.from_numpy(frames).T, 24000)
    ((name, samples, rate),) = written
    assert (name, rate) == ("b.wav", 24000)
    assert (samples == frames).all()


@pytest.mark.parametrize("there", [{}, {"torchcodec": True, "torchcodec_decoders": True}])
def test_torchaudio_acts_or_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, bool]
) -> None:
    modules = {name: ModuleType(name) for name in there}
    given = ("a.wav", 0, -1, True, True)
    calls: list[Any] = []
    module = _torchaudio(monkeypatch, calls, **modules)
    assert module.load_with_torchcodec("a.wav", format="wav") == (given, {"format": "wav"})
    module.save_with_torchcodec("b.wav", None, 24000)
    assert calls == [(("b.wav", None, 24000, True), {})]
