"""Sound files where TorchCodec, by which torchaudio reads them, cannot be loaded."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch


def read_without_torchcodec(module: ModuleType) -> None:
    """Let soundfile read where TorchCodec's library wants CUDA's or FFmpeg's, or is absent."""
    decode = module.load_with_torchcodec

    def load(
        uri: Any,
        frame_offset: int = 0,
        num_frames: int = -1,
        normalize: bool = True,
        channels_first: bool = True,
        **named: Any,
    ) -> tuple[torch.Tensor, int]:
        try:
            importlib.import_module("torchcodec.decoders")
            soundfile: Any = None
        except (ImportError, OSError, RuntimeError):
            try:
                soundfile = importlib.import_module("soundfile")
            except (ImportError, OSError):
                soundfile = None
        if soundfile is None:
            found: tuple[torch.Tensor, int] = decode(
                uri, frame_offset, num_frames, normalize, channels_first, **named
            )
            return found
        read = soundfile.read(uri, num_frames, frame_offset, dtype="float32", always_2d=True)
        samples = torch.from_numpy(read[0])
        return samples.T.contiguous() if channels_first else samples, read[1]

    module.load_with_torchcodec = load  # type: ignore[attr-defined]
