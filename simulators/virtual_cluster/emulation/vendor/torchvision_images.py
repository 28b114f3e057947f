"""torchvision's reading of image files where its library cannot be loaded: by Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType

import torch

_DECODE = "(Tensor data, int mode, bool apply_exif_orientation=False) -> Tensor"
# torchvision's ImageReadMode by value; 0 leaves an image as it is.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def declare_images(module: ModuleType) -> None:
    """Declare what ``torchvision.io.image`` could not load; nothing where it could."""
    if module._has_image_ops():
        return
    _define("read_file", "(str filename) -> Tensor", _read_file)
    for name in ("decode_image", "decode_jpeg", "decode_png", "decode_webp"):
        _define(name, _DECODE, _decode)
    module._has_image_ops = lambda: True  # type: ignore[attr-defined]


def _define(name: str, schema: str, function: object) -> None:
    torch.library.define(f"image::{name}", schema)
    torch.library.impl(f"image::{name}", "CompositeExplicitAutograd", function)


def _read_file(filename: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(Path(filename).read_bytes()), dtype=torch.uint8)


def _decode(data: torch.Tensor, mode: int, apply_exif_orientation: bool = False) -> torch.Tensor:
    """Pixels of one image, uint8[channels, height, width], also where files have 16 bits."""
    import numpy as np
    from PIL import Image, ImageOps

    image: Image.Image = Image.open(io.BytesIO(data.numpy().tobytes()))
    if apply_exif_orientation:
        image = ImageOps.exif_transpose(image) or image
    if mode:
        image = image.convert(_MODES[mode])
    elif image.mode not in _MODES.values():
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()
