"""Sound files that TorchCodec would read, read without it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def _load(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> Any:
    from trainscout.simulators.virtual_cluster.emulation.vendor.torchaudio import (
        read_without_torchcodec,
    )

    for name in ("torchcodec", "torchcodec.decoders", "soundfile"):
        monkeypatch.setitem(sys.modules, name, modules.get(name.replace(".", "_")))
    module: Any = ModuleType("torchaudio._torchcodec")
    module.load_with_torchcodec = lambda *given, **named: (given, named)
    read_without_torchcodec(module)
    return module.load_with_torchcodec


def test_soundfile_reads_where_torchcodec_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = np.arange(12, dtype=np.float32).reshape(6, 2)
    soundfile: Any = ModuleType("soundfile")
    soundfile.read = lambda file, count, start, **_: (frames[start : start + count], 24000)
    load = _load(monkeypatch, soundfile=soundfile)
    samples, rate = load("a.wav", 1, 3, backend="sox")
    assert rate == 24000
    assert torch.equal(samples, torch.from_numpy(frames[1:4]).T)
    assert torch.equal(load("a.wav", 1, 3, channels_first=False)[0], torch.from_numpy(frames[1:4]))


@pytest.mark.parametrize("there", [{}, {"torchcodec": True, "torchcodec_decoders": True}])
def test_torchaudio_reads_or_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, bool]
) -> None:
    modules = {name: ModuleType(name) for name in there}
    given = ("a.wav", 0, -1, True, True)
    assert _load(monkeypatch, **modules)("a.wav", format="wav") == (given, {"format": "wav"})
