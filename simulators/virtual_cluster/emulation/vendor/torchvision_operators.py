"""torchvision's operators where its library cannot be loaded: that of the registry wants CUDA's.

Their shapes and gradients are Python of torchvision's own; only the schemas are in the library.
"""

from __future__ import annotations

from types import ModuleType

import torch

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
