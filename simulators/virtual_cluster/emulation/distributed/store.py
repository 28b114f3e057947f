"""A store of keys and bytes where ``TCPStore`` or ``FileStore`` is: what ranks set for each other.

What a rank sets that runs beside this one (live), or ran before it (``--payloads``), is found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import torch.distributed as dist

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState

_NUMBER = re.compile(r"\d+")
# Stores with a prefix hold the C++ part of the one below alone.
_HELD: list[dist.Store] = []
# So often a key is asked for while nothing is launched before that is a loop that waits for it.
_POLLS = 10


class VirtualStore(dist.Store):
    """One rank's view of the store at ``place``, a port or a file.

    Of a key that nobody set, a rank's own value is taken where it set the same key with its own
    number in it (``address_3`` for ``address_0``), and listed as invented.
    """

    def __init__(self, state: RankState, place: int | str = 0) -> None:
        super().__init__()
        self._place = place
        self._state = state
        self._polls: Counter[Hashable] = Counter()
        self._own = dist.HashStore()
        _HELD.append(self)

    def set(self, key: str, value: Any) -> None:
        self._own.set(key, value)
        self._state.peers.leave(self._name(key), bytes(self._own.get(key)))

    def get(self, key: str) -> bytes:
        """The value of ``key``.

        Raises:
            InputError: when another rank sets it, which does not run.
        """
        value = self._now([key])[0] if self._state.peers.run else None
        if value is None and self._own.check([key]):
            return bytes(self._own.get(key))
        if value is None:
            value = self._of_others(key)
            if value is None:
                raise InputError(
                    "store.get",
                    key,
                    "is a key that only another rank sets, which does not run here",
                    "trainscout live, where ranks run together, or that one first with --payloads",
                )
            self._own.set(key, value)
        return bytes(value)

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        """Until others that run have set them: those that do not have by then."""
        missing = [self._name(key) for key in keys if not self._own.check([key])]
        if missing:
            self._state.peers.take(missing)

    def add(self, key: str, amount: int) -> int:
        """The sum of what all ranks that run beside this one added, or this one."""
        shared = self._state.peers.change(self._name(key), "add", str(amount).encode())
        if shared is not None:
            return int(shared)
        total: int = self._own.add(key, amount)
        if self._state.world_size > 1:
            hint = f"store.add: of key {key!r} what this rank alone added"
            self._state.recorder.invented("store.add", total, hint)
        return total

    def check(self, keys: list[str]) -> bool:
        """Whether all are set, as ``get`` would find them.

        Raises:
            InputError: as ``get``, for what a loop waits for.
        """
        for key in keys:
            # What a loop that trains asks once a micro-batch, its operations keep apart.
            asked = key, self._state.recorder.place(), self._state.recorder.operations
            self._polls[asked] += 1
            if self._polls[asked] >= _POLLS:
                self.get(key)
            elif not self._state.peers.run and not self._own.check([key]):
                value = self._of_others(key)
                if value is not None:
                    self._own.set(key, value)
        if self._state.peers.run:
            return None not in self._now(keys)
        return bool(self._own.check(keys))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        texts = (_as_bytes(desired), _as_bytes(expected))
        shared = self._state.peers.change(self._name(key), "set", *texts)
        if self._state.peers.run:
            return texts[1] if shared is None else shared
        return bytes(self._own.compare_set(key, expected, desired))

    def append(self, key: str, value: Any) -> None:
        if self._state.peers.change(self._name(key), "append", _as_bytes(value)) is None:
            self._own.append(key, value)

    def delete_key(self, key: str) -> bool:
        if self._state.peers.run:
            (found,) = self._now([key])
            self._state.peers.leave(self._name(key), None)
            self._own.delete_key(key)
            return found is not None
        return bool(self._own.delete_key(key))

    def num_keys(self) -> int:
        return int(self._own.num_keys())

    # By these names stores that put a prefix before keys ask for them.
    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815

    def _name(self, key: str) -> str:
        return f"store {self._place} {key}"

    def _now(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._state.peers.take([self._name(key) for key in keys], at_once=True)

    def _of_others(self, key: str) -> Any:
        (value,) = self._state.peers.take([self._name(key)])
        if value is not None:
            return value
        for found in reversed(list(_NUMBER.finditer(key))):
            own = f"{key[: found.start()]}{self._state.rank}{key[found.end() :]}"
            if int(found[0]) < self._state.world_size and self._own.check([own]):
                value = self._own.get(own)
                hint = f"store.get: nobody set {key!r}; taken for what this rank set as {own!r}"
                self._state.recorder.invented("store.get", value, hint)
                return value
        return None


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
