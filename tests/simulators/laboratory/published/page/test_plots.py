import json
import re

import pytest

pytest.importorskip("matplotlib")

from tests.simulators.laboratory.published.runs import RUN, TwoSeconds, declarations
from tests.simulators.laboratory.published.test_report import ROWS
from trainscout.simulators.laboratory.published.page.plots import (
    error_plot,
    gpu_generation,
    step_time_plot,
    validation_html,
)
from trainscout.simulators.laboratory.published.replay import replay_rows
from trainscout.simulators.laboratory.published.report import validation_report


@pytest.fixture(scope="module")
def report():
    results = replay_rows(ROWS, declarations(), TwoSeconds(), lambda: None)
    return validation_report(results, ("A", "B"), ())


def test_drawings_are_the_same_every_time(report):
    drawn = step_time_plot(report["rows"])
    assert drawn == step_time_plot(report["rows"])
    assert drawn.startswith("<?xml")
    assert "H100 (2)" in drawn
    assert "Somebody 2024 (2)" in error_plot(report["rows"])


def test_gpus_of_one_kind_share_a_colour():
    assert gpu_generation("H100-80GB-SXM") == "H100"
    assert gpu_generation("B200-180GB (power limited)") == "B200"


def test_the_page_to_browse_needs_nothing_from_outside(report):
    text = validation_html(report)
    fetched = r"(?:src|href)=[\"'][^#\"'][^\"']*|@import|url\([^#]|fetch\("
    assert re.findall(fetched, text) == []
    assert "prefers-color-scheme: dark" in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["overall"] == report["overall"]


def test_what_a_row_says_cannot_end_the_script(report):
    hostile = {**report, "skipped": [{"id": RUN.id, "reason": "</script><b>&amp;"}]}
    assert "</script><b>" not in validation_html(hostile)
