"""Outputs of nccl-tests as a cluster's curve."""

import pytest

from trainscout.simulators.laboratory.collectives.nccl_tests import main, read_nccl_tests
from trainscout.simulators.predictor.collectives.measured import read_measured_collectives
from trainscout.simulators.predictor.question.errors import InputError

HEAD = "# nThread 1 nGpus 1 minBytes 16777216 maxBytes 1073741824 step: 64(factor) warmup iters: 5"
# size, count, type, redop, root; time, algbw, busbw, #wrong out of place and in place.
ROWS = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     5.70    0.00    0.00      0     5.5    0.00    0.00      0
    16777216       4194304     float     sum      -1    180.0   93.21  {small}      0   178.1   94.20  176.62      0
  1073741824     268435456     float     sum      -1   4600.1  233.42  {large}      0  4590.2  233.92  438.60    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 300.0
"""  # noqa: E501


def output(nodes=2, per_node=8, test="all_reduce_perf", small=174.77, large=437.66):
    ranks = [
        f"#  Rank {rank:2} Group  0 Pid   1887 on   worker-{rank // per_node} device "
        f"{rank % per_node:2} [0x8d] NVIDIA H100 80GB HBM3"
        for rank in range(nodes * per_node)
    ]
    starts = [f"# Collective test starting: {test}"] if test else []
    lines = [*starts, HEAD, "#", "# Using devices", *ranks, "#"]
    return "\n".join(lines) + "\n" + ROWS.format(small=small, large=large)


def written(tmp_path, name="out.txt", **given):
    path = tmp_path / name
    path.write_text(output(**given))
    return path


def test_outputs_become_a_table_that_clusters_read(tmp_path, capsys):
    outputs = [
        written(tmp_path, "a.txt"),
        written(tmp_path, "b.txt", large=400.0),
        written(tmp_path, "c.txt", nodes=64, large=33.0, small=8.0),
        written(tmp_path, "d.txt", test="alltoall_perf"),
    ]
    table = tmp_path / "ours.csv"
    assert main([*map(str, outputs), "--output", str(table)]) == 0
    rows = read_measured_collectives(table)
    found = {(row.kind, row.nodes, row.bytes): row for row in rows}
    assert len(found) == 6
    both = found["all_reduce", 2, 2**30]
    assert (both.high_gbs, both.low_gbs) == (437.66, 400.0)
    assert both.bus_gbs == pytest.approx(418.83)
    assert found["all_reduce", 64, 2**30].bus_gbs == 33.0
    assert ("all_to_all", 2, 2**24) in found
    told = capsys.readouterr().out
    assert f"cluster.measured_collectives={table}" in told
    assert "GPUs a node: 8, taken for all it has" in told


def test_runs_on_parts_of_nodes_do_not_pass_for_others_on_whole_ones(tmp_path):
    """One GPU of each node has one NIC to itself, eight have eight."""
    parts = [written(tmp_path, f"{n}.txt", per_node=n) for n in (1, 8)]
    table = tmp_path / "ours.csv"
    with pytest.raises(InputError, match="1 and 8 GPUs a node") as refused:
        main([*map(str, parts), "--output", str(table)])
    assert refused.value.field == "outputs"
    assert not table.exists()


def test_several_tests_in_one_output_are_kept_apart(tmp_path):
    path = tmp_path / "all.txt"
    path.write_text(output(2) + output(4, test="all_gather_perf") + output(1, test="reduce_perf"))
    timed, left = read_nccl_tests(path)
    assert {(each.kind, each.nodes) for each in timed} == {("all_reduce", 2), ("all_gather", 4)}
    assert left == ["all.txt: reduce_perf has no place in a curve, left out"]


def test_ranks_that_launchers_put_before_lines_are_read_over(tmp_path):
    path = written(tmp_path, "AllReduce-2n.txt", test=None)
    for prefix in ("[1,0]<stdout>:", "0: ", " 0: ", "2025-01-01T00:00:00.12Z stdout F "):
        path.write_text("".join(prefix + line for line in output(test=None).splitlines(True)))
        found, _ = read_nccl_tests(path)
        assert [(each.kind, each.nodes, each.bus_gbs) for each in found] == [
            ("all_reduce", 2, 174.77),
            ("all_reduce", 2, 437.66),
        ]


def test_an_output_may_be_named_by_its_test(tmp_path):
    for name in ("all_gather_perf.txt", "h100_16_all_gather_perf.txt"):
        timed, _ = read_nccl_tests(written(tmp_path, name, test=None))
        assert {each.kind for each in timed} == {"all_gather"}


def test_the_largest_difference_of_older_outputs_is_no_wrong_result(tmp_path):
    path = tmp_path / "old.txt"
    path.write_text(output().replace("437.66      0", "437.66  5e-07"))
    assert [each.bus_gbs for each in read_nccl_tests(path)[0]] == [174.77, 437.66]
    path.write_text(output().replace("437.66      0", "437.66      3"))
    timed, left = read_nccl_tests(path)
    assert len(timed) == len(left) == 1
    path.write_text(output().replace("437.66      0", "437.66 3").replace("174.77      0", "1 3"))
    with pytest.raises(InputError, match="wrong results"):
        read_nccl_tests(path)


@pytest.mark.parametrize(
    ("given", "stated"),
    [
        ({"test": None}, "does not say which collective line"),
        ({"nodes": 0}, "on how many nodes line"),
        ({"test": "broadcast_perf"}, "no row of nccl-tests"),
        ({"nodes": 1, "per_node": 8, "test": None}, "which collective"),
    ],
)
def test_an_output_that_leaves_something_open_is_refused(tmp_path, given, stated):
    with pytest.raises(InputError, match=stated):
        read_nccl_tests(written(tmp_path, **given))


def test_nodes_may_be_said_where_ranks_are_not_listed(tmp_path):
    timed, _ = read_nccl_tests(written(tmp_path, nodes=0), nodes=4)
    assert {each.nodes for each in timed} == {4}


def test_an_uneven_job_and_a_text_of_something_else_are_refused(tmp_path):
    path = tmp_path / "x.txt"
    text = output(2)
    path.write_text(text.replace("#  Rank  0 Group", "#  no Group"))
    with pytest.raises(InputError, match="as many ranks on every node"):
        read_nccl_tests(path)
    path.write_text("nothing\n")
    with pytest.raises(InputError, match="no row of nccl-tests"):
        read_nccl_tests(path)


def test_what_one_thread_takes_to_launch_is_no_call(tmp_path):
    # Calls on eight GPUs that one thread drives take 34 us, whatever they send.
    path = tmp_path / "out.txt"
    text = output(nodes=1).replace("   180.0 ", "    43.8 ")
    path.write_text(text)
    assert [each.bytes for each in read_nccl_tests(path)[0]] == [2**24, 2**30]
    path.write_text(text.replace("nGpus 1", "nGpus 8"))
    timed, left = read_nccl_tests(path)
    assert [each.bytes for each in timed] == [2**30]
    assert "1 sizes take less than 3 times what one thread takes to launch on its GPUs" in left[0]
