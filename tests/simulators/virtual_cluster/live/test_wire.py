"""Frames and words: what is written is read, and nothing else is."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from trainscout.simulators.virtual_cluster.emulation.unknown_values import Unknown
from trainscout.simulators.virtual_cluster.live.messages import (
    MOST_BYTES,
    OF_SIMULATOR,
    AskElapsed,
    Collect,
    Figures,
    Hello,
    Publish,
    Sleep,
    Turn,
    frame,
    read_messages,
    receive,
    turn_frame,
)
from trainscout.simulators.virtual_cluster.traces.codec import MalformedError
from trainscout.simulators.virtual_cluster.traces.events import (
    HostGap,
    Op,
    Synchronise,
    TensorSpec,
)


def frames_of(data: bytes, count: int = 1, piece: int = 10**6) -> list[str]:
    """The texts of ``count`` frames that come in pieces."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for start in range(0, len(data), piece):
                theirs.sendall(data[start : start + piece])

    sending = threading.Thread(target=send)
    sending.start()
    with ours:
        try:
            return [receive(ours) for _ in range(count)]
        finally:
            sending.join()


@pytest.mark.parametrize("piece", [1, 7, 10**6])
def test_frames_survive_being_cut_anywhere(piece):
    tensor = TensorSpec("bfloat16", (2, 3), 7)
    events = [HostGap(1e-7), Op("aten.mm.default", (tensor, None, "é"), (tensor,), 0)]
    turn = Turn(5, 1.5, ("a", None))
    data = frame([*events, Sleep(0.5)]) + frame([Publish("k", "1\n2")]) + turn_frame(turn)
    first, second, third = frames_of(data, 3, piece)
    assert read_messages(first) == [*events, Sleep(0.5)]
    assert read_messages(second) == [Publish("k", "1\n2")]
    assert OF_SIMULATOR.decode(third) == turn


@pytest.mark.parametrize(
    "message",
    [
        Sleep(0.0),
        AskElapsed(3, 4),
        Collect(("k",), (1,)),
        Publish("k", "{}"),
        Hello(2, "output"),
        Unknown("item", 3, "1.0", "train.py:3", "a hint", expected=True),
        Figures(0, 1.5, 1, 2, 4, 0),
    ],
)
def test_messages_are_read_back(message):
    (text,) = frames_of(frame([message]))
    assert read_messages(text) == [message]


@pytest.mark.parametrize(("size", "content"), [(MOST_BYTES + 1, b""), (1, b"\xff")])
def test_what_is_no_frame_of_text_is_refused(size, content):
    with pytest.raises(MalformedError):
        frames_of(struct.pack("<I", size) + content)


@pytest.mark.parametrize("part", [0, 3, 9])
def test_a_frame_that_ends_early_is_the_end(part):
    with pytest.raises(EOFError):
        frames_of(frame([Sleep(0.5)])[:part])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '["sleep"]',
        '["sleep", -1]',
        '["sleep", Infinity]',
        '["ask_elapsed", 1]',
        '["ask_elapsed", "a", 2]',
        '["hello", 0, "root"]',
        '["collect", ["a"], []]',
        '["figures", 0]',
        '["turn", 1, null, []]',
        '["exec", "ls"]',
        '["synchronise","device",null,null]\n["import","os"]',
        "[" * 100_000,
        '["sleep", 1' + "0" * 400 + "]",
        '["sleep", ' + "9" * 5000 + "]",
        '["figures", 0, 1' + "0" * 400 + ", 1, 1, 1, 0]",
    ],
)
def test_other_and_deep_and_huge_messages_are_refused(text):
    with pytest.raises(MalformedError):
        read_messages(text)


@pytest.mark.parametrize(
    "fields",
    ["1", '"1", null, []', "1.5, null, []", "1, true, []", "1, null, 1", "1, null, [1]"],
)
def test_what_is_no_turn_is_refused(fields):
    with pytest.raises(MalformedError):
        OF_SIMULATOR.decode(f'["turn", {fields}]')
    with pytest.raises(MalformedError):
        OF_SIMULATOR.decode('["sleep", 1.0]')


def test_an_event_travels_as_its_line():
    assert read_messages('["synchronise","device",null,null]') == [Synchronise("device")]


def test_a_frame_says_how_long_it_is():
    assert frame([Publish("é", "")]) == b"\x17\x00\x00\x00" + b'["publish","\\u00e9",""]'
