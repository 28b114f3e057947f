"""Frames and words: what is written is read, and nothing else is."""

from __future__ import annotations

import struct

import pytest

from trainscout.simulators.virtual_cluster.live.messages import AskElapsed, Collect, Publish, Sleep
from trainscout.simulators.virtual_cluster.live.simulation import Release
from trainscout.simulators.virtual_cluster.live.wire import (
    EVENTS,
    MESSAGE,
    MOST_BYTES,
    RELEASE,
    Figures,
    Frames,
    Hello,
    Invention,
    events_frame,
    frame,
    message_frame,
    read_events,
    read_message,
    read_release,
    release_frame,
)
from trainscout.simulators.virtual_cluster.traces.codec import MalformedError
from trainscout.simulators.virtual_cluster.traces.events import (
    HostGap,
    Op,
    Synchronise,
    TensorSpec,
)

FIGURES = Figures(0, 1.5, 1, 2, 3, 4, 0, (Invention("item", 3, "1.0", "train.py:3"),))


def frames_of(data: bytes, piece: int) -> list[tuple[bytes, str]]:
    frames = Frames()
    return [
        found
        for start in range(0, len(data), piece)
        for found in frames.take(data[start : start + piece])
    ]


@pytest.mark.parametrize("piece", [1, 7, 10**6])
def test_frames_survive_being_cut_anywhere(piece):
    tensor = TensorSpec("bfloat16", (2, 3), 7)
    events = [HostGap(1e-7), Op("aten.mm.default", (tensor, None, "é"), (tensor,), 0)]
    data = events_frame(events) + message_frame(Sleep(0.5)) + release_frame(Release(0, 5, 1.5))
    (_, first), (_, second), (_, third) = found = frames_of(data, piece)
    assert [kind for kind, _ in found] == [EVENTS, MESSAGE, RELEASE]
    assert read_events(first) == events
    assert read_message(second) == Sleep(0.5)
    assert read_release(third) == (5, 1.5, [])


@pytest.mark.parametrize(
    "message",
    [
        Sleep(0.0),
        AskElapsed(3, 4),
        Collect(("k",), (1,)),
        Publish("k", "{}"),
        Hello(2, "output"),
        FIGURES,
    ],
)
def test_messages_are_read_back(message):
    ((_, text),) = frames_of(message_frame(message), 10**6)
    assert read_message(text) == message


@pytest.mark.parametrize(
    "data",
    [b"X" + struct.pack("<I", 3) + b"abc", b"E" + struct.pack("<I", MOST_BYTES + 1)],
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(MalformedError):
        frames_of(data, 10**6)


def test_text_that_is_no_text_is_refused():
    with pytest.raises(MalformedError):
        frames_of(b"M" + struct.pack("<I", 1) + b"\xff", 10**6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '["sleep"]',
        '["sleep", -1]',
        '["sleep", Infinity]',
        '["elapsed", 1]',
        '["elapsed", "a", 2]',
        '["hello", 0, "root"]',
        '["finish", {}]',
        '["finish", {"code": 0}]',
        '["exec", "ls"]',
    ],
)
def test_other_messages_are_refused(text):
    with pytest.raises(MalformedError):
        read_message(text)


@pytest.mark.parametrize(
    "text",
    ["[1]", '["1", null, null]', "[1.5, null, null]", "[1, true, null]", "[1, null, 1]", "null"],
)
def test_what_is_no_release_is_refused(text):
    with pytest.raises(MalformedError):
        read_release(text)


def test_lines_that_are_no_events_are_refused():
    with pytest.raises(MalformedError):
        read_events('["synchronise","device",null,null]\n["import","os"]')
    assert read_events('["synchronise","device",null,null]') == [Synchronise("device")]


def test_a_frame_says_how_long_it_is():
    assert frame(MESSAGE, "é") == b"M\x02\x00\x00\x00" + "é".encode()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '["sleep", 1' + "0" * 400 + "]",
        '["sleep", ' + "9" * 5000 + "]",
        '["finish", {"code": 0, "inventions": [], "cpu_s": 1' + "0" * 400 + "}]",
    ],
)
def test_deep_and_huge_messages_are_malformed(text):
    with pytest.raises(MalformedError):
        read_message(text)
