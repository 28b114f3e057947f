"""Chakra execution traces: what is written follows the published schema, and comes back."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.virtual_cluster.traces.event_strategies import arguments
from tests.simulators.virtual_cluster.traces.megatron_like import Layout, groups, megatron_trace
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces.chakra.read import read_chakra
from trainscout.simulators.virtual_cluster.traces.chakra.schema import (
    CollectiveCommType,
    NodeType,
    attribute,
    attributes,
    message_classes,
    parsed,
    read_messages,
    texts,
    write_message,
)
from trainscout.simulators.virtual_cluster.traces.chakra.write import write_chakra
from trainscout.simulators.virtual_cluster.traces.collate.collated import collate
from trainscout.simulators.virtual_cluster.traces.events import (
    Argument,
    Collective,
    Event,
    Group,
    Header,
    HostGap,
    Op,
    Phase,
    PointToPoint,
    TensorSpec,
    Trace,
)

LAYOUT = Layout(tp=2, dp=2, pp=2, micro_batches=3)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All ranks of a job, from one trace of each stage."""
    directory = tmp_path_factory.mktemp("chakra")
    traces = [megatron_trace(LAYOUT, rank) for rank in (0, LAYOUT.rank(0, 0, 1))]
    write_chakra(directory, collate(traces), range(LAYOUT.world_size), "job")
    return directory


def nodes_of(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return list(read_messages(path, file))[1:]


# The published schema


def wire(text: bytes) -> dict[int, list[Any]]:
    """A message's fields by number, read without any schema."""
    fields: dict[int, list[Any]] = defaultdict(list)
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = text[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(text):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            fields[number].append(varint())
        elif kind == 1:
            fields[number].append(struct.unpack("<d", text[place : place + 8])[0])
            place += 8
        else:
            assert kind == 2
            length = varint()
            fields[number].append(text[place : place + length])
            place += length
    return fields


def test_the_bytes_have_the_published_field_numbers(written: Path) -> None:
    # Node: id 1, name 2, type 3, data_deps 5 (packed), inputs 8 (values 1, shapes 2, types 3),
    # attr 10 (name 1, int64_val 9, bool_val 27, string_val 29). COMP_NODE 4, COMM_COLL_NODE 7.
    nodes = reversed(nodes_of(written / "job.0.et"))
    read = {node.name: wire(node.SerializeToString()) for node in nodes}
    product = read["aten.mm.default"]
    assert product[2] == [b"aten.mm.default"]
    assert product[3] == [4]
    assert len(product[5][0]) >= 1
    info = wire(product[8][0])
    assert json.loads(info[2][0]) == [[512, 1024], [1024, 6144]]
    assert json.loads(info[3][0]) == ["Tensor(c10::BFloat16)"] * 2
    assert json.loads(info[1][0])[0][2:] == [0, 512 * 1024, 2, "cuda:0"]
    values = {wire(each)[1][0]: wire(each) for each in product[10]}
    assert values[b"num_ops"][9] == [2 * 512 * 1024 * 6144]
    # A flag that is false is still there: its oneof tells that it was set.
    assert values[b"is_cpu_op"][27] == [0]
    gather = read["all_gather"]
    assert gather[3] == [7]
    values = {wire(each)[1][0]: wire(each) for each in gather[10]}
    # ALL_GATHER is 2; the size is what the rank puts in.
    assert values[b"comm_type"][9] == [2]
    assert values[b"pg_name"][29][0].isdigit()
    assert read["host"][7][0] >= 1
    metadata = next(iter(read_messages(Path(), (written / "job.0.et").open("rb"))))
    assert wire(metadata.SerializeToString())[1] == [b"0.0.4"]


def test_a_published_schema_agrees_when_it_is_installed() -> None:
    published = pytest.importorskip("chakra.schema.protobuf.et_def_pb2")
    for name, ours in message_classes().items():
        theirs = getattr(published, name).DESCRIPTOR.fields_by_name
        for field in ours.DESCRIPTOR.fields:
            assert theirs[field.name].number == field.number, (name, field.name)
            assert theirs[field.name].is_repeated == field.is_repeated
    for enumeration in (NodeType, CollectiveCommType):
        for member in enumeration:
            assert published.__dict__[member.name] == member.value


def test_attributes_come_back() -> None:
    node = message_classes()["Node"](id=1)
    given_values = {
        "a": ("int64_val", -5),
        "b": ("bool_val", False),
        "c": ("string_val", "text"),
        "d": ("int64_list", (1, 2)),
        "e": ("int64_list", ()),
        "f": ("double_val", 0.5),
    }
    node.attr.extend(attribute(name, *value) for name, value in given_values.items())
    back = message_classes()["Node"].FromString(node.SerializeToString())
    assert attributes(back) == {name: value for name, (_, value) in given_values.items()}


# Arguments


def without_strides(argument: Argument) -> Argument:
    if isinstance(argument, TensorSpec):
        return dataclasses.replace(argument, strides=None)
    if isinstance(argument, tuple):
        return tuple(without_strides(item) for item in argument)
    return argument


@given(st.lists(arguments, max_size=4).map(tuple))
def test_arguments_come_back_but_for_strides(argued: tuple[Argument, ...]) -> None:
    assert parsed(*texts(argued)) == without_strides(argued)


def test_arguments_of_pytorch_itself_are_read() -> None:
    back = parsed(
        "[[7, 3, 0, 8, 4, 'cuda:0'], None, [[1, 2, 0, 4, 2, 'cpu']], True]",
        "[[2, 4], [], [[4]], []]",
        "['Tensor(float)', 'None', 'GenericList[Tensor(c10::Half)]', 'Bool']",
    )
    expected = TensorSpec("float32", (2, 4), 3), None, (TensorSpec("float16", (4,), None),), True
    assert back == expected
    assert parsed("[1]", "nonsense(", "['Int']") == ()
    assert parsed("[1, 2]", "[[]]", "['Int']") == ()
    assert parsed("[1]", "[[1]]", "['Tensor(float)']") == ()


# Whole ranks

LAUNCHES = (Op, Collective, PointToPoint)


def launches(trace: Trace) -> list[Event]:
    """What is launched, without what Chakra does not tell."""
    kept: list[Event] = []
    for event in trace.events:
        if isinstance(event, Op):
            inputs = tuple(without_strides(argument) for argument in event.inputs)
            kept.append(dataclasses.replace(event, inputs=inputs, site=None))
        elif isinstance(event, Collective | PointToPoint):
            kept.append(dataclasses.replace(event, group="", work=0, site=None))
    return kept


def test_ranks_come_back_with_their_own_peers(written: Path) -> None:
    back = read_chakra(written)
    assert [trace.header.rank for trace in back] == list(range(LAYOUT.world_size))
    for trace in back:
        rank = trace.header.rank
        made = megatron_trace(LAYOUT, rank)
        communications = [each for each in launches(made) if not isinstance(each, Op)]
        assert [e for e in launches(trace) if not isinstance(e, Op)] == communications
        own = {(group.description, group.ranks) for group in groups(LAYOUT, rank)}
        used = {(e.description, e.ranks) for e in trace.events if isinstance(e, Group)}
        assert used <= own
        assert trace.header == dataclasses.replace(made.header, command=(), versions={})
        assert [e for e in trace.events if isinstance(e, Phase)]
    # Operations are those of the rank that stands for another: storages too.
    assert launches(back[0]) == launches(megatron_trace(LAYOUT, 0))
    assert not collate(back).mismatches


def closure(nodes: Iterable[Any]) -> list[set[int]]:
    """What each launch comes after, directly or not, by order in the file; CPU work aside."""
    before: dict[int, set[int]] = {}
    places: dict[int, int] = {}
    found = []
    for node in nodes:
        known = set()
        for number in node.data_deps:
            known |= before[number]
            if number in places:
                known.add(places[number])
        before[node.id] = known
        if not attributes(node)["is_cpu_op"]:
            places[node.id] = len(places)
            found.append(known)
    return found


def test_the_order_of_device_work_comes_back(written: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_chakra(again, collate(read_chakra(written)), name="job")
    for rank in range(LAYOUT.world_size):
        path = f"job.{rank}.et"
        if (again / path).exists():
            assert closure(nodes_of(again / path)) == closure(nodes_of(written / path))
    assert len(list(again.glob("*.et"))) == LAYOUT.pp


def test_communicators_are_numbered_alike_on_all_ranks(written: Path) -> None:
    declared = json.loads((written / "job.comm_groups.json").read_text())
    for rank in range(LAYOUT.world_size):
        names = {
            attributes(node)["pg_name"]
            for node in nodes_of(written / f"job.{rank}.et")
            if "pg_name" in attributes(node)
        }
        assert names - {"0"} <= set(declared)
        assert all(rank in declared[name] for name in names - {"0"})
    tags = defaultdict(list)
    for rank in range(LAYOUT.world_size):
        for node in nodes_of(written / f"job.{rank}.et"):
            if node.name in ("send", "recv"):
                about = attributes(node)
                key = about["comm_src"], about["comm_dst"], about["comm_tag"]
                tags[key].append((node.name, about["comm_size"]))
    assert tags
    for ends in tags.values():
        assert sorted(name for name, _ in ends) == ["recv", "send"]
        assert len({size for _, size in ends}) == 1


def test_equal_jobs_are_equal_files(written: Path, tmp_path: Path) -> None:
    traces = [megatron_trace(LAYOUT, rank) for rank in (0, LAYOUT.rank(0, 0, 1))]
    write_chakra(tmp_path, collate(traces), range(LAYOUT.world_size), "job")
    for path in written.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_short_cpu_work_is_added_up(tmp_path: Path) -> None:
    op = Op("aten.mul.Tensor", (), (), 0)
    events = (*[HostGap(0.4e-6), op] * 5, HostGap(3e-6), op)
    trace = Trace(Header(1, 0, 1, "h100", 1, (), {}), events)
    write_chakra(tmp_path, collate([trace]))
    durations = [
        node.duration_micros for node in nodes_of(tmp_path / "trace.0.et") if node.name == "host"
    ]
    assert durations == [1, 1, 3]
    (back,) = read_chakra(tmp_path)
    assert sum(e.cpu_s for e in back.events if isinstance(e, HostGap)) == pytest.approx(5e-6)


# What is refused


def file_of(path: Path, *nodes: dict[str, Any], attrs: dict[str, Any] | None = None) -> None:
    with path.open("wb") as file:
        write_message(file, message_classes()["GlobalMetadata"](version="1"))
        for node in nodes:
            made = message_classes()["Node"](**{"type": 4, **node})
            made.attr.extend(attribute(name, *value) for name, value in (attrs or {}).items())
            write_message(file, made)


REDUCE = {
    "comm_type": ("int64_val", 0),
    "comm_size": ("int64_val", 8),
    "pg_name": ("string_val", "1"),
}


@pytest.mark.parametrize(
    ("nodes", "attrs", "problem"),
    [
        ([{"id": 1}, {"id": 1}], {}, "has two nodes 1"),
        ([{"id": 1, "data_deps": [2]}], {}, "waits for 2: none such"),
        ([{"id": 1, "ctrl_deps": [2]}, {"id": 2, "data_deps": [1]}], {}, "waits for itself"),
        ([{"id": 1, "type": 7}], REDUCE | {"pg_name": ("string_val", "7")}, "is not declared"),
        ([{"id": 1, "type": 7}], REDUCE | {"comm_type": ("int64_val", 70)}, "comm_type 70"),
        ([{"id": 1, "type": 7}], REDUCE | {"comm_size": ("int64_val", -1)}, "comm_size is -1"),
        ([{"id": 1, "type": 7}], REDUCE | {"root": ("int64_val", 9)}, "root 9 is no member"),
        ([{"id": 1, "type": 5}], REDUCE | {"comm_dst": ("int32_val", 9)}, "comm_dst 9"),
    ],
)
def test_contradictions_are_refused(
    tmp_path: Path, nodes: list[dict[str, Any]], attrs: dict[str, Any], problem: str
) -> None:
    file_of(tmp_path / "t.0.et", *nodes, attrs=attrs)
    (tmp_path / "t.comm_groups.json").write_text('{"1": [0, 1]}')
    with pytest.raises(InputError) as refused:
        read_chakra(tmp_path)
    assert problem in str(refused.value)
    assert "t.0.et" in str(refused.value)


def test_nodes_in_any_order_are_read_after_what_they_wait_for(tmp_path: Path) -> None:
    file_of(
        tmp_path / "t.0.et",
        {"id": 5, "name": "last", "data_deps": [9, 2]},
        {"id": 9, "name": "first"},
        {"id": 2, "name": "second", "data_deps": [9]},
        attrs={"is_cpu_op": ("bool_val", False)},
    )
    (trace,) = read_chakra(tmp_path)
    assert [event.name for event in trace.events if isinstance(event, Op)] == [
        "first", "second", "last",
    ]  # fmt: skip


def test_files_that_are_none_are_refused(tmp_path: Path, written: Path) -> None:
    with pytest.raises(InputError, match="no directory"):
        read_chakra(tmp_path / "missing")
    with pytest.raises(InputError, match="holds no execution trace"):
        read_chakra(tmp_path)
    whole = (written / "job.0.et").read_bytes()
    path = tmp_path / "t.0.et"
    for damaged, problem in [
        (b"", "is empty"),
        (whole[:-3], "was cut short"),
        (whole[:1], "was cut short"),
        (b"\xff\xff\xff\xff\xff\xff", "is longer than"),
        (b"\x02\xff\xff", "is no GlobalMetadata"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=problem):
            read_chakra(tmp_path)
    path.write_bytes(whole)
    (tmp_path / "u.0.et").write_bytes(whole)
    with pytest.raises(InputError, match="several jobs"):
        read_chakra(tmp_path)
    (tmp_path / "u.0.et").unlink()
    for text in ("[]", "{", '{"1": [0, 0]}', '{"1": "all"}'):
        (tmp_path / "t.comm_groups.json").write_text(text)
        with pytest.raises(InputError, match="comm_groups"):
            read_chakra(tmp_path)


def test_ranks_outside_the_job_are_not_written(tmp_path: Path) -> None:
    job = collate([megatron_trace(Layout(tp=2, dp=1, pp=1), 0)])
    with pytest.raises(InputError, match="is no rank of the job"):
        write_chakra(tmp_path, job, [2])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_chakra(tmp_path / "file", job)
