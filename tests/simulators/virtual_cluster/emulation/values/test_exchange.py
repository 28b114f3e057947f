from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.simulators.virtual_cluster.emulation.values.rank import FakeRank  # noqa: E402
from trainscout.simulators.predictor.question.errors import InputError  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.values import (  # noqa: E402
    Exchange,
    Payloads,
    Values,
)


def communicate(rank: FakeRank, kind: str, inputs: Any, outputs: Any, **details: Any) -> None:
    """Launched, and waited for."""
    place: dict[str, Any] = {"position": 1, "size": 4, "group": "tp", "sequence": 0} | details
    exchange = Exchange(kind, **place, ranks=(0, 1, 2, 3))
    arrives = rank.values.communicate(exchange, inputs, outputs)
    if arrives is not None:
        arrives()


@pytest.mark.parametrize(
    ("reduction", "result"),
    [("sum", 12), ("avg", 3), ("max", 3), ("min", 3), ("band", 3), ("bor", 3)],
)
def test_a_reduction_takes_other_ranks_to_hold_the_same(reduction: str, result: int) -> None:
    rank = FakeRank()
    tokens = rank.enter(torch.tensor([3]))
    communicate(rank, "all_reduce", [tokens], [tokens], reduction=reduction)
    assert rank.read(tokens) == [result]
    assert rank.grade(tokens) == "expected"


@pytest.mark.parametrize("reduction", ["product", "bxor", "premul_sum"])
def test_of_other_reductions_nobody_knows_what_others_add(reduction: str) -> None:
    rank = FakeRank()
    tokens = rank.enter(torch.tensor([3]))
    communicate(rank, "all_reduce", [tokens], [tokens], reduction=reduction)
    assert rank.grade(tokens) == "invented"


def test_a_group_of_one_keeps_what_it_has() -> None:
    rank = FakeRank()
    tokens, part = rank.enter(torch.tensor([3])), rank.unknown(1, dtype=torch.int64)
    alone = {"position": 0, "size": 1}
    communicate(rank, "all_reduce", [tokens], [tokens], **alone)
    communicate(rank, "all_gather", [tokens], [part], **alone)
    assert (rank.read(part), rank.grade(part)) == ([3], "exact")


def test_objects_gathered_as_bytes_by_a_sum_are_read_in_every_place() -> None:
    rank = FakeRank()
    given = torch.zeros(4 * 2048, dtype=torch.uint8)
    given[2048:2051] = torch.tensor([7, 200, 9])
    buffer = rank.enter(given)
    communicate(rank, "all_reduce", [buffer], [buffer])
    places = torch.tensor(rank.read(buffer)).reshape(4, 2048)
    assert places[:, :4].tolist() == [[7, 200, 9, 0]] * 4
    assert rank.grade(buffer) == "expected"


@pytest.mark.parametrize(
    ("written", "size", "expected"),
    [
        # Norms of each rank; a count, and a sum that is 0; the same where nobody saw it made.
        ((1,), 2, [3.0, 3.0]),
        ((1, 0), 2, [0.0, 6.0]),
        ((), 2, [0.0, 6.0]),
        ((1,), 4, [3.0, 3.0, 3.0, 3.0]),
        ((1, 2), 4, [0.0, 12.0, 0.0, 0.0]),
        ((), 4, [3.0, 3.0, 3.0, 3.0]),
    ],
)
def test_a_sum_gathers_what_was_written_to_ones_own_part_of_zeros(
    written: tuple[int, ...], size: int, expected: list[float]
) -> None:
    rank = FakeRank()
    with rank:
        buffer = torch.ones(size)
        buffer.zero_()
        for place in written:
            buffer[place] = 3.0 if place == 1 else 0.0
    if not written:
        buffer = rank.enter(torch.tensor([0.0, 3.0, *[0.0] * (size - 2)]))
    communicate(rank, "all_reduce", [buffer], [buffer], size=size)
    assert rank.read(buffer) == expected


def test_a_maximum_gathers_as_a_sum_does() -> None:
    rank = FakeRank()
    places = rank.enter(torch.tensor([0.0, 3.0, 0.0, 0.0]))
    communicate(rank, "all_reduce", [places], [places], reduction="max")
    assert rank.read(places) == [3.0] * 4


def test_what_earlier_runs_gave_is_put_together(tmp_path: Path) -> None:
    sums = {}
    for position in range(4):
        (rank,) = ranks(tmp_path, position)
        tokens = rank.enter(torch.tensor([10 * position + 1]))
        communicate(rank, "all_reduce", [tokens], [tokens], position=position)
        sums[position] = rank.read(tokens), rank.grade(tokens)
    # Ranks that were not run yet are taken to hold what this one does.
    assert sums[0] == ([4], "expected")
    assert sums[1] == ([1 + 3 * 11], "expected")
    assert sums[3] == ([1 + 11 + 21 + 31], "exact")


def test_a_buffer_that_is_not_full_is_sent_as_far_as_it_goes(tmp_path: Path) -> None:
    (source,) = ranks(tmp_path, 0)
    with source:
        buffer = source.unknown(8, dtype=torch.int32)
        buffer[:2].copy_(torch.tensor([2, 64], dtype=torch.int32))
        communicate(source, "send", [buffer], [], root=1, position=0)
    (other,) = ranks(tmp_path, 1)
    got = other.unknown(8, dtype=torch.int32)
    communicate(other, "recv", [], [got], root=0, position=1)
    assert other.read(got)[:2] == [2, 64]
    # What the rest is worth, the whole is.
    assert other.grade(got) == "invented"


def test_a_member_sends_back_the_sizes_of_what_was_sent() -> None:
    rank = FakeRank()
    got = rank.unknown(2, dtype=torch.int64)
    pipeline = {"group": "pp", "position": 0, "root": 1}
    for payload in (
        torch.tensor([4, 512]),
        torch.randn(4, 512),
        # Positions have no gradients.
        torch.tensor([4, 8]),
        torch.ones(4, 8, dtype=torch.int64),
    ):
        communicate(rank, "send", [rank.enter(payload)], [], **pipeline)
    communicate(rank, "recv", [], [got], **pipeline)
    assert (rank.read(got), rank.grade(got)) == ([4, 512], "expected")
    communicate(rank, "recv", [], [got], **pipeline | {"root": 2})
    assert rank.grade(got) == "invented"


def test_only_the_root_of_a_reduction_gets_it() -> None:
    rank = FakeRank()
    tokens = rank.enter(torch.tensor([3]))
    communicate(rank, "reduce", [tokens], [tokens], root=1)
    assert rank.read(tokens) == [12]
    communicate(rank, "reduce", [tokens], [tokens], root=0)
    assert rank.grade(tokens) == "invented"


def test_gathering_and_scattering_in_both_forms() -> None:
    rank = FakeRank()
    mine = rank.enter(torch.tensor([5, 6]))
    whole = rank.enter(torch.arange(8))
    inputs = [rank.enter(torch.tensor([n])) for n in range(4)]
    with rank:
        flat, stacked = (rank.unknown(*s, dtype=torch.int64) for s in ((8,), (4, 2)))
        parts = [rank.unknown(2, dtype=torch.int64) for _ in range(4)]
        communicate(rank, "all_gather", [mine], [flat])
        communicate(rank, "all_gather", [mine], [stacked])
        communicate(rank, "all_gather", [mine], parts)
        row = mine.view(1, 2)
        communicate(rank, "all_gather", [row], [lying := rank.unknown(8, dtype=torch.int64)])
        assert rank.read(flat) == rank.read(lying) == [5, 6] * 4
        assert rank.read(stacked) == [rank.read(part) for part in parts] == [[5, 6]] * 4
        piece = rank.unknown(2, dtype=torch.int64)
        communicate(rank, "reduce_scatter", [whole], [piece])
        assert rank.read(piece) == [8, 12]
        outputs = [rank.unknown(1, dtype=torch.int64) for _ in range(4)]
        communicate(rank, "all_to_all", inputs, outputs)
        assert [rank.read(output) for output in outputs] == [[1]] * 4


def test_a_part_may_be_gathered_into_the_whole_it_is_of() -> None:
    """As Megatron-core's timers do with their own row."""
    rank = FakeRank()
    rows = rank.enter(torch.zeros(4, 3))
    with rank:
        rows[1].copy_(torch.tensor([1.0, 2.0, 3.0]))
        communicate(rank, "all_gather", [rows[1].view(-1)], [rows.view(-1)])
    assert rank.read(rows) == [[1.0, 2.0, 3.0]] * 4


def test_rows_that_go_where_they_belong_come_unknown() -> None:
    rank = FakeRank()
    rows, got = rank.enter(torch.arange(16)), rank.enter(torch.arange(8))
    communicate(rank, "all_to_all", [rows], [got], splits=(2, 6, 4, 4))
    assert rank.grade(got) == "invented"


def test_what_a_collective_overwrites_is_forgotten() -> None:
    rank = FakeRank()
    flag = rank.enter(torch.tensor([3.0]))
    with rank:
        communicate(rank, "all_gather", [rank.unknown(1)], [flag])
    assert rank.grade(flag) == "invented"


def test_only_the_source_of_a_broadcast_knows_it_and_the_hint_says_so() -> None:
    rank = FakeRank()
    flags = rank.enter(torch.tensor([1, 0, 0]))
    communicate(rank, "broadcast", [flags], [flags], root=1)
    assert rank.grade(flags) == "exact"
    communicate(rank, "broadcast", [flags], [flags], root=0)
    reading = rank.values.read(flags, "item")
    assert reading.grade == "invented"
    assert reading.hint is not None
    assert "member 0 of group tp" in reading.hint
    assert "--payloads" in reading.hint


def ranks(directory: Path, *numbers: int) -> list[FakeRank]:
    return [FakeRank(Values(payloads=Payloads(directory, number))) for number in numbers]


@pytest.mark.parametrize(
    "payload",
    [
        torch.tensor([1, 0, 0]),
        torch.tensor(float("inf")),
        torch.tensor([[0.1, -2.5]], dtype=torch.bfloat16),
        torch.tensor([True, False]),
        # As Accelerate sends it before each epoch, for the order of the data.
        torch.Generator().get_state(),
    ],
)
def test_payloads_reach_ranks_that_are_traced_later_exactly(tmp_path: Path, payload: Any) -> None:
    (source,) = ranks(tmp_path, 0)
    sent = source.enter(payload)
    communicate(source, "broadcast", [sent], [sent], root=0, position=0, sequence=7)
    (other,) = ranks(tmp_path, 95)
    got = other.unknown(*payload.shape, dtype=payload.dtype)
    communicate(other, "broadcast", [got], [got], root=0, position=3, sequence=7)
    reading = other.values.read(got, "tolist")
    assert torch.equal(reading.value, payload)
    assert reading.grade == "exact"
    communicate(other, "broadcast", [got], [got], root=0, position=3, sequence=8)
    assert other.values.read(got, "tolist").grade == "invented"


def test_a_sent_shape_is_received_by_its_peer_alone(tmp_path: Path) -> None:
    (source,) = ranks(tmp_path, 0)
    shape = source.enter(torch.tensor([4096, 1, 512]))
    communicate(source, "send", [shape], [], position=0, root=1, group="pp")
    first, second = ranks(tmp_path, 1, 2)
    for rank, position, grade in ((first, 1, "exact"), (second, 2, "invented")):
        got = rank.unknown(3, dtype=torch.int64)
        communicate(rank, "recv", [], [got], position=position, root=0, group="pp")
        assert rank.values.read(got, "tolist").grade == grade
        assert rank.read(got) == ([4096, 1, 512] if grade == "exact" else [1, 1, 1])


def test_what_is_not_exact_is_not_told(tmp_path: Path) -> None:
    (source,) = ranks(tmp_path, 0)
    flag = source.unknown(1)
    communicate(source, "broadcast", [flag], [flag], root=0, position=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["{}", "[1]", "not json", json.dumps({"kind": "broadcast"})])
def test_a_file_that_holds_no_payloads_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "payloads-00000.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="line 1"):
        Payloads(tmp_path, 1)
    with pytest.raises(InputError, match="no directory"):
        Payloads(tmp_path / "missing", 1)
