"""Files give back what was written, are the same for the same events, and refuse what is not."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.virtual_cluster.traces.event_strategies import events, events_of, headers
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.traces import files
from trainscout.simulators.virtual_cluster.traces.codec import (
    CLASSES,
    decode_event,
    encode_event,
    encode_header,
)
from trainscout.simulators.virtual_cluster.traces.events import (
    Alloc,
    EmptyCache,
    Event,
    Free,
    Header,
    HostGap,
    Op,
    Phase,
    TensorSpec,
    Trace,
    ValueRead,
)

HEADER = Header(96, 37, 8, "h800", 80 << 30, ("train.py", "--tp", "8"), {"torch": "2.13.0"})
GEMM = Op(
    "aten.mm.default",
    (TensorSpec("bfloat16", (2048, 128), 3), TensorSpec("bfloat16", (128, 64), 4, (1, 128))),
    (TensorSpec("bfloat16", (2048, 64), 5),),
    stream=0,
    site=2,
)
EVENTS: tuple[Event, ...] = (Phase("setup", 0), Alloc(5, 262144, 0), GEMM, Free(5))


def put(path: Path, lines: list[str]) -> Path:
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    return path


@pytest.mark.parametrize("kind", CLASSES)
def test_every_kind_of_event_comes_back(kind: str) -> None:
    @given(events_of(CLASSES[kind]))
    def comes_back(event: Event) -> None:
        line = encode_event(event)
        assert "\n" not in line
        assert decode_event(line) == event
        assert encode_event(decode_event(line)) == line

    comes_back()


@given(headers, st.lists(events, max_size=30))
def test_a_file_gives_back_its_trace_and_equal_traces_equal_bytes(
    header: Header, written: list[Event]
) -> None:
    trace = Trace(header, tuple(written))
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "a", Path(folder) / "b"
        files.write_trace(first, trace)
        files.write_trace(second, trace)
        assert files.read_trace(first) == trace
        assert first.read_bytes() == second.read_bytes()


def test_what_floats_json_lacks_come_back() -> None:
    read = ValueRead("item", (math.nan, -math.inf, 1.0, 1, True), "exact", 0)
    back = decode_event(encode_event(read))
    assert isinstance(back, ValueRead)
    assert isinstance(back.value, tuple)
    nan, *others = back.value
    assert isinstance(nan, float)
    assert math.isnan(nan)
    assert [(type(x), x) for x in others] == [
        (float, -math.inf),
        (float, 1.0),
        (int, 1),
        (bool, 1),
    ]


def test_a_line_reads_as_the_format_says() -> None:
    assert encode_event(GEMM) == (
        '["op","aten.mm.default",["bfloat16[2048,128]@3","bfloat16[128,64]{1,128}@4"],'
        '["bfloat16[2048,64]@5"],0,2]'
    )
    fill = Op("aten.fill_.Scalar", (TensorSpec("int64", (), None), "a", -math.inf, (1,)), (), 0)
    assert encode_event(fill) == (
        '["op","aten.fill_.Scalar",["int64[]@host",{"text":"a"},{"float":"-inf"},[1]],[],0,null]'
    )
    assert encode_event(EmptyCache()) == '["empty_cache"]'


def test_the_file_appears_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rank_00037.trace.gz"
    writer = files.TraceWriter(path, HEADER)
    for event in EVENTS:
        writer.write(event)
    assert not path.exists()
    writer.close()
    assert files.read_trace(path).events == EVENTS
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_failed_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    files.write_trace(path, Trace(HEADER, EVENTS))
    old = path.read_bytes()

    def fails() -> None:
        with files.TraceWriter(path, HEADER) as writer:
            writer.write(EVENTS[0])
            raise KeyError("the script failed")

    with pytest.raises(KeyError):
        fails()
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_an_abandoned_writer_leaves_nothing(tmp_path: Path) -> None:
    writer = files.TraceWriter(tmp_path / "t", HEADER)
    writer.write(EVENTS[0])
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with files.TraceWriter(path, HEADER) as writer:
        threads = [
            threading.Thread(target=lambda n=n: [writer.write(Free(n)) for _ in range(3000)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    read = files.read_trace(path).events
    assert {n: read.count(Free(n)) for n in range(4)} == dict.fromkeys(range(4), 3000)


def test_what_no_file_holds_is_not_written(tmp_path: Path) -> None:
    with files.TraceWriter(tmp_path / "t", HEADER) as writer:
        with pytest.raises(TypeError):
            writer.write(Op("aten.add.Tensor", (object(),), (), 0))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="no event"):
            writer.write("op")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="JSON"):
            writer.write(HostGap(math.inf))
        writer.write(Free(1))
    assert files.read_trace(tmp_path / "t").events == (Free(1),)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        files.TraceWriter(tmp_path / "missing" / "t", HEADER)


BAD_LINES = {
    "kind 'kernel' is unknown": '["kernel",1]',
    "free has 2 fields, not 1": '["free",1,2]',
    "free.storage is '1'": '["free","1"]',
    "free.storage is -1": '["free",-1]',
    "free.storage is True": '["free",true]',
    "free.storage is 1.0": '["free",1.0]',
    "something after": '["free",1]["free",1]',
    "not JSON": '["free",1',
    "NaN": '["host_gap",NaN]',
    "host_gap.cpu_s": '["host_gap",-0.5]',
    "phase.phase is 'warmup'": '["phase","warmup",0]',
    "value_read.grade": '["value_read","item",1,"guessed",0,null]',
    "value_read.value": '["value_read","item","int64[]@1","exact",0,null]',
    "op.inputs is 'bfloat16'": '["op","a",["bfloat16"],[],0,null]',
    "op.inputs is {'text': 1}": '["op","a",[{"text":1}],[],0,null]',
    "op.outputs is 1": '["op","a",[],[1],0,null]',
    "op.outputs is 'bfloat16[-1]@2'": '["op","a",[],["bfloat16[-1]@2"],0,null]',
    "op.stream is None": '["op","a",[],[],null,null]',
    "group.ranks": '["group","g","d",[0,-1],false]',
    "not an array": '{"kind":"free"}',
    "array that starts": "[]",
    "nested too deeply": "[" * 100_000,
}


@pytest.mark.parametrize("problem", BAD_LINES)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, problem: str) -> None:
    path = put(tmp_path / "t", [encode_header(HEADER), '["free",1]', BAD_LINES[problem]])
    with pytest.raises(InputError) as refused:
        files.read_trace(path)
    assert f"{path}:3" in str(refused.value)
    assert problem in str(refused.value)


def test_deep_arguments_are_refused_not_fatal(tmp_path: Path) -> None:
    deep = '["op","a",[' + "[" * 5000 + "]" * 5000 + "],[],0,null]"
    path = put(tmp_path / "t", [encode_header(HEADER), deep])
    with pytest.raises(InputError, match="nested too deeply"):
        files.read_trace(path)


def _edited(**changes: object) -> str:
    top = json.loads(encode_header(HEADER))
    top["header"].update(changes)
    return json.dumps(top)


def _top(**changes: object) -> str:
    return json.dumps(json.loads(encode_header(HEADER)) | changes)


BAD_HEADERS = {
    "does not begin": '["free",1]',
    "version 1; this program reads version 4": _top(version=1),
    "unknown entry 'color'": _top(color="red"),
    "header.rank is '37'": _edited(rank="37"),
    "header.rank 96 is not below 96": _edited(rank=96),
    "header.local_world_size is 0": _edited(local_world_size=0),
    "unknown entry 'host'": _edited(host="a"),
    "header.versions is 1": _edited(versions={"torch": 1}),
    "fields of free are ['storage', 'when']": _top(
        events=json.loads(encode_header(HEADER))["events"] | {"free": ["storage", "when"]}
    ),
    "events lacks op": _top(
        events={k: v for k, v in json.loads(encode_header(HEADER))["events"].items() if k != "op"}
    ),
}


@pytest.mark.parametrize("problem", BAD_HEADERS)
def test_a_bad_header_is_refused(tmp_path: Path, problem: str) -> None:
    path = put(tmp_path / "t", [BAD_HEADERS[problem], '["free",1]'])
    with pytest.raises(InputError) as refused:
        files.TraceReader(path)
    assert f"{path}:1" in str(refused.value)
    assert problem in str(refused.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(InputError, match="cannot be read"):
        files.read_trace(path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(InputError, match="not gzip"):
        files.read_trace(path)
    for empty in (b"", gzip.compress(b"")):
        path.write_bytes(empty)
        with pytest.raises(InputError, match="not JSON"):
            files.read_trace(path)
    path.write_bytes(gzip.compress(b"\xff\n"))
    with pytest.raises(InputError, match="not ASCII"):
        files.read_trace(path)


def test_something_after_the_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    files.write_trace(path, Trace(HEADER, EVENTS))
    for more, problem in ((b"x", "is not gzip"), (path.read_bytes(), "is not an array")):
        longer = tmp_path / "longer"
        longer.write_bytes(path.read_bytes() + more)
        with pytest.raises(InputError, match=problem):
            files.read_trace(longer)


def test_limits_hold(tmp_path: Path) -> None:
    path = tmp_path / "t"
    files.write_trace(path, Trace(HEADER, tuple(Free(n) for n in range(20_000))))
    longest = len(encode_header(HEADER))
    assert len(files.read_trace(path, files.Limits(longest, 20_000, 1 << 20)).events) == 20_000
    with pytest.raises(InputError, match="longer than 100 bytes"):
        files.read_trace(path, files.Limits(line_bytes=100))
    with pytest.raises(InputError, match="more than 19999 events"):
        files.read_trace(path, files.Limits(events=19_999))
    with pytest.raises(InputError, match="more than 1000 bytes of text"):
        files.read_trace(path, files.Limits(text_bytes=1000))


def test_a_bomb_is_met_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(b" " * (64 << 20)))
    with pytest.raises(InputError, match="longer than 4096 bytes"):
        files.read_trace(path, files.Limits(line_bytes=4096))


@given(st.data())
def test_damaged_files_are_refused_or_read_but_never_crash(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        files.write_trace(path, Trace(HEADER, EVENTS))
        whole = path.read_bytes()
        where = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            damaged = whole[:where]
        else:
            damaged = whole[:where] + bytes([whole[where] ^ data.draw(st.integers(1, 255))])
            damaged += whole[where + 1 :]
        path.write_bytes(damaged)
        try:
            read = files.read_trace(path)
        except InputError:
            return
        # Only bytes of the gzip header (time, system, flags) can change without effect.
        assert where < 10
        assert read.events == EVENTS


@given(events, st.data())
def test_damaged_lines_are_refused_or_another_event(event: Event, data: st.DataObject) -> None:
    line = encode_event(event)
    where = data.draw(st.integers(0, len(line) - 1))
    damaged = line[:where] + data.draw(st.text(max_size=2)) + line[where + 1 :]
    try:
        read = decode_event(damaged)
    except ValueError:
        return
    assert decode_event(encode_event(read)) == read


def test_a_reader_can_stop_early(tmp_path: Path) -> None:
    path = tmp_path / "t"
    files.write_trace(path, Trace(HEADER, EVENTS))
    with files.TraceReader(path) as reader:
        assert reader.header == HEADER
        assert next(iter(reader)) == EVENTS[0]


def _ranked(rank: int, world_size: int = 96) -> Trace:
    return Trace(Header(world_size, rank, 8, "h800", 1, (), {}), (Free(rank),))


def test_a_directory_is_read_in_order_of_rank(tmp_path: Path) -> None:
    for rank in (5, 0, 17):
        files.write_trace(files.trace_path(tmp_path, rank), _ranked(rank))
    (tmp_path / "log.txt").write_text("not a trace")
    assert list(files.find_traces(tmp_path)) == [0, 5, 17]
    assert [trace.header.rank for trace in files.read_directory(tmp_path)] == [0, 5, 17]
    assert files.trace_path(tmp_path, 37).name == "rank_00037.trace.gz"


def test_directories_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no directory"):
        files.find_traces(tmp_path / "missing")
    with pytest.raises(InputError, match="holds no trace"):
        files.find_traces(tmp_path)
    files.write_trace(files.trace_path(tmp_path, 3), _ranked(4))
    with pytest.raises(InputError, match="holds the trace of rank 4"):
        files.read_directory(tmp_path)
    files.write_trace(files.trace_path(tmp_path, 3), _ranked(3))
    files.write_trace(files.trace_path(tmp_path, 7), _ranked(7, world_size=8))
    with pytest.raises(InputError, match="of a job of 8 ranks, others of 96"):
        files.read_directory(tmp_path)
