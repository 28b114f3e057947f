"""Contrast by WCAG 2.2: text at least 4.5, marks at least 3, in light and in dark."""

import re
from pathlib import Path

import pytest

import trainscout.reports.search_page

THEME = Path(trainscout.reports.search_page.__file__).with_name("assets") / "theme.css"
BLOCKS = re.findall(r"\{([^{}]*--ink:[^{}]*)\}", THEME.read_text(encoding="utf-8"))
COLOURS = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in BLOCKS]
TEXT = ("ink", "faint", "accent", "bad")
MARKS = tuple(f"c{number}" for number in range(8))


def luminance(colour):
    def linear(value):
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_dark_is_the_same_however_it_is_chosen():
    light, by_system, by_hand = COLOURS
    assert by_system == by_hand
    assert light.keys() == by_hand.keys()


@pytest.mark.parametrize("colours", COLOURS[:2], ids=("light", "dark"))
def test_text_can_be_read(colours):
    for ground in ("paper", "soft", "mark"):
        assert contrast(colours["ink"], colours[ground]) >= 7
    for name in TEXT:
        for ground in ("paper", "soft"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


@pytest.mark.parametrize("colours", COLOURS[:2], ids=("light", "dark"))
def test_marks_can_be_seen(colours):
    for name in MARKS:
        assert contrast(colours[name], colours["paper"]) >= 3, name
