"""torchvision's operators and its reading of images where its library cannot be loaded."""

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
    if hasattr(torch.ops.image, "read_file"):  # older releases have no function that says so
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


# torchvision's operators where its library cannot be loaded: that of the registry wants CUDA's.

_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_STRIDES = "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    f"{_STRIDES}, SymInt groups, SymInt offset_groups, bool use_mask"
)
_BACKWARD = "Tensor grad, Tensor rois, Tensor channel_mapping"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_POOLED}, {_SHAPE}, int sampling_ratio, "
    "bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, "
    f"float rois_scale, int rois_zero_point, {_POOLED}, int sampling_ratio, bool aligned) "
    "-> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_SHAPE}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_BACKWARD}, {_POOLED}, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_BACKWARD}, {_POOLED}, {_SHAPE}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def declare_operators(extension: ModuleType) -> None:
    """Declare what ``torchvision.extension`` could not load; nothing where it could."""
    if extension._has_ops():
        return
    for schema in _SCHEMAS:
        torch.library.define(
            f"torchvision::{schema.partition('(')[0]}", schema[schema.index("(") :]
        )
    extension._has_ops = lambda: True  # type: ignore[attr-defined]
    extension._check_cuda_version = lambda: -1  # type: ignore[attr-defined]
