"""Ranks that run beside this one, or ran before: what they hand each other, objects and tensors,
as text."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter

from trainscout.simulators.predictor.question.errors import InputError

# More than any list of names, shapes or settings; models do not travel.
MOST_BYTES = 16 * 2**20


class Board(Protocol):
    """Where ranks leave texts for each other."""

    def publish(self, key: str, text: str) -> None:
        """Leave ``text``, empty where there is nothing to be had."""

    def collect(self, keys: Sequence[str], ranks: Sequence[int]) -> list[str | None]:
        """What each of ``ranks`` left under its key, once it has; None of one not run."""

    def change(self, key: str, how: str, value: str, expected: str) -> str | None:
        """What all ranks see under ``key`` from now on (``live.messages.Change``); None where no
        other sees it."""


ABSENT = (
    "comes from a rank that did not run here: trace that one first, both with --payloads DIR; "
    "what was there is kept"
)


class Folder:
    """A board of ranks that are traced one after the other: ``DIR/objects-<rank>.jsonl`` of each.

    Objects are pickled: only for folders of one's own.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        own = directory / f"objects-{rank:05d}.jsonl"
        self._found: dict[str, str] = {}
        for path in sorted(directory.glob("objects-*.jsonl")):
            if path != own:
                try:
                    self._found.update(map(json.loads, path.read_text().splitlines()))
                except (ValueError, TypeError) as error:
                    raise InputError("payloads", path, f"holds no objects: {error}") from error
        self._file = own.open("w", encoding="utf-8")

    def publish(self, key: str, text: str) -> None:
        """Write it down at once: the rank may fail later."""
        self._file.write(json.dumps([key, text]) + "\n")
        self._file.flush()

    def collect(self, keys: Sequence[str], ranks: Sequence[int]) -> list[str | None]:
        """What ranks that were traced before have left; None of others."""
        return [self._found.get(key) for key in keys]

    def change(self, key: str, how: str, value: str, expected: str) -> None:
        """Ranks one after the other change nothing for each other."""


class Peers:
    """Rounds of objects between ranks, numbered alike on all of them; without a board, ``rank``
    runs alone, ``beside`` no others if they have been traced before."""

    def __init__(
        self, board: Board | None, rank: int, ranks: Sequence[int], *, beside: bool = True
    ) -> None:
        self.ranks = ranks
        self._beside = beside
        self._board = board
        self._rank = rank
        self._rounds: Counter[str] = Counter()

    @property
    def run(self) -> bool:
        """Whether there are any beside this one."""
        return self._beside and self._board is not None

    def round(
        self, name: str, own: Any, giving: Sequence[int], taking: Sequence[int]
    ) -> list[tuple[bool, Any]]:
        """One exchange: every rank of ``giving`` gives what it has, those of ``taking`` get it.

        ``name`` distinguishes what has an order of its own: a kind and a group.

        Returns:
            For each of ``giving``, whether it runs and could give it, and what it gave.
        """
        if self._board is None:
            return [(rank == self._rank, own) for rank in giving]
        number = self._rounds[name]
        self._rounds[name] += 1
        if self._rank in giving:
            self._board.publish(self._key(name, number, self._rank), encode(own))
        if self._rank not in taking:
            return []
        others = [rank for rank in giving if rank != self._rank]
        texts = self._board.collect([self._key(name, number, rank) for rank in others], others)
        found = dict(zip(others, texts, strict=True))
        return [
            (True, own) if rank == self._rank else (bool(text := found[rank]), decode(text))
            for rank in giving
        ]

    def leave(self, name: str, value: bytes | None) -> None:
        """Leave what any rank takes by its name, None for nothing any more."""
        if self._board is not None:
            self._board.publish(name, "" if value is None else f"={value.decode('latin-1')}")

    def take(self, names: Sequence[str], *, at_once: bool = False) -> list[bytes | None]:
        """What some rank left under each name, once one has or ``at_once``."""
        others = [rank for rank in self.ranks if rank != self._rank]
        if self._board is None or (self._beside and not others and not at_once):
            return [None] * len(names)
        # Whoever it is: one that runs stands for all. For one that does not nobody waits.
        whose = max(self._rank, *self.ranks) + 1 if at_once else (others or [self._rank])[0]
        return [_left(text) for text in self._board.collect(names, [whose] * len(names))]

    def change(self, name: str, how: str, value: bytes, expected: bytes = b"") -> bytes | None:
        """What is under ``name`` once this rank has changed it, None where no others see it."""
        if self._board is None:
            return None
        texts = (value.decode("latin-1"), expected.decode("latin-1"))
        return _left(self._board.change(name, how, *texts))

    @staticmethod
    def _key(name: str, number: int, rank: int) -> str:
        return json.dumps([name, number, rank])


def _left(text: str | None) -> bytes | None:
    return text[1:].encode("latin-1") if text else None


def encode(value: Any) -> str:
    """As text, of tensors without data their form; empty for what cannot be sent."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
        return ""
    data = file.getvalue()
    return base64.b64encode(data).decode() if len(data) <= MOST_BYTES else ""


def decode(text: str | None) -> Any:
    """Back from ``encode``. Only for what came from a process of the same run."""
    return pickle.loads(base64.b64decode(text)) if text else None


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            return _without_data, (tuple(value.shape), value.dtype, value.fake_device.type)
        if isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, Parameter):
            raise pickle.PicklingError("a tensor of another kind")
        return NotImplemented


def _without_data(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return (torch.zeros if device == "cpu" else torch.empty)(shape, dtype=dtype, device=device)
