"""The HTML page: whole, self-contained, and with every cell in it."""

import copy
import re
from html.parser import HTMLParser
from pathlib import Path

from planning.goodput import Reliability
from planning.outcome import run_study
from planning.store import AnswerStore
from planning.study import Study, Target
from reports.capacity.page import study_page
from reports.capacity.record import study_record
from tests.planning.fakes import SETTINGS, TRAINING, answer, declarations

VOID = {"meta", "line", "polyline"}


class Outline(HTMLParser):
    """Checks that tags close in order, and collects texts and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.text = ""

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert not any(name in ("src", "href") for name, _ in attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_data(self, data):
        self.text += data


def record_of(tmp_path: Path):
    study = Study(
        "toy",
        ("small",),
        ("here", "there"),
        TRAINING,
        num_gpus=(8, 16, 32),
        targets={"fits": Target()},
    )
    outcome = run_study(
        study,
        declarations(),
        Reliability(),
        AnswerStore(tmp_path, SETTINGS),
        lambda asked: answer(16 / asked.num_gpus**0.9),
        n_jobs=1,
        on_progress=lambda _: None,
    )
    return study_record(outcome, started="today", commit="abc", groups={})


def read(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    return outline


def test_the_page_holds_every_cell_and_needs_nothing_else(tmp_path):
    record = record_of(tmp_path)
    page = study_page(record, ["Take 8 < 16."], ["A note."])
    outline = read(page)
    assert outline.counts["svg"] == 2
    assert outline.counts["polyline"] == 4
    # Heads and bodies: 6 cells, 6 sizes, effects, one other cluster.
    effects = len(record["models"][0]["effects"])
    assert outline.counts["tr"] == (1 + 6) + (1 + 6) + (1 + effects) + (1 + 1)
    assert "Take 8 < 16." in outline.text
    assert not re.search(r"https?://|url\(|@import", page)
    # Every mark lies within its plot.
    for x, y in re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)"[^>]*>[●■]', page):
        assert 0 < float(x) < 640
        assert 0 < float(y) < 340


def test_what_nothing_fits_is_shown_with_its_reason(tmp_path):
    record = copy.deepcopy(record_of(tmp_path))
    for cell in record["cells"]:
        cell["status"], cell["reason"] = "nothing_fits", "lacks <3 GiB>"
    record["models"][0] |= {"scaling": [], "effects": [], "break_evens": [], "answer": None}
    outline = read(study_page(record, ["Nothing fits."], []))
    assert "svg" not in outline.counts
    assert outline.text.count("lacks <3 GiB>") == 6
