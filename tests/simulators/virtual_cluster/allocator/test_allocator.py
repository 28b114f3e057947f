"""The caching allocator: what PyTorch documents, and a plain twin."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.predictor.memory.naive_allocator import NaiveAllocator
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.allocator.allocator import Allocator, OutOfMemory
from trainscout.simulators.virtual_cluster.allocator.allocator_settings import AllocatorSettings
from trainscout.simulators.virtual_cluster.allocator.segments import Block

MIB = 2**20
GIB = 2**30


def allocator(text: str = "", capacity: int = 8 * GIB) -> Allocator:
    return Allocator(capacity, AllocatorSettings.parse(text))


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # What would be left, 1 MiB, is not split off.
        (11 * MIB, 12 * MIB, 12 * MIB),
        (100 * MIB + 1, 100 * MIB + 512, 102 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(requested: int, block: int, segment: int) -> None:
    one = allocator()
    assert one.allocate(requested).bytes == block
    assert one.reserved_bytes == segment
    assert one.requested_bytes == requested


def test_a_remainder_of_a_large_block_is_split_off_only_above_one_mebibyte() -> None:
    one = allocator()
    # 18.5 MiB of a segment of 20: what is left is split off; of 19 MiB it is not.
    one.free(one.allocate(20 * MIB))
    first = one.allocate(18 * MIB + MIB // 2)
    assert first.bytes == 18 * MIB + MIB // 2
    one.free(first)
    assert one.allocate(19 * MIB).bytes == 20 * MIB
    assert one.reserved_bytes == 20 * MIB


def test_freed_neighbours_join_and_serve_a_larger_request() -> None:
    one = allocator()
    blocks = [one.allocate(5 * MIB) for _ in range(4)]
    assert one.reserved_bytes == 20 * MIB
    for place in (0, 2, 1, 3):
        one.free(blocks[place])
    assert one.allocate(20 * MIB).bytes == 20 * MIB
    assert one.reserved_bytes == 20 * MIB


def test_best_fit_takes_the_smallest_block_that_is_large_enough() -> None:
    one = allocator()
    large, small = one.allocate(60 * MIB), one.allocate(40 * MIB)
    at = small.address
    one.free(large)
    one.free(small)
    assert one.allocate(30 * MIB).address == at


def test_streams_and_size_classes_share_nothing() -> None:
    one = allocator()
    one.free(one.allocate(30 * MIB, stream=0))
    one.allocate(30 * MIB, stream=1)
    assert one.reserved_bytes == 60 * MIB
    one.allocate(512, stream=0)
    assert one.reserved_bytes == 62 * MIB


def test_a_recorded_stream_holds_memory_until_it_has_passed() -> None:
    one = allocator()
    block = one.allocate(30 * MIB)
    one.record_stream(block, 7)
    number = one.free(block)
    assert number is not None
    assert (one.allocated_bytes, one.active_bytes) == (0, 30 * MIB)
    one.allocate(30 * MIB)
    assert one.reserved_bytes == 60 * MIB
    one.stream_passed(3)
    assert one.active_bytes == 60 * MIB
    one.stream_passed(7, number)
    assert one.active_bytes == 30 * MIB
    one.allocate(30 * MIB)
    assert one.reserved_bytes == 60 * MIB


def test_a_block_waits_for_every_recorded_stream() -> None:
    one = allocator()
    block = one.allocate(30 * MIB)
    for stream in (1, 2, 2, 0):
        one.record_stream(block, stream)
    one.free(block)
    one.stream_passed(1)
    assert one.active_bytes == 30 * MIB
    one.stream_passed(2)
    assert one.active_bytes == 0


def test_own_stream_recorded_defers_nothing() -> None:
    one = allocator()
    block = one.allocate(MIB, stream=4)
    one.record_stream(block, 4)
    assert one.free(block) is None


def test_deferred_memory_is_waited_for_before_running_out() -> None:
    one = allocator(capacity=40 * MIB)
    block = one.allocate(30 * MIB)
    one.record_stream(block, 1)
    one.free(block)
    one.allocate(30 * MIB)
    assert one.retries == 1
    assert one.reserved_bytes == 30 * MIB


def test_cached_memory_is_given_back_before_running_out() -> None:
    one = allocator(capacity=100 * MIB)
    one.free(one.allocate(60 * MIB))
    kept = one.allocate(30 * MIB)
    assert one.reserved_bytes == 60 * MIB
    # Half of the cached segment is in use, so it cannot be given back.
    with pytest.raises(OutOfMemory):
        one.allocate(80 * MIB)
    one.free(kept)
    one.allocate(80 * MIB)
    assert one.reserved_bytes == 80 * MIB
    assert one.retries == 2
    assert one.out_of_memories == 1


def test_running_out_says_what_torch_says() -> None:
    one = Allocator(80 * GIB, outside_bytes=GIB // 2)
    one.allocate(60 * GIB)
    with pytest.raises(OutOfMemory) as raised:
        one.allocate(20 * GIB)
    error = raised.value
    assert str(error).startswith(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 80.00 GiB "
        "of which 19.50 GiB is free. Including non-PyTorch memory, this process has 60.50 GiB "
        "memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 0 bytes is"
    )
    assert error.free_bytes == 19.5 * GIB
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert one.allocated_bytes == 60 * GIB


def test_a_memory_fraction_limits_the_process() -> None:
    one = allocator(capacity=100 * MIB)
    one.limit(0.5)
    with pytest.raises(OutOfMemory, match=r"50\.00 MiB allowed"):
        one.allocate(60 * MIB)
    with pytest.raises(InputError, match="memory_fraction"):
        one.limit(1.5)


def test_garbage_collection_gives_old_segments_back_before_new_ones_are_taken() -> None:
    one = allocator("garbage_collection_threshold:0.5", capacity=200 * MIB)
    one.limit(1.0)
    one.free(one.allocate(60 * MIB))
    one.free(one.allocate(70 * MIB))
    # 130 of 200 MiB are above the threshold; the older segment goes first and suffices.
    one.allocate(80 * MIB)
    assert one.reserved_bytes == 150 * MIB
    assert one.retries == 0


def test_garbage_collection_takes_all_older_segments_and_not_only_what_suffices() -> None:
    one = allocator("garbage_collection_threshold:0.5", capacity=200 * MIB)
    one.limit(1.0)
    for block in [one.allocate(40 * MIB), one.allocate(46 * MIB)]:
        one.free(block)
    one.free(one.allocate(50 * MIB))
    # Either of the first two would do.
    one.allocate(60 * MIB)
    assert one.reserved_bytes == 110 * MIB


def test_unsplittable_blocks_serve_only_large_requests() -> None:
    one = allocator("max_split_size_mb:50")
    one.free(one.allocate(60 * MIB))
    one.allocate(30 * MIB)
    assert one.reserved_bytes == 90 * MIB
    # 55 MiB take the block whole, with less than 20 MiB to waste.
    assert one.allocate(55 * MIB).bytes == 60 * MIB
    one.free(one.allocate(120 * MIB))
    assert one.allocate(90 * MIB).bytes == 90 * MIB


def test_oversize_blocks_are_given_back_first() -> None:
    one = allocator("max_split_size_mb:50", capacity=200 * MIB)
    one.free(one.allocate(120 * MIB))
    one.free(one.allocate(30 * MIB))
    # 120 MiB would waste too much of themselves; giving them back suffices.
    one.allocate(90 * MIB)
    assert one.reserved_bytes == 120 * MIB
    # What can be given back so is less than 110 MiB: everything cached goes.
    one.allocate(110 * MIB)
    assert one.reserved_bytes == 200 * MIB
    assert one.retries == 1


@pytest.mark.parametrize("expands", [False, True])
def test_large_segments_are_as_large_as_asked_for(expands: bool) -> None:
    one = allocator(f"large_segment_size_mb:12,expandable_segments:{expands}")
    one.allocate(5 * MIB)
    assert one.reserved_bytes == 12 * MIB
    one.allocate(30 * MIB)
    assert one.reserved_bytes == (36 if expands else 42) * MIB


@pytest.mark.parametrize(
    ("text", "requested", "rounded"),
    [
        # Small requests keep to multiples of 512 bytes.
        ("roundup_power2_divisions:4", 1200, 1536),
        ("roundup_power2_divisions:4", 100 * MIB, 112 * MIB),
        ("roundup_power2_divisions:4", 128 * MIB, 128 * MIB),
        ("roundup_power2_divisions:[64:1,128:2,>:4]", 60 * MIB + 1, 60 * MIB + 512),
        ("roundup_power2_divisions:[64:1,128:2,>:4]", 130 * MIB, 192 * MIB),
        ("roundup_power2_divisions:[64:1,128:2,>:4]", 300 * MIB, 320 * MIB),
    ],
)
def test_requests_round_up_to_divisions_of_powers_of_two(
    text: str, requested: int, rounded: int
) -> None:
    assert AllocatorSettings.parse(text).rounded(requested) == rounded


def test_expandable_segments_join_where_plain_ones_cannot() -> None:
    sizes = [30 * MIB, 50 * MIB, 80 * MIB]
    reserved = {}
    for text in ("", "expandable_segments:True"):
        one = allocator(text)
        for size in sizes:
            one.free(one.allocate(size))
        reserved[text] = one.reserved_bytes
    # One segment grew in pages of 20 MiB; the others could not grow.
    assert reserved == {"": 160 * MIB, "expandable_segments:True": 80 * MIB}


def test_expandable_segments_split_everything_and_give_whole_pages_back() -> None:
    one = allocator("expandable_segments:True")
    low, high = one.allocate(30 * MIB), one.allocate(45 * MIB)
    assert one.reserved_bytes == 80 * MIB
    one.free(high)
    one.empty_cache()
    # The first block still needs half of the second page.
    assert one.reserved_bytes == 40 * MIB
    assert one.allocate(60 * MIB).address == low.address + 30 * MIB
    assert one.reserved_bytes == 100 * MIB
    one.free(low)
    one.empty_cache()
    assert one.reserved_bytes == 80 * MIB


def test_figures_have_torchs_names() -> None:
    one = allocator()
    one.free(one.allocate(3 * MIB))
    one.allocate(1000)
    stats = one.memory_stats()
    assert stats["allocated_bytes.all.current"] == 1024
    assert stats["requested_bytes.all.current"] == 1000
    assert stats["allocated_bytes.all.peak"] == 3 * MIB
    assert stats["reserved_bytes.all.current"] == 22 * MIB
    assert stats["segment.all.current"] == 2
    assert stats["inactive_split_bytes.all.current"] == 2 * MIB - 1024
    one.reset_peaks()
    assert one.peak_allocated_bytes == 1024


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("max_split_size_mb:20", "max_split_size_mb"),
        ("large_segment_size_mb:10", "large_segment_size_mb"),
        ("max_split_sise_mb:40", "max_split_size_mb"),
        ("expandable_segments:true", "expandable_segments"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions"),
        ("roundup_power2_divisions:[a:2]", "roundup_power2_divisions"),
        ("garbage_collection_threshold:1.5", "garbage_collection_threshold"),
        ("garbage_collection_threshold:x", "garbage_collection_threshold"),
        ("backend:cudaMallocAsync", "backend"),
        ("expandable_segments", "name:value"),
    ],
)
def test_wrong_settings_are_refused(text: str, field: str) -> None:
    with pytest.raises(InputError, match=field):
        AllocatorSettings.parse(text)


def test_settings_of_other_parts_are_accepted() -> None:
    text = " backend:native, pinned_use_cuda_host_register:True,expandable_segments:False"
    assert AllocatorSettings.parse(text) == AllocatorSettings()


def test_misuse_is_refused() -> None:
    one = allocator()
    block = one.allocate(10)
    one.free(block)
    with pytest.raises(InputError, match="not allocated"):
        one.free(block)
    with pytest.raises(InputError, match="requested_bytes"):
        one.allocate(0)
    with pytest.raises(InputError, match="outside_bytes"):
        Allocator(10, outside_bytes=11)


_SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(8 * MIB, 40 * MIB))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), _SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
    ),
    max_size=60,
)


@given(_STEPS, st.integers(24, 200))
def test_it_does_what_a_plain_twin_does(steps: list[tuple[str, int, int]], capacity: int) -> None:
    one, twin = Allocator(capacity * MIB), NaiveAllocator(capacity * MIB)
    live: list[Any] = []
    for action, number, stream in steps:
        if action == "free":
            if live:
                block, piece = live.pop(number % len(live))
                one.free(block)
                twin.free(piece)
        else:
            piece = twin.allocate(number, stream)
            if piece is None:
                with pytest.raises(OutOfMemory):
                    one.allocate(number, stream)
            else:
                block = one.allocate(number, stream)
                assert (block.address, block.bytes) == (piece.address, piece.bytes)
                live.append((block, piece))
        assert one.reserved_bytes == twin.reserved()
        assert one.allocated_bytes == twin.allocated()


def every_block(one: Allocator) -> list[Block]:
    blocks = [block for block in one._live.values() if not block.idle]
    blocks += [block for pool in one._pools for block in pool.all_free()]
    return sorted(blocks, key=lambda block: block.address)


@given(
    _STEPS,
    st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:21"]),
    st.randoms(use_true_random=False),
)
def test_blocks_never_overlap_and_nothing_is_lost(steps, text, random) -> None:  # type: ignore[no-untyped-def]
    one = allocator(text, capacity=160 * MIB)
    live: list[Any] = []
    for action, number, stream in steps:
        if action == "free":
            if live:
                one.free(live.pop(number % len(live)))
        else:
            try:
                live.append(one.allocate(number, stream))
            except OutOfMemory:
                continue
            if random.random() < 0.3:
                one.record_stream(live[-1], 5)
        if random.random() < 0.2:
            one.stream_passed(5)
        blocks = every_block(one)
        ends = [block.address + block.bytes for block in blocks]
        starts = [block.address for block in blocks]
        assert all(end <= start for end, start in zip(ends[:-1], starts[1:], strict=True))
        assert sum(block.bytes for block in blocks) == one.reserved_bytes <= 160 * MIB
        held = sum(block.bytes for block in blocks if block.allocated)
        assert held == one.allocated_bytes == sum(block.bytes for block in live)
        free = [block.bytes for block in blocks if block.idle]
        assert sum(free) == one.reserved_bytes - one.active_bytes
        assert max(free, default=0) == one.largest_free_bytes
    for block in live:
        one.free(block)
    one.empty_cache()
    assert one.reserved_bytes == one.active_bytes == 0
    assert every_block(one) == []
