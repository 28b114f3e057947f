"""The values of one emulated rank: what is known, expected or invented of its tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from trainscout.simulators.virtual_cluster.emulation.imbalance import Imbalance

from . import plain
from .call import Call, on_host, signature, tensors_in
from .cuts import Cut, Cuts, is_whole
from .defaults import EXACT_ELEMENTS, FOLLOWED_ELEMENTS, GRID_ELEMENTS, IN_TURN, INVENTED
from .exchange import Exchange, Replies, exchanged, give, learn
from .imbalance import Routers
from .payloads import Post
from .propagate import STARTS, propagate
from .routing import VENDOR_RULES
from .shadow import Categories, Grade, Kind, Known, Missing, Shadow, downgraded, materialise
from .shapes import COPIES, of_view
from .sizes import decide_size, own_size
from .store import Store


@dataclass(frozen=True)
class Reading:
    """A value that the host asked for, on the CPU in the tensor's shape and type.

    ``grade``: exact, expected or invented, as in ``ValueRead``. ``hint`` says of an invented
    value why nothing better is known, ``follows`` whether it was computed from assumed ones.
    """

    value: torch.Tensor
    grade: str
    hint: str | None = None
    follows: bool = False


class Values:
    """Follows the values of fake tensors through every operation of a rank.

    All that is not a ``FakeTensor`` is host data and known. State is kept by storage and goes
    with it. Safe to use from several threads.
    """

    def __init__(self, imbalance: Imbalance | None = None, payloads: Post | None = None) -> None:
        self._store = Store()
        self._cuts = Cuts()
        self._routers = Routers(imbalance)
        self._payloads = payloads
        self._replies = Replies()
        self._lock = threading.RLock()
        # Whether the script went on with what a rank sends that did not run.
        self.lacked_sender = False

    def restart(self) -> None:
        """Another trace begins: routers are numbered anew; tensors that live keep their values."""
        with self._lock:
            self._routers.restart()
            self._replies.clear()

    def observe(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Take note of an operation on fake tensors, after it ran. ``args`` as it was called."""
        declared = signature(func)
        known = self._concerns(args) or (kwargs and self._concerns(kwargs.values()))
        number = _is_number(result)
        if not known and declared.name not in STARTS and not number:
            return
        with self._lock, on_host:
            call = Call(func, args, kwargs, self._get, self._routers, list(tensors_in([result])))
            if not declared.is_builtin and declared.name not in VENDOR_RULES:
                self._observe_opaque(call)
            elif declared.is_view and declared.name not in VENDOR_RULES:
                self._observe_view(call)
            else:
                self._observe_write(call)
            if declared.name in COPIES or declared.name == "copy_":
                self.copied(args[declared.name == "copy_"], call.results[0])
            if number:
                self._assume_number(result)

    def copied(self, source: torch.Tensor, copy: torch.Tensor) -> None:
        """``copy`` holds what ``source`` does, and is the part of a whole that it is."""
        if copy.layout is torch.strided:
            with self._lock:
                self._cuts.put(copy, self._cut(source))

    def parts(self, tensor: torch.Tensor, position: int, size: int) -> Sequence[Known] | None:
        """What members of a group hold that cut a tensor into as many parts, in the tensor's form,
        where this is the part of the member at ``position``; None where it is not."""
        with self._lock, on_host:
            cut = self._cut(tensor)
            parts = None if cut is None else cut.parts(position, size)
            own = None if parts is None else self._get(tensor)
            if parts is None or not isinstance(own, Known) or own.kind is not Kind.DEFINITE:
                return None
            values = (each.value.reshape(tensor.shape).to(tensor.dtype) for each in parts)
            parts = [Known(value, parts[0].grade) for value in values]
            others = (*parts[:position], *parts[position + 1 :])
            # Copies may have been written since, or lie in another order; and a buffer of which
            # this rank has written its own part alone is no whole.
            same = torch.equal(parts[position].value, own.value.expand(tensor.shape))
            return parts if same and any(part.value.any() for part in others) else None

    def seed(self, tensor: torch.Tensor, cpu_tensor: torch.Tensor) -> None:
        """The fake ``tensor`` now holds exactly what ``cpu_tensor`` does."""
        with self._lock, on_host:
            self._store.put(tensor, _host_data(cpu_tensor.detach()))

    def forget(self, tensor: torch.Tensor) -> None:
        """Nothing is known of the tensor any more."""
        with self._lock, on_host:
            self._store.put(tensor, None)

    def read(self, tensor: torch.Tensor, operation: str) -> Reading:
        """The tensor's value for the host, invented if need be.

        ``operation`` is what asked (``item``, ``tolist``, ...); it names the reader in the hint.
        """
        with self._lock, on_host:
            shadow = self._get(tensor)
            if isinstance(shadow, Categories) or (
                isinstance(shadow, Known) and shadow.kind not in (Kind.SUPPORT, Kind.RANK)
            ):
                value = materialise(shadow, tensor.shape, tensor.dtype)
                hint = None
                if follows := shadow.grade is Grade.INVENTED:
                    hint = f"{operation}: follows from values that are assumed, not known"
                return Reading(value, shadow.grade.label, hint, follows)
            kind = _number_kind(tensor.dtype)
            default = INVENTED[kind]
            hint = f"{operation}: follows from data that does not exist; {default!r} by convention"
            if isinstance(shadow, Missing):
                self.lacked_sender = True
                hint = f"{operation}: {shadow.hint}"
            value = plain.full(tensor.shape, default, dtype=tensor.dtype)
            images = value.dim() == 4 and 3 in (value.shape[1], value.shape[3])
            levels = 255 if images and value.dtype is torch.uint8 else 1
            few = 1 < value.numel() <= FOLLOWED_ELEMENTS or images
            if few and (kind == "float" or levels > 1):
                turns = plain.tensor(IN_TURN).repeat(value.numel() // len(IN_TURN) + 1) * levels
                value.copy_(turns[: value.numel()].reshape(value.shape))
            return Reading(value, Grade.INVENTED.label, hint)

    def data_dependent(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Reading]:
        """In place of an operation whose result is as long as the data says, under the fake mode.

        Returns:
            The fake result, already observed, and the size that was decided.
        """
        with self._lock:
            with on_host:
                decision = decide_size(Call(func, args, kwargs, self._get, self._routers))
                size = plain.tensor(decision.size)
            result = decision.make()
            with on_host:
                for tensor, shadow in zip(tensors_in([result]), decision.shadows, strict=True):
                    if shadow is not None:
                        self._store.put(tensor, shadow)
            return result, Reading(size, decision.grade.label)

    def own_size(self, func: OpOverload, args: Sequence[Any], first: torch.Tensor) -> Reading:
        """How much a library's own operation is taken to find; ``first`` of its tensors."""
        return Reading(plain.tensor(own_size(func, args, first)), Grade.EXPECTED.label)

    def send_by(self, payloads: Post) -> None:
        """From now on small tensors go to other ranks this way."""
        self._payloads = payloads

    def communicate(
        self, exchange: Exchange, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Callable[[], None] | None:
        """Take note of a collective or transfer, after its launch.

        Args:
            inputs: one tensor, or one for each member (all_to_all, reduce_scatter of lists).
            outputs: one tensor, or one for each member (all_gather, all_to_all of lists); the
                inputs again where the collective works in place.

        Returns:
            What is to be called once the script waits for it: other ranks' parts come in. None
            where they add nothing.
        """
        post, kind = self._payloads, exchange.kind
        wanted = kind in ("broadcast", "send", "recv") and (
            post is not None or any(t.numel() <= EXACT_ELEMENTS * 64 for t in outputs)
        )
        known = any(self._store.has(t) for t in (*inputs, *outputs))
        if not (wanted or known or post is not None or kind == "send"):
            return None
        with self._lock, on_host:
            pairs = [(t, self._get(t) or self._store.get_partly(t)) for t in inputs]
            if kind == "all_reduce":
                own = self._store.written_within(inputs[0], exchange.position, exchange.size)
                exchange = replace(exchange, own_part=own)
            into = {each.untyped_storage()._cdata for each in outputs}
            if kind == "all_gather" and known and inputs[0].untyped_storage()._cdata not in into:
                parts = self.parts(inputs[0], exchange.position, exchange.size)
                exchange = replace(exchange, parts=parts)
            given = None if post is None else give(exchange, pairs, outputs, post)
            if kind == "send":
                self._replies.note(exchange, pairs)
            if wanted or known:
                shadows = exchanged(exchange, pairs, outputs)
                if kind == "recv":
                    replies = (self._replies.to(exchange, each) for each in outputs)
                    shadows = [reply or told for reply, told in zip(replies, shadows, strict=True)]
                for tensor, shadow in zip(outputs, shadows, strict=True):
                    self._store.put(tensor, shadow)
        if given is None:
            return None

        def arrives() -> None:
            assert post is not None
            assert given is not None
            with on_host:
                learnt = learn(exchange, given, outputs, post)
                if learnt is not None:
                    with self._lock:
                        for tensor, shadow in zip(outputs, learnt, strict=True):
                            if shadow is not None:
                                self._store.put(tensor, shadow)

        return arrives

    def _cut(self, tensor: torch.Tensor) -> Cut | None:
        if tensor.layout is not torch.strided:
            return None
        if is_whole(tensor):
            return self._cuts.get(tensor)
        whole: tuple[torch.UntypedStorage, Grade] | None = None
        if isinstance(tensor, FakeTensor):
            whole = self._store.memory(tensor)
        elif not tensor.is_floating_point():
            small = tensor.untyped_storage().nbytes() <= FOLLOWED_ELEMENTS * tensor.itemsize
            whole = (tensor.untyped_storage(), Grade.EXACT) if small else None
        if whole is None:
            return None
        place = tensor.shape, tensor.stride(), tensor.storage_offset()
        return Cut(whole[0], tensor.dtype, *place, whole[1])

    def _concerns(self, values: Iterable[Any]) -> bool:
        """Whether anything is known of any tensor among these: most operations end here."""
        has = self._store.has
        for value in values:
            if isinstance(value, torch.Tensor):
                # Of an empty tensor everything is known, though nothing is kept.
                if not value.numel() or has(value):
                    return True
            elif isinstance(value, (list, tuple)) and self._concerns(value):
                return True
        return False

    def _get(self, tensor: torch.Tensor) -> Shadow | None:
        if not isinstance(tensor, FakeTensor):
            return _host_data(tensor)
        if tensor.numel() == 0:
            return Known(plain.empty(tensor.shape, dtype=tensor.dtype), Grade.EXACT)
        return self._store.get(tensor)

    def _observe_write(self, call: Call) -> None:
        results = list(call.results)
        returned = {id(t) for t in results}
        written = call.written
        results += [t for t in written if id(t) not in returned]
        changed = {id(t) for t in written}
        missing = self._missing(call.tensors)
        made = propagate(replace(call, results=results))
        for tensor, shadow in zip(results, made, strict=True):
            if shadow is None and tensor.numel() <= EXACT_ELEMENTS:
                shadow = missing
            if shadow is not None or id(tensor) in changed:
                self._store.put(tensor, shadow)
        if call.name == "cat" and made[0] is None and not written:
            self._put_parts(call)

    def _put_parts(self, call: Call) -> None:
        """Of what was put together, the parts that are known one by one: the column of boxes that
        says their image, where DDP moved each column to the device by itself."""
        result = call.results[0]
        dim = call.dim(result, 0)
        parts = [part for part in call.args[0] if part.dim() == result.dim()]
        pairs = [(part.shape[dim], self._get(part) if part.numel() else None) for part in parts]
        self._store.put_parts(result, dim, pairs)

    def _assume_number(self, number: torch.Tensor) -> None:
        """A number that nobody knows is what it is taken for from here on, so that all that
        follows from it agrees: a step size that is added to a time makes it later."""
        shadow = self._store.get(number)
        sound = shadow is not None and (
            not isinstance(shadow, Known)
            or shadow.grade is not Grade.INVENTED
            or bool(shadow.value.isfinite())
        )
        if not sound:
            value = plain.full((), INVENTED["float"], dtype=number.dtype)
            self._store.put(number, Known(value, Grade.INVENTED))

    def _missing(self, tensors: Iterable[torch.Tensor]) -> Missing | None:
        """Why one of these is not known, which is then why what follows from it is not."""
        for tensor in tensors:
            shadow = self._get(tensor) if self._store.has(tensor) else None
            if isinstance(shadow, Missing):
                return shadow
        return None

    def _observe_view(self, call: Call) -> None:
        source, results = call.args[0], call.results
        shadow = self._get(source)
        if not isinstance(source, FakeTensor):
            # ``lift_fresh``: what was host data is the device's now.
            for tensor in results:
                self._store.put(tensor, shadow)
            return
        if shadow is None or self._store.is_mirrored(source):
            return
        for tensor, seen in zip(results, of_view(call, source, shadow), strict=True):
            if seen is not None:
                self._store.alias(tensor, seen)

    def _observe_opaque(self, call: Call) -> None:
        """A kernel of which only the schema is known. A flag that it may raise stays down: what
        overflow checks write is as it was, by convention."""
        for tensor in call.written:
            shadow = self._get(tensor)
            flag = isinstance(shadow, Known) and shadow.kind is Kind.DEFINITE
            if flag and tensor.numel() <= EXACT_ELEMENTS:
                assert isinstance(shadow, Known)
                self._store.put(tensor, downgraded(shadow, Grade.INVENTED))
            else:
                self._store.put(tensor, None)


def _host_data(tensor: torch.Tensor) -> Known | None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return None
    if tensor.layout is not torch.strided or not 0 < tensor.numel() <= FOLLOWED_ELEMENTS:
        # Whole models are not searched.
        return None
    # Masks of whole batches are often all ones; what is alike is known at any size.
    first = tensor[(slice(0, 1),) * tensor.dim()]
    if tensor.numel() > EXACT_ELEMENTS and bool((tensor == first).all()):
        return Known(first, Grade.EXACT)
    numbers = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if numbers and tensor.numel() > EXACT_ELEMENTS and not (_rises(tensor) or _repeats(tensor)):
        return None
    return Known(tensor, Grade.EXACT)


def _rises(tensor: torch.Tensor) -> bool:
    """Whether this is a grid, by which scripts choose their steps."""
    if tensor.dim() != 1 or tensor.is_complex() or tensor.numel() > GRID_ELEMENTS:
        return False
    return bool((tensor[1:] > tensor[:-1]).all())


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether these are whole numbers all the same, as of a mask, or have a column of them, as
    boxes have that say their image or class; or a few numbers again and again, as the noise level
    of a token is that of its image. Most are not, by the first rows."""
    if tensor.is_complex():
        return False
    flat = tensor.reshape(-1)
    rows = tensor.reshape(-1, tensor.shape[-1] if tensor.dim() > 1 else 1)
    # Some types cannot be rounded as they are.
    whole = (each.float() for each in (rows[:EXACT_ELEMENTS], rows))
    few = (each.float() for each in (flat[: 4 * EXACT_ELEMENTS], flat))
    return all(bool((part == part.round()).all(0).any()) for part in whole) or all(
        len(torch.unique(part)) <= EXACT_ELEMENTS for part in few
    )


def _is_number(result: Any) -> bool:
    """Whether it is a number of its own and no view of others."""
    return (
        isinstance(result, FakeTensor)
        and not result.dim()
        and result.is_floating_point()
        and result.untyped_storage().nbytes() == result.itemsize
    )


def _number_kind(dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point or dtype.is_complex else "int"
