from __future__ import annotations

import gc
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.testing import assert_close  # noqa: E402

from tests.simulators.virtual_cluster.emulation.values.rank import FakeRank  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.values import Values, defaults  # noqa: E402

aten = torch.ops.aten


def _counted(a: Any) -> Any:
    made = a.new_zeros(len(a) + 1, a.shape[1])
    torch.cumsum(a, 0, dtype=a.dtype, out=made[1:])
    return made


# A random program works on a list of matrices; every step appends one or writes one in place.
# Each step is a function of (first, second, number).
STEPS: dict[str, Callable[[Any, Any, int], Any]] = {
    "add": lambda a, b, n: a + b,
    "scale": lambda a, b, n: a * n,
    "subtract": lambda a, b, n: n - a,
    "compare": lambda a, b, n: (a > n).to(a.dtype),
    "where": lambda a, b, n: torch.where(a > b, a, b),
    "add in place": lambda a, b, n: a.add_(b),
    "scale in place": lambda a, b, n: a.mul_(n),
    "fill": lambda a, b, n: a.fill_(n),
    "zero": lambda a, b, n: a.zero_(),
    "copy": lambda a, b, n: a.copy_(b),
    "clone": lambda a, b, n: a.clone(),
    "convert": lambda a, b, n: a.double().int().to(a.dtype),
    "first row": lambda a, b, n: a[:1],
    "slice": lambda a, b, n: a[n % 3 :, ::2],
    "set element": lambda a, b, n: a[:1, n % 4 : n % 4 + 1].fill_(n),
    "transpose": lambda a, b, n: a.t(),
    "flatten": lambda a, b, n: a.reshape(1, -1),
    "expand": lambda a, b, n: a[:, :1].expand(-1, 4),
    "sum": lambda a, b, n: a.sum(0, keepdim=True),
    "mean": lambda a, b, n: a.mean(1, keepdim=True),
    "largest": lambda a, b, n: a.amax(0, keepdim=True),
    "running sum": lambda a, b, n: a.cumsum(1),
    "sum into": lambda a, b, n: torch.add(a, n, out=torch.empty_like(a)),
    "running sum into": lambda a, b, n: _counted(a),
    "join": lambda a, b, n: torch.cat([a, a], 0),
    "stack": lambda a, b, n: torch.stack([a, a])[n % 2],
    "sort": lambda a, b, n: a.sort(1)[0],
    "best": lambda a, b, n: a.topk(1, dim=1)[0],
    "like": lambda a, b, n: torch.full_like(a, n),
    "product": lambda a, b, n: a @ a.t(),
    "several": lambda a, b, n: torch._foreach_add([a, a], n)[n % 2],
    "several in place": lambda a, b, n: torch._foreach_mul_([a], n) and a,
    "gather": lambda a, b, n: a[torch.arange(len(a)).flip(0)],
    "finite": lambda a, b, n: torch.isfinite(a).to(a.dtype),
}
programs = st.lists(
    st.tuples(
        st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9), st.integers(-2, 3)
    ),
    max_size=12,
)


# Fake tensors and real ones disagree on which writes to memory that is seen twice they refuse.
SEEN_TWICE = "refer.* to a single memory location"

Step = tuple[str, int, int, int]


def run(program: Sequence[Step], tensors: list[Any]) -> tuple[int, str]:
    """Let the program work on the tensors; how many steps they took, and why not the next."""
    for done, (name, first, second, number) in enumerate(program):
        a, b = tensors[first % len(tensors)], tensors[second % len(tensors)]
        try:
            made = STEPS[name](a, b, number)
        except (RuntimeError, IndexError) as error:
            return done, str(error)
        if made.numel() <= defaults.EXACT_ELEMENTS:
            tensors.append(made)
    return len(program), ""


@given(programs, st.lists(st.integers(-3, 3), min_size=20, max_size=20))
def test_known_values_are_those_a_real_run_computes(
    program: list[Step], numbers: list[int]
) -> None:
    numbers64 = torch.tensor(numbers, dtype=torch.float64)
    data = [numbers64[:12].reshape(3, 4), numbers64[12:16].reshape(1, 4)]
    while True:
        rank = FakeRank()
        fakes = [rank.enter(tensor.clone()) for tensor in data]
        real = [tensor.clone() for tensor in data]
        with rank:
            taken, refusal = run(program, fakes)
        really_taken, real_refusal = run(program, real)
        if taken != really_taken:
            sooner = refusal if taken < really_taken else real_refusal
            assert re.search(SEEN_TWICE, sooner), sooner
        if taken == really_taken == len(program):
            break
        # Without the step that was refused, from the start: it may have written a part.
        del program[min(taken, really_taken)]
    for fake, tensor in zip(fakes, real, strict=True):
        reading = rank.values.read(fake, "tolist")
        assert reading.grade == "exact"
        # The mean of nothing is no number.
        assert_close(reading.value, tensor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["scatter_", "index_put_"])
def test_what_is_written_over_whole_is_known(name: str) -> None:
    rank = FakeRank()
    order, turned = rank.enter(torch.tensor([2, 0, 1])), rank.enter(torch.arange(3))
    with rank:
        inverse, partly = rank.unknown(3, dtype=torch.int64), rank.unknown(4, dtype=torch.int64)
        for written in (inverse, partly):
            places = {"scatter_": (0, order), "index_put_": ([order],)}[name]
            getattr(written, name)(*places, turned)
        assert rank.read(inverse) == [1, 2, 0]
        assert (rank.grade(inverse), rank.grade(partly)) == ("exact", "invented")


def test_samples_are_what_torch_asserts_that_they_are() -> None:
    rank = FakeRank()
    wrong = rank.enter(torch.tensor([True, False]))
    with rank:
        chosen = torch.multinomial(rank.unknown(8, 3).softmax(1), 1)
        hot = torch.nn.functional.one_hot(chosen, 3)
        assert rank.read(torch._is_all_true((hot == 0) | (hot == 1)))
        assert not rank.read(torch._is_all_true(wrong))


def test_the_sum_of_nothing_is_known() -> None:
    rank = FakeRank()
    rows = rank.enter(torch.ones(1, 4))
    with rank:
        best = rows[1:].topk(1, dim=1)[0]
        assert rank.read(best.sum(0)) == [0]
        assert rank.grade(best.sum(0)) == "exact"
        assert rank.grade(rank.unknown(0, 4).sum(0)) == "exact"


def test_a_number_may_be_summed_along_a_dimension_that_it_lacks() -> None:
    rank = FakeRank()
    with rank:
        right = (rank.unknown(8, 4) > 0).sum()  # as torchmetrics sums what was right
        assert rank.read(right.sum(dim=0)) == rank.read(right) == 16


def test_views_and_the_tensor_they_look_at_see_each_others_writes() -> None:
    rank = FakeRank()
    flags = rank.enter(torch.tensor([1, 0, 0]))
    with rank:
        row = flags.view(1, 3)
        row[0, 1] += 5
        row.mul_(2)
        assert rank.read(flags) == [2, 10, 0]
        assert rank.read(flags[1:].sum()) == 10
        assert rank.grade(flags) == "exact"


def test_what_is_written_in_part_is_known_in_part() -> None:
    rank = FakeRank()
    with rank:
        sizes = rank.unknown(4, dtype=torch.int64)
        sizes[2] = 7
        assert rank.read(sizes[2]) == 7
        assert rank.grade(sizes[2]) == "exact"
        assert rank.grade(sizes) == "invented"
        sizes[:2] = 1
        sizes[3] = 1
        assert rank.read(sizes) == [1, 1, 7, 1]
        sizes[3:].copy_(rank.unknown(1, dtype=torch.int64))
        assert rank.grade(sizes) == "invented"
        assert rank.read(sizes[:3]) == [1, 1, 7]


def test_conjugated_views_are_read_and_written_conjugated() -> None:
    """torch marks such views and turns their numbers once somebody reads them."""
    for real in (torch.tensor([1 + 2j, 3 - 1j]), torch.full((100, 100), 1 + 2j)):
        rank = FakeRank()
        known = rank.enter(real)
        with rank:
            views = [known.conj(), known.conj()[:1], known.conj().clone(), known * known.conj()]
            imaginary = known.conj().imag
        turned = [real.conj(), real.conj()[:1], real.conj(), real * real.conj()]
        if real.dim() == 1:
            views, turned = [*views, imaginary], [*turned, real.conj().imag]
        for view, expected in zip(views, turned, strict=True):
            reading = rank.values.read(view, "test")
            assert reading.grade == "exact"
            assert_close(reading.value, expected.resolve_conj().resolve_neg())
        assert_close(rank.values.read(known, "test").value, real)
    small = rank.enter(torch.zeros(2, dtype=torch.complex64))
    with rank:
        small.conj()[1:].add_(2 + 1j)
    assert rank.values.read(small, "test").value.tolist() == [0, 2 - 1j]


def test_bytes_of_a_tensor_are_its_bytes() -> None:
    rank = FakeRank()
    state = rank.enter(torch.tensor([258], dtype=torch.int32))
    with rank:
        assert rank.read(state.view(torch.uint8)) == [2, 1, 0, 0]


def test_large_tensors_of_one_number_stay_exact() -> None:
    rank = FakeRank()
    with rank:
        large = torch.full((1000, 1000), 3.0)
        assert rank.read((large.t() * 2 + 1).sum()) == 7_000_000
        assert rank.grade(large[3:5, 7].mean()) == "exact"
        mask = torch.ones(4, 2048, dtype=torch.bool)
        assert rank.read(mask.all()) is True
        assert rank.read((~mask).any()) is False
        large.add_(rank.unknown(1000, 1000))
        assert rank.grade(large.sum()) == "invented"


def test_host_masks_that_are_alike_are_known_at_any_size() -> None:
    rank = FakeRank()
    ones, mixed = torch.ones(8, 4096), torch.rand(8, 4096)
    with rank:
        device = rank.unknown(8, 4096)
        rank.values.observe(aten.copy_.default, (device, ones), {}, device)
        assert rank.read(device.bool().all()) is True
        rank.values.observe(aten.copy_.default, (device, mixed), {}, device)
        assert rank.grade(device.sum()) == "invented"


def test_padded_sequences_are_as_long_as_their_masks_say() -> None:
    rank = FakeRank()
    lengths = [4096, 17, 2048, 1]
    mask = (torch.arange(4096) < torch.tensor(lengths)[:, None]).long()
    with rank:
        device = rank.unknown(4, 4096, dtype=torch.int64)
        rank.values.observe(aten.copy_.default, (device, mask), {}, device)
        assert rank.read(device.sum(dim=-1)) == lengths
        assert rank.read(device.sum(dim=-1).cumsum(0)) == [4096, 4113, 6161, 6162]
        assert rank.read(device.bool().all()) is False
        assert device.flatten().nonzero().shape == (sum(lengths), 1)
        assert rank.grade(device.sum()) == "exact"


def test_whole_numbers_of_the_host_are_followed_exactly_at_the_size_of_batches() -> None:
    rank = FakeRank()
    labels = torch.randint(0, 100, (8, 4096))
    labels[labels < 30] = -100
    count = int((labels[..., 1:] != -100).sum())
    places = torch.arange(4096).remainder(1000)[None]
    with rank:
        device = rank.enter(labels)
        kept = device[..., 1:] != -100
        assert rank.read(kept.sum()) == count
        assert rank.unknown(8, 4095, 16)[kept].shape == (count, 16)
        # Packing: where sequences end follows from positions.
        positions = rank.enter(places)
        starts = torch.nonzero(positions == 0)
        assert rank.read(starts)[:3] == [[0, 0], [0, 1000], [0, 2000]]


def test_whole_numbers_drawn_on_the_device_lie_within_their_bounds() -> None:
    rank = FakeRank()
    with rank:
        # As many frames of video as a script asks for, were there but one number to choose from.
        frames = torch.randint(7, 8, (1,))
        assert (rank.read(frames), rank.grade(frames)) == ([7], "exact")
        drawn = torch.randint(4, (7,))
        assert rank.read(drawn) == [2, 2, 3, 3, 0, 0, 1]
        assert rank.grade(drawn) == "expected"
        assert rank.read(torch.randint(500, 1000, (1, 1))) == [[750]]


def test_a_mask_of_distances_is_exact() -> None:
    grid = torch.cartesian_prod(*2 * (torch.linspace(-0.5, 0.5, 65),))
    coordinates = torch.nn.functional.pad(grid, (0, 1))
    rank = FakeRank()
    with rank:
        within = rank.enter(coordinates).pow(2).sum(-1) <= 0.25
        found = rank.read(within.sum())
    assert found == int((coordinates.pow(2).sum(-1) <= 0.25).sum())


@pytest.mark.parametrize(("length", "grade"), [(64, "exact"), (4096, "invented")])
def test_large_tables_of_sines_are_not_worked_out(length: int, grade: str) -> None:
    rank = FakeRank()
    positions = torch.arange(length)
    with rank:
        places = rank.enter(positions).double()
        assert rank.grade(places.cos()[-1]) == grade
        # What is compared is known at any length.
        assert rank.read((places > 7).sum()) == length - 8


def test_tables_with_a_column_of_whole_numbers_are_followed() -> None:
    rank = FakeRank()
    boxes = torch.rand(48, 6)
    boxes[:, 0] = torch.arange(48) // 3
    with rank:
        device = rank.enter(boxes)
        assert rank.read((device[:, 0] == 5).sum()) == 3
        assert device[device[:, 0] == 5, 1:].shape == (3, 5)
        assert rank.grade(rank.enter(torch.rand(48, 6)).sum()) == "invented"


def test_a_few_numbers_again_and_again_are_followed() -> None:
    rank = FakeRank()
    levels = torch.rand(60).repeat_interleave(100)
    levels[1000:2500] = -torch.inf
    with rank:
        noised = rank.enter(levels).sigmoid() > 0
        assert rank.unknown(6000, 4)[noised].shape == (4500, 4)
        assert rank.grade(noised.sum()) == "exact"
        assert rank.grade(rank.enter(torch.rand(6000)).sum()) == "invented"


def test_seeds_and_forgetting() -> None:
    rank = FakeRank()
    with rank:
        tensor = rank.unknown(2)
    rank.values.seed(tensor, torch.tensor([math.inf, -1.0]))
    assert rank.values.read(tensor, "tolist").value.tolist() == [math.inf, -1.0]
    rank.values.forget(tensor)
    assert rank.values.read(tensor, "tolist").grade == "invented"


def test_a_read_value_is_a_copy() -> None:
    rank = FakeRank()
    flag = rank.enter(torch.tensor([1]))
    rank.values.read(flag, "numpy").value.fill_(9)
    assert rank.values.read(flag, "numpy").value.tolist() == [1]


def test_a_script_with_a_default_device_does_not_disturb() -> None:
    rank = FakeRank()
    flag = rank.enter(torch.tensor([1]))
    with torch.device("meta"), rank:
        assert (flag + 1).device.type == "cpu"
        assert rank.values.read(flag + 1, "item").value.device.type == "cpu"
        assert rank.read(flag + 1) == [2]


def test_nothing_outlives_its_tensor() -> None:
    rank = FakeRank()
    store = rank.values._store
    with rank:
        for number in range(50):
            small = torch.full((4,), number)
            large = torch.zeros(1000, 1000)
            view = large.t()
            chosen = torch.topk(rank.unknown(100, 8), 2)[1]
            assert len(store) >= 2
            del small, large, view, chosen
    gc.collect()
    assert len(store) == 0
    assert len(store._alive) == 0


def test_backward_threads_may_use_it_too() -> None:
    values = Values()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            rank = FakeRank(values)
            start = rank.enter(torch.tensor([number]))
            with rank:
                for _ in range(100):
                    start = start + 1
                assert rank.read(start) == [number + 100]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
