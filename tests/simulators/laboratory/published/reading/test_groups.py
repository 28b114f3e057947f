from dataclasses import replace

import pytest

from tests.simulators.laboratory.published.runs import RUN
from trainscout.simulators.laboratory.published.reading.groups import (
    family_group,
    independent_source,
    scale_group,
    source_group,
)


@pytest.mark.parametrize(
    ("source", "group"),
    [
        (
            "VIA-Research/vTrain@f8dda847:data/ground_truth_multi.csv row 3",
            "vTrain multi-node sweep",
        ),
        ("NVIDIA/dgxc-benchmarking@v25.02:llama3.1/README_8b.md", "NVIDIA dgxc-benchmarking"),
        ("Narayanan et al. 2021 (arXiv 2104.04473) Table 2", "Narayanan 2021 Table 2"),
        ("our/runs@abc:table.csv", "our/runs"),
        ("", "unnamed"),
    ],
)
def test_sources(source, group):
    assert source_group(replace(RUN, source=source)) == group


def test_submitters_of_a_round_of_mlperf_tell_error_bars_together():
    """They run the same containers; results are summed up by submitter."""
    sources = [f"MLPerf Training 5.1 by {name} (GitHub)" for name in ("Dell", "Cisco")]
    rows = [replace(RUN, source=source) for source in (*sources, "MLPerf Training 5.0 by Dell")]
    assert len({source_group(row) for row in rows}) == 3
    assert [independent_source(row) for row in rows] == ["MLPerf 5.1", "MLPerf 5.1", "MLPerf 5.0"]
    assert independent_source(RUN) == source_group(RUN)


@pytest.mark.parametrize(
    ("gpus", "group"),
    [(1, "1-8"), (8, "1-8"), (9, "9-64"), (256, "65-256"), (1024, "257-1024"), (16384, "1025+")],
)
def test_scales(gpus, group):
    assert scale_group(gpus) == group


@pytest.mark.parametrize(
    ("model", "family"),
    [("Llama3.1-405B-proxy(7L)", "llama"), ("MT-NLG-530B", "gpt"), ("GPT-h1024-L12", "gpt")],
)
def test_families(model, family):
    assert family_group(replace(RUN, model=model)) == family
