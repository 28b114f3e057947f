"""Where shadows are kept: by storage, so that views and in-place operations see each other.

A storage has either a *mirror*, host memory of the same layout in which every view of the storage
is the same view (small storages whose elements are known one by one), or *windows*, shadows by
the geometry of the view they describe (large storages, and what is known only as a share).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from trainscout.simulators.virtual_cluster.emulation.stream_order import extent_of

from . import plain
from .defaults import EXACT_ELEMENTS, FOLLOWED_ELEMENTS
from .shadow import Categories, Grade, Kind, Known, Missing, Shadow, compact

# Up to these bytes: mirrored even when all elements are alike, and mirrored at all.
_ALWAYS_BYTES = EXACT_ELEMENTS * 8
_MOST_BYTES = FOLLOWED_ELEMENTS * 8

_Geometry = tuple[torch.dtype, torch.Size, tuple[int, ...], int, bool]


class _Mirror:
    """Host memory laid out as a storage, what each of its bytes is worth, and, since all of them
    were last made zero (None: nobody knows of that), between which of them was written."""

    __slots__ = ("grade", "grades", "memory", "written")

    def __init__(self, nbytes: int) -> None:
        self.memory = torch.UntypedStorage(nbytes)
        self.grade = Grade.UNKNOWN
        self.grades: torch.Tensor | None = None
        self.written: tuple[int, int] | None = None

    def window(self, tensor: torch.Tensor) -> torch.Tensor:
        made = plain.empty(0, dtype=tensor.dtype)
        made.set_(self.memory, tensor.storage_offset(), tensor.shape, tensor.stride())
        # Marks by which torch conjugates and negates what is there once somebody reads it.
        made = made.conj() if tensor.is_conj() else made
        return torch._neg_view(made) if tensor.is_neg() else made

    def grade_of(self, tensor: torch.Tensor) -> Grade:
        if self.grades is None:
            return self.grade
        return Grade(int(self._bytes_of(tensor).min()))

    def best_of(self, tensor: torch.Tensor) -> Grade:
        """Of any element."""
        if self.grades is None:
            return self.grade
        return Grade(int(self._bytes_of(tensor).max()))

    def set_grade(self, tensor: torch.Tensor, grade: Grade) -> None:
        if tensor.numel() * tensor.itemsize >= self.memory.nbytes():
            self.grade, self.grades = grade, None
            return
        if self.grades is None:
            if self.grade is grade:
                return
            self.grades = plain.full((self.memory.nbytes(),), int(self.grade), dtype=torch.uint8)
        self._bytes_of(tensor).fill_(int(grade))

    def note_written(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if tensor.numel() * tensor.itemsize >= self.memory.nbytes():
            self.written = None if value.any() else (0, 0)
        elif self.written is not None:
            (low, high), (first, after) = self.written, extent_of(tensor)
            self.written = (min(low, first), max(high, after)) if high else (first, after)

    def _bytes_of(self, tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.itemsize
        assert self.grades is not None
        return self.grades.as_strided(
            (*tensor.shape, size),
            (*(step * size for step in tensor.stride()), 1),
            tensor.storage_offset() * size,
        )


class Store:
    """The shadows of all live storages. Callers hold the lock and are on the host."""

    def __init__(self) -> None:
        self._entries: dict[int, _Mirror | dict[_Geometry, Shadow]] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether anything is kept about the tensor's storage."""
        return tensor.untyped_storage()._cdata in self._entries

    def get(self, tensor: torch.Tensor) -> Shadow | None:
        """What is known of all of the tensor. A mirrored value is the mirror's own memory."""
        entry = self._entries.get(tensor.untyped_storage()._cdata)
        if entry is None:
            return None
        if not isinstance(entry, _Mirror):
            return entry.get(_geometry(tensor))
        grade = entry.grade_of(tensor)
        if grade is Grade.UNKNOWN:
            return None
        return Known(compact(_resolved(entry.window(tensor))), grade)

    def get_partly(self, tensor: torch.Tensor) -> Known | None:
        """The tensor where only some elements are known, as in a buffer that is not full: the
        others are whatever was there, which nobody should read."""
        entry = self._entries.get(tensor.untyped_storage()._cdata)
        if not isinstance(entry, _Mirror) or entry.best_of(tensor) is Grade.UNKNOWN:
            return None
        return Known(_resolved(entry.window(tensor)).clone(), Grade.INVENTED)

    def put(self, tensor: torch.Tensor, shadow: Shadow | None) -> None:
        """The tensor's elements have been written: they are as the shadow says from now on."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if nbytes == 0 or tensor.numel() == 0:
            return
        entry = self._entries.get(key)
        if isinstance(entry, dict) and shadow is not None:
            entry = self._mirrored(entry, nbytes) or entry
        fits = isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE
        whole = tensor.numel() * tensor.itemsize == nbytes
        if isinstance(entry, _Mirror):
            if fits:
                assert isinstance(shadow, Known)
                self._write(entry, tensor, shadow)
                self._entries[key] = entry
                return
            if not whole or shadow is None:
                entry.set_grade(tensor, Grade.UNKNOWN)
                if entry.grade is Grade.UNKNOWN and entry.grades is None:
                    self._drop(key)
                return
        if shadow is None:
            self._drop(key)
            return
        self._watch(key, storage)
        if fits:
            assert isinstance(shadow, Known)
            full = shadow.value.numel() == tensor.numel()
            if nbytes <= _ALWAYS_BYTES or (full and nbytes <= _MOST_BYTES):
                mirror = _Mirror(nbytes)
                self._write(mirror, tensor, shadow)
                self._entries[key] = mirror
                return
        self._entries[key] = {_geometry(tensor): _own(shadow)}

    def put_parts(
        self, tensor: torch.Tensor, dim: int, parts: Sequence[tuple[int, Shadow | None]]
    ) -> None:
        """The tensor, new, is of so long parts along the dimension, each as its shadow says; kept
        are those of a small storage whose elements are known one by one."""
        storage = tensor.untyped_storage()
        known = [isinstance(each, Known) and each.kind is Kind.DEFINITE for _, each in parts]
        if not any(known) or storage.nbytes() > _MOST_BYTES:
            return
        mirror = _Mirror(storage.nbytes())
        windows = mirror.window(tensor).split([length for length, _ in parts], dim)
        for window, (_, shadow), is_known in zip(windows, parts, known, strict=True):
            if is_known:
                assert isinstance(shadow, Known)
                self._write(mirror, window, shadow)
        self._watch(storage._cdata, storage)
        self._entries[storage._cdata] = mirror

    def written_within(self, tensor: torch.Tensor, part: int, parts: int) -> bool | None:
        """Whether of a whole storage nothing but one of so many equal parts was written since all
        of it was made zero; None where nobody knows."""
        entry = self._entries.get(tensor.untyped_storage()._cdata)
        nbytes = tensor.untyped_storage().nbytes()
        if not isinstance(entry, _Mirror) or entry.written is None or tensor.nbytes != nbytes:
            return None
        low, high = entry.written
        return bool(part * nbytes <= low * parts and high * parts <= (part + 1) * nbytes)

    def memory(self, tensor: torch.Tensor) -> tuple[torch.UntypedStorage, Grade] | None:
        """The whole of the tensor's storage, where all of it is known one by one."""
        entry = self._entries.get(tensor.untyped_storage()._cdata)
        if not isinstance(entry, _Mirror):
            return None
        grade = entry.grade if entry.grades is None else Grade(int(entry.grades.min()))
        return None if grade is Grade.UNKNOWN else (entry.memory, grade)

    def alias(self, view: torch.Tensor, shadow: Shadow) -> None:
        """A view of a storage with windows shows this; nothing was written."""
        entry = self._entries.get(view.untyped_storage()._cdata)
        if isinstance(entry, dict):
            entry.setdefault(_geometry(view), _own(shadow))

    def is_mirrored(self, tensor: torch.Tensor) -> bool:
        """Whether views of the tensor need no shadow of their own."""
        return isinstance(self._entries.get(tensor.untyped_storage()._cdata), _Mirror)

    def _write(self, mirror: _Mirror, tensor: torch.Tensor, known: Known) -> None:
        value = known.value
        if value.untyped_storage()._cdata == mirror.memory._cdata:
            # Part of a tensor gathered into the whole of it: the two overlap.
            value = value.clone()
        window = mirror.window(tensor)
        if 0 in window.stride():
            # Expanded: of elements at one place one is written.
            value = value.expand(window.shape)
            for dim, stride in enumerate(window.stride()):
                if stride == 0 and window.shape[dim]:
                    window, value = window.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
        window.copy_(value)
        mirror.set_grade(tensor, known.grade)
        mirror.note_written(tensor, value)

    def _mirrored(self, entry: dict[_Geometry, Shadow], nbytes: int) -> _Mirror | None:
        """A mirror in place of windows, when one of them shows all of a small storage."""
        if nbytes > _MOST_BYTES:
            return None
        for (dtype, shape, strides, offset, turned), shadow in entry.items():
            whole = shape.numel() * dtype.itemsize == nbytes and not turned
            if whole and isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE:
                mirror = _Mirror(nbytes)
                whole_window = plain.empty(0, dtype=dtype).set_(
                    mirror.memory, offset, shape, strides
                )
                whole_window.copy_(shadow.value)
                mirror.grade = shadow.grade
                return mirror
        return None

    def _watch(self, key: int, storage: torch.UntypedStorage) -> None:
        if key in self._alive:
            return

        def gone(_: Any) -> None:
            self._entries.pop(key, None)
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, gone)

    def _drop(self, key: int) -> None:
        self._entries.pop(key, None)
        self._alive.pop(key, None)


def _resolved(window: torch.Tensor) -> torch.Tensor:
    return window.resolve_conj().resolve_neg()


def _geometry(tensor: torch.Tensor) -> _Geometry:
    turned = tensor.is_conj() or tensor.is_neg()
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), turned


def _own(shadow: Shadow) -> Shadow:
    """With memory of its own: values may be views of mirrors or of the script's tensors."""
    if isinstance(shadow, (Categories, Missing)):
        return shadow
    return replace(shadow, value=shadow.value.clone())
