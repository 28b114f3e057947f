"""The picture of a search, for notebooks."""

import xml.etree.ElementTree as ElementTree

import pytest

from trainscout.reports.front_picture import Picture
from trainscout.reports.front_plot import Axis, FrontPlot, Spot
from trainscout.simulators.predictor.question.errors import InputError

SVG = "{http://www.w3.org/2000/svg}"
UP = Axis("step time", "s", lambda p: p.step_time_s)
ACROSS = Axis("memory a GPU needs", "GiB", lambda p: 0.0)
SPOTS = (
    Spot(40.0, 10.0, fits=True, front=True, label="#1", name="a"),
    Spot(40.1, 10.01, fits=True, front=True, label="#2", name="b"),
    Spot(30.0, 12.0, fits=True, front=True, label="#3", name="c"),
    Spot(35.0, 11.5, fits=True, front=True, label="#4", name="a"),
    Spot(60.0, 11.0, fits=True, front=False),
    Spot(74.0, 9.5, fits=False, front=False),
    Spot(50.0, 99.0, fits=True, front=False),
)


def drawn(spots=SPOTS, title="a <question> & more"):
    plot = FrontPlot(ACROSS, UP, spots, 75.0, "nothing is better in both")
    return ElementTree.fromstring(Picture(plot, title).to_svg())


def texts(root):
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def test_every_recipe_within_reach_is_a_mark_and_the_others_are_counted():
    root = drawn()
    assert len(list(root.iter(f"{SVG}circle"))) == 5
    assert len(list(root.iter(f"{SVG}path"))) == 1
    assert any("1 lie outside" in text for text in texts(root))
    assert "a <question> & more" in texts(root)


def test_faster_is_lower_down_and_more_memory_further_right():
    best, _, large, _, slow = sorted(
        (-float(c.get("cy")), float(c.get("cx"))) for c in drawn().iter(f"{SVG}circle")
    )
    assert best < large < slow
    assert large[1] > best[1] > slow[1]


def test_labels_that_would_lie_on_each_other_leave_the_best_and_each_name_stands_once():
    assert {text for text in texts(drawn()) if ": " in text} == {"#1 a: 10 s", "c: 12 s"}


def test_layouts_stand_inside_the_picture():
    last = Spot(74.0, 9.9, fits=True, front=True, label="#4", name="tp8 pp2 cp2 ep8")
    unranked = Spot(20.0, 13.0, fits=True, front=True, name="tp1 pp1")
    root = drawn((*SPOTS, last, unranked))
    ends = {"".join(t.itertext()): t.get("text-anchor") for t in root.iter(f"{SVG}text")}
    assert ends["tp8 pp2 cp2 ep8: 9.9 s"] == "end"
    assert ends["tp1 pp1: 13 s"] == "start"
    floor = min(
        float(t.get("y")) for t in root.iter(f"{SVG}text") if t.get("text-anchor") == "middle"
    )
    assert all(
        float(t.get("y")) < floor for t in root.iter(f"{SVG}text") if "tp" in "".join(t.itertext())
    )


def test_it_is_saved_whole_or_refused(tmp_path):
    picture = Picture(FrontPlot(ACROSS, UP, SPOTS, None, "front"), "title")
    picture.save(tmp_path / "recipes.svg")
    assert (tmp_path / "recipes.svg").read_text("utf-8").rstrip().endswith("</svg>")
    with pytest.raises(InputError, match="cannot be written"):
        picture.save(tmp_path / "no/such/place.svg")
