"""Vendor packages a training script imports on a GPU machine, with kernels that compute nothing.

``install_vendor`` makes Apex, flash-attn, mamba_ssm and others importable, and what Transformer
Engine's own Python calls of its compiled part. Their
kernels are operations ``emulated::<kernel>`` (``traces.vocabulary`` is the table): each call is
one logged operation with the outputs of the real one, and autograd keeps the tensors the real
one keeps, so that a trace has a production run's kernels and memory. torch is imported with the
first emulated package, not here.
"""

from __future__ import annotations

from .packages import PACKAGES, install_vendor, uninstall_vendor

__all__ = ["PACKAGES", "install_vendor", "uninstall_vendor"]
