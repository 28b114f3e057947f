"""Data loaders that give no batch, on which a script trains nothing."""

from __future__ import annotations

from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainscout.simulators.virtual_cluster.emulation.recorder import Recorder


def install_loaders(recorder: Recorder) -> None:
    """Note them, with what they were made of. Once per process."""
    following = _BaseDataLoaderIter.__next__

    def next_batch(self: Any) -> Any:
        try:
            return following(self)
        except StopIteration:
            if not self._num_yielded:
                recorder.empty_loaders[recorder.sites.current()] = _described(self)
            raise

    _BaseDataLoaderIter.__next__ = next_batch


def _described(loader: Any) -> str:
    parts = []
    if hasattr(loader._dataset, "__len__"):
        parts.append(f"{len(loader._dataset):,} samples")
    size = getattr(loader._index_sampler, "batch_size", None)
    if size is not None:
        parts.append(f"batches of {size}")
    if getattr(loader._index_sampler, "drop_last", loader._drop_last):
        parts.append("a last one that is not full is dropped")
    return ", ".join(parts) or type(loader._dataset).__name__
