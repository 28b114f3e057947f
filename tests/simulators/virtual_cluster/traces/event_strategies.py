"""Hypothesis strategies for every kind of event, derived from the dataclasses themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from trainscout.simulators.virtual_cluster.traces.codec import CLASSES, GRADES
from trainscout.simulators.virtual_cluster.traces.events import PHASES, Event, Header, TensorSpec

numbers = st.integers(0, 2**63 - 1)
texts = st.text(max_size=8)
dtypes = st.sampled_from(["bfloat16", "float8_e4m3fn", "int64", "bool"])
shapes = st.lists(st.integers(0, 10**7), max_size=4).map(tuple)
tensors = st.builds(
    TensorSpec,
    dtype=dtypes,
    shape=shapes,
    storage=st.none() | numbers,
    strides=st.none() | shapes,
)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | texts
)
arguments = st.recursive(
    scalars | tensors, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6
)

BY_ANNOTATION: dict[str, st.SearchStrategy[Any]] = {
    "int": numbers,
    "int | None": st.none() | numbers,
    "str": texts,
    "bool": st.booleans(),
    "float": st.floats(0, 1e6),
    "tuple[int, ...]": st.lists(numbers, max_size=4).map(tuple),
    "tuple[int, ...] | None": st.none() | st.lists(numbers, max_size=4).map(tuple),
    "tuple[Argument, ...]": st.lists(arguments, max_size=4).map(tuple),
    "tuple[TensorSpec, ...]": st.lists(tensors, max_size=3).map(tuple),
    "Scalar | tuple[Scalar, ...]": scalars | st.lists(scalars, max_size=3).map(tuple),
}
BY_FIELD = {"phase": st.sampled_from(PHASES), "grade": st.sampled_from(GRADES)}


def events_of(event_class: type[Any]) -> st.SearchStrategy[Event]:
    """Events of one class with any values that their fields may have."""
    return st.builds(
        event_class,
        **{
            field.name: BY_FIELD.get(field.name, BY_ANNOTATION[str(field.type)])
            for field in dataclasses.fields(event_class)
        },
    )


events = st.one_of([events_of(each) for each in CLASSES.values()])
headers = st.builds(
    Header,
    world_size=st.integers(100, 20000),
    rank=st.integers(0, 99),
    local_world_size=st.integers(1, 8),
    gpu=texts,
    memory_bytes=numbers,
    command=st.lists(texts, max_size=3).map(tuple),
    versions=st.dictionaries(texts, texts, max_size=3),
)
