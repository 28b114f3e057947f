"""Sound files where TorchCodec, by which torchaudio reads and writes them, cannot be loaded."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch


def go_without_torchcodec(module: ModuleType) -> None:
    """Let soundfile act where TorchCodec's library wants CUDA's or FFmpeg's, or is absent."""
    decode, encode = module.load_with_torchcodec, module.save_with_torchcodec

    def load(
        uri: Any,
        frame_offset: int = 0,
        num_frames: int = -1,
        normalize: bool = True,
        channels_first: bool = True,
        **named: Any,
    ) -> Any:
        soundfile = _instead()
        if soundfile is None:
            return decode(uri, frame_offset, num_frames, normalize, channels_first, **named)
        read = soundfile.read(uri, num_frames, frame_offset, dtype="float32", always_2d=True)
        samples = torch.from_numpy(read[0])
        return samples.T.contiguous() if channels_first else samples, read[1]

    def save(
        uri: Any, src: torch.Tensor, sample_rate: int, channels_first: bool = True, **named: Any
    ) -> None:
        soundfile = _instead()
        if soundfile is None:
            encode(uri, src, sample_rate, channels_first, **named)
        else:
            samples = src.T if channels_first and src.dim() == 2 else src
            soundfile.write(uri, samples.numpy(), sample_rate)

    module.load_with_torchcodec = load  # type: ignore[attr-defined]
    module.save_with_torchcodec = save  # type: ignore[attr-defined]


def _instead() -> Any:
    """soundfile, where TorchCodec does not load and it does."""
    try:
        importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError):
        try:
            return importlib.import_module("soundfile")
        except (ImportError, OSError):
            pass
    return None
