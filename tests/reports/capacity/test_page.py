"""The HTML page: whole, self-contained, and with every cell in it."""

import copy
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.planning.fakes import SETTINGS, TRAINING, answer, declarations
from trainscout.planning.goodput import Reliability
from trainscout.planning.outcome import run_study
from trainscout.planning.store import AnswerStore
from trainscout.planning.study import Study, Target
from trainscout.reports.capacity.page import Axis, Mark, Series, figure, study_page
from trainscout.reports.capacity.study_files import study_record

VOID = {"meta", "line", "polyline", "rect", "circle", "br"}


class Outline(HTMLParser):
    """Checks that tags close in order, and collects texts and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.text = ""

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert not any(
            name == "src" or (name == "href" and not value.startswith("#"))
            for name, value in attributes
        )
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_data(self, data):
        self.text += data


def record_of(tmp_path: Path, **changes):
    study = Study(
        "toy",
        ("small",),
        ("here", "there"),
        TRAINING,
        num_gpus=(8, 16, 32),
        targets={"fits": Target(), "soon": Target(days=100)},
        price_scenarios={"spot": {"other": 0.5}},
    )
    outcome = run_study(
        replace(study, **changes),
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
    effects = len(record["models"][0]["effects"])
    assert outline.counts["svg"] == 2 + effects
    assert outline.counts["polyline"] == 4
    # Heads and bodies: front and cells, effects, one other cluster, one other price list,
    # the largest of both clusters and all six sizes.
    front = sum(cell["pareto"] for cell in record["cells"])
    rows = (front, 6, effects, 1, 1, 2, 6)
    assert outline.counts["tr"] == sum(rows) + len(rows)
    assert "The cheapest" in outline.text
    assert "Since the last run" not in outline.text
    assert not re.search(r"https?://|url\(|@import", page)
    # Every mark lies within its plot; one of them is the answer.
    for x, y in re.findall(r'<text class="mark of\d" x="([\d.-]+)" y="([\d.-]+)"', page):
        assert 0 < float(x) < 480
        assert 0 < float(y) < 300
    assert outline.counts["circle"] == 1


def test_the_fabrics_of_a_cluster_are_told_apart(tmp_path):
    page = study_page(record_of(tmp_path, oversubscription=(1.0, 4.0)), ["a"], [])
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', page)
    names = [re.findall(r"</span> (.*?)</li>", legend) for legend in legends]
    assert len(names) == 2
    assert names[0] == names[1]
    assert len(set(names[0])) == 4  # two clusters, each with two fabrics
    assert {name.rpartition(", ")[2] for name in names[0] if name.endswith(":1")} == {"4:1"}
    bends = page.partition("Why scaling bends")[2].partition("</table>")[0]
    assert set(re.findall(r"<tr><td>(.*?)</td>", bends)) == set(names[0])
    # One line for each, in both plots.
    assert read(page).counts["polyline"] == 8


def test_what_a_fabric_saves_for_each_percent_is_shown(tmp_path):
    record = copy.deepcopy(record_of(tmp_path, oversubscription=(1.0, 4.0)))
    assert "Fabrics at" not in study_page(record, ["a"], [])
    (model,) = record["models"]
    dear, cheap = [each for each in record["cells"] if each["num_gpus"] == 8][:2]
    model["fabrics"] = [
        {"cell": cell["key"], "switches": 3, "cables": 64, "usd": usd, "slower": slower,
         "usd_per_percent": per, "recipe_changed": per is not None}
        for cell, usd, slower, per in ((dear, 3.4e6, 0.0, None), (cheap, 2.34e6, 0.019, 544e3))
    ]  # fmt: skip
    table = study_page(record, ["a"], []).partition("Fabrics at")[2].partition("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    assert ["$544 k" in row and "another is best" in row for row in rows] == [False, True]
    assert "4:1" in rows[1]


def test_differences_are_told(tmp_path):
    record = record_of(tmp_path)
    assert "nothing changed" in read(study_page(record, [""], [], [])).text
    text = read(study_page(record, [""], [], ["usd of x: $1 -> $2", "another"])).text
    assert "Since the last run: 2 changes" in text
    assert "usd of x: $1 -> $2" in text


def test_what_nothing_fits_is_shown_with_its_reason(tmp_path):
    record = copy.deepcopy(record_of(tmp_path))
    for cell in record["cells"]:
        cell["status"], cell["reason"] = "nothing_fits", "lacks <3 GiB>"
    record["models"][0] |= {"scaling": [], "effects": [], "break_evens": [], "answer": None}
    outline = read(study_page(record, ["Nothing fits."], []))
    assert "svg" not in outline.counts
    assert outline.text.count("lacks <3 GiB>") == 6


def test_gpus_of_ones_own_may_cost_nothing(tmp_path):
    for free in ("all", "one cluster's"):
        record = copy.deepcopy(record_of(tmp_path))
        for cell in record["cells"]:
            if free == "all" or cell["cluster"] == "here":
                cell["usd"] = 0.0
        outline = read(study_page(record, [""], []))
        assert outline.counts["polyline"] == 4
        assert "$0" in outline.text


def test_what_a_user_named_is_text(tmp_path):
    record = copy.deepcopy(record_of(tmp_path))
    name = "<b>&\"'"
    record["name"] = record["models"][0]["model"] = name
    for cell in record["cells"]:
        cell["model"] = cell["cluster"] = cell["recipe_words"] = name
    for curve in record["models"][0]["scaling"]:
        curve["cluster"] = name
    outline = read(study_page(record, [name], [name], [name]))
    assert "b" not in outline.counts
    assert outline.text.count(name) > 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_and_asks_for_nothing_else(tmp_path, open_page, scheme):
    path = tmp_path / "report.html"
    path.write_text(study_page(record_of(tmp_path), ["Take 8."], ["A note."]), encoding="utf-8")
    opened = open_page(path, scheme=scheme)
    page = opened.page
    assert not opened.errors
    assert not opened.requests
    # Nothing is wider than a laptop's screen.
    assert page.evaluate("document.documentElement.scrollWidth") <= 1366
    for plot in page.locator("figure svg").all():
        box = plot.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 150
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    links = [link.get_attribute("href") for link in page.locator("nav a").all()]
    assert len(links) > 4
    assert all(page.locator(link).count() == 1 for link in links)
    folded = page.locator("details", has_text="that fit")
    cell = folded.locator("tbody tr").first
    assert not cell.is_visible()
    folded.locator("summary").click()
    assert cell.is_visible()


def test_ticks_are_round_and_enough():
    for low, high in ((3.0, 4.0), (1.0, 90.0), (1e5, 3e5), (0.01, 1e6)):
        marks = [Mark(low, low, ""), Mark(high, high, "")]
        axis = Axis("x", lambda value: f"@{value:g}", logarithmic=True)
        shown = re.findall(
            r"@([\d.e+-]+)<", figure("t", "", axis, axis, [Series("a", marks)], ["a"])
        )
        across = shown[: len(shown) // 2]
        assert 3 <= len(across) <= 14
        assert all(low / 1.2 <= float(tick) <= high * 1.2 for tick in across)
        assert all(float(f"{float(tick):.1e}") == float(tick) for tick in across)


def test_a_limit_is_drawn_where_it_is_in_sight():
    marks = [Mark(1.0, 1.0, ""), Mark(10.0, 10.0, "")]
    limits = [(5.0, "month"), (1000.0, "far")]
    axis = Axis("x", lambda value: f"{value:g}", logarithmic=True, limits=limits)
    drawn = figure("t", "", axis, axis, [Series("a", marks)], ["a"])
    assert drawn.count("month") == 2
    assert "far" not in drawn
