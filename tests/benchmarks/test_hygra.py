"""The page of HyGra's tables: rows that are renewed, and the step that all kinds are played in."""

from __future__ import annotations

import numpy as np
import pytest
from rich.table import Table

from benchmarks.hygra import fabric_of, hops_of, with_rows
from benchmarks.hygra_patterns import mixed

PAGE = """# Before

<!-- singles -->
| nodes | of | MB | speed |
|---|---|---|---|
| 64 | PP | 16 | 3x |
| 64 | TP | 16 | 20x |
<!-- end -->

after
"""


def test_rows_that_were_played_again_are_renewed_and_the_others_stay() -> None:
    table = Table("nodes", "of", "MB", "speed")
    table.add_row("64", "PP", "16", "4x")
    table.add_row("1,024", "PP", "16", "5x")
    page = with_rows(PAGE, "singles", table)
    assert page == PAGE.replace("|---|---|---|---|", "| --- | --- | --- | --- |").replace(
        "| 64 | PP | 16 | 3x |", "| 64 | PP | 16 | 4x |"
    ).replace("| 64 | TP | 16 | 20x |\n", "| 64 | TP | 16 | 20x |\n| 1,024 | PP | 16 | 5x |\n")
    assert with_rows(page, "singles", table) == page


@pytest.mark.parametrize("hosts", [64, 256])
def test_in_a_mixed_step_flows_wait_for_what_reached_their_host(hosts: int) -> None:
    what = mixed(fabric_of(hosts))
    links = what.routes.links
    source, arrives = links[:, 0], links.max(axis=1, where=links < 2 * hosts, initial=-1) - hosts
    assert what.after is not None
    later, earlier = what.after.T
    assert (arrives[earlier] == source[later]).all()
    assert (earlier < later).all()
    # Each of 4 micro-batches: a ring and an exchange of every host's, three of four send on;
    # and one ring of gradients.
    shares = np.bincount(source, weights=np.broadcast_to(what.share, len(source)), minlength=hosts)
    sent = np.repeat([4 * 3 + 1.0] * 3 + [4 * 2 + 1.0], hosts // 4)
    assert shares == pytest.approx(sent)
    assert hops_of(what, 4096.0) == pytest.approx(
        float((np.broadcast_to(what.share, len(links))[:, None] * (links >= 0)).sum())
    )
