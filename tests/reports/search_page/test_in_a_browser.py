"""The report as a reader has it: drawn, clicked, typed into and printed in headless Chromium."""

from dataclasses import replace

import pytest

from tests.browser import LAPTOP, open_in
from tests.reports.search_page.searches import nothing_fits, searched, several_objectives
from tests.reports.search_page.test_page import HOSTILE, hostile
from trainscout.reports.search_page.page import search_page
from trainscout.simulators.virtual_cluster.traced.verification import (
    RankCheck,
    RankFigures,
    Verification,
)


def write_page(given, path):
    path.write_text(search_page(given), encoding="utf-8")
    return path


@pytest.fixture
def opened(open_page, tmp_path):
    """``opened(searched, **settings)``: the page of its report, which must have no complaints."""
    pages = []

    def open_one(given, **settings):
        pages.append(
            open_page(write_page(given, tmp_path / f"report{len(pages)}.html"), **settings)
        )
        pages[-1].page.wait_for_selector("html[data-ready]", timeout=10_000)
        return pages[-1].page

    yield open_one
    for each in pages:
        assert each.errors == each.requests == []


@pytest.fixture(scope="module")
def window(browser, tmp_path_factory):
    """One report in one window, which ``page`` shows each test afresh."""
    path = write_page(searched(), tmp_path_factory.mktemp("report") / "report.html")
    opened = open_in(browser, path)
    yield opened
    opened.page.context.close()


def marks(page, selector):
    """How many elements of a chart take up room."""
    return page.locator(selector).evaluate_all(
        "all => all.filter(e => e.getBoundingClientRect().width > 0).length"
    )


def text(page, selector):
    return page.locator(selector).inner_text()


@pytest.fixture
def page(window):
    window.page.emulate_media(media="screen")
    window.page.reload()
    window.page.wait_for_selector("html[data-ready]", timeout=10_000)
    yield window.page
    assert window.errors == window.requests == []


def test_the_answer_comes_first_and_fits_a_laptop(page):
    search = searched().shown[0].prediction
    assert text(page, "h1").startswith("Run tp")
    assert f"{search.mfu * 100:.1f} %" in text(page, ".cards")
    for card in page.locator(".card").all():
        assert card.bounding_box()["y"] + card.bounding_box()["height"] < LAPTOP[1]
    assert page.locator(".card .grade").count() >= 4


def test_every_figure_has_marks(page):
    for selector, least in (
        ("#why figure:nth-of-type(1) rect", 3),
        ("#why figure:nth-of-type(2) rect.edge", 7),
        ("#tradeoffs .scatter path.marks", 1),
        ("#tradeoffs canvas", 1),
        ("#layouts .map button", 16),
        ("#memory svg rect.edge", 7),
        ("#pipeline path[data-kind=forward]", 1),
        ("#pipeline path[data-kind=backward]", 1),
        ("#sure figure:nth-of-type(1) .whisker", 7),
        ("#sure figure:nth-of-type(2) rect.more", 5),
        ("#trials tbody tr", 13),
        ("#launch pre", 1),
        ("#particulars dd", 10),
    ):
        assert marks(page, selector) >= least, selector


def test_lines_are_painted_between_the_knobs(page):
    page.wait_for_timeout(100)
    painted = page.locator("#tradeoffs canvas").evaluate(
        "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0)"
    )
    assert painted


def test_every_chart_has_a_text_alternative(page):
    for chart in page.locator("main svg[role=img]").all():
        assert len(chart.get_attribute("aria-label")) > 5
    assert page.locator("main svg:not([role=img]):not([aria-hidden])").count() == 0


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_and_light(opened):
    light, dark = opened(searched(), scheme="light"), opened(searched(), scheme="dark")
    assert background(light) != background(dark)
    light.locator("#theme").click()
    assert background(light) == background(dark)
    light.reload()
    assert background(light) == background(dark)
    light.locator("#theme").click()
    assert background(light) != background(dark)


def test_another_rival_changes_the_waterfall(page):
    chart = page.locator("#why figure").first
    before = chart.locator("svg").get_attribute("aria-label")
    chart.locator("select").select_option(index=5)
    after = chart.locator("svg").get_attribute("aria-label")
    assert before != after
    assert searched().shown[6].recipe.tp in (1, 2, 4, 8)
    assert "#7" in chart.inner_text()


def numbers(page):
    return page.locator("#trials tbody td:first-child").all_inner_texts()


def test_trials_sort_both_ways(page):
    head = page.locator("#trials th", has_text="memory")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    up = page.locator("#trials tbody td:nth-child(5)").all_inner_texts()
    head.get_by_role("button").click()
    down = page.locator("#trials tbody td:nth-child(5)").all_inner_texts()
    figures = [float(cell.split()[0]) for cell in up if cell]
    assert figures == sorted(figures)
    assert [float(cell.split()[0]) for cell in down if cell] == figures[::-1]
    # What was not simulated has no figure, and comes last both ways.
    assert up[-1] == down[-1] == ""


def test_trials_filter_by_words_and_status(page):
    assert len(numbers(page)) == 13
    page.get_by_label("Filter trials").fill("99 of 76")
    assert numbers(page) == ["8"]
    page.get_by_label("Filter trials").fill("")
    page.locator("#trials select").select_option(label="invalid")
    assert numbers(page) == ["11"]
    assert "3 into 16" in text(page, "#trials tbody")


def test_long_tables_are_paged(opened):
    search = searched()
    more = [replace(search.result.trials[-1], number=number) for number in range(200)]
    page = opened(replace(search, result=replace(search.result, trials=tuple(more))))
    assert len(numbers(page)) == 50
    page.get_by_role("button", name="Next").click()
    assert "51 to 100 of 200" in text(page, "#trials .controls")
    page.get_by_role("button", name="Previous").click()
    assert page.get_by_role("button", name="Previous").is_disabled()


def test_brushing_an_axis_filters_the_trials(page):
    page.locator("#tradeoffs [data-axis=tp]").scroll_into_view_if_needed()
    axis = page.locator("#tradeoffs [data-axis=tp]").bounding_box()
    x = axis["x"] + axis["width"] / 2
    page.mouse.move(x, axis["y"] + axis["height"] - 9)
    page.mouse.down()
    page.mouse.move(x, axis["y"] + axis["height"] - 30, steps=3)
    page.mouse.up()
    lowest = sum(trial.recipe.tp == 1 for trial in searched().shown)
    assert f"{lowest} of 7 recipes" in text(page, "#tradeoffs")
    assert len(numbers(page)) == lowest
    page.get_by_role("button", name="Clear brushes").click()
    assert len(numbers(page)) == 13


def test_brushing_works_from_the_keyboard(page):
    page.locator("#tradeoffs [role=slider]").first.focus()
    page.keyboard.press("ArrowUp")
    assert "of 7 recipes" in text(page, "#tradeoffs")
    page.keyboard.press("Escape")
    assert len(numbers(page)) == 13


def test_a_point_can_be_chosen(page):
    page.locator("#tradeoffs svg.points-plot").focus()
    chosen = page.locator("#tradeoffs p.chosen-recipe")
    seen = {chosen.inner_text()}
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        seen.add(chosen.inner_text())
    assert len(seen) == 4
    assert page.locator("#trials tr[aria-selected=true]").count() == 1


def test_a_cell_says_why_it_is_empty(page):
    page.get_by_role("button", name="TP 2 × PP 2").click()
    assert "lacks 3.0 GiB" in text(page, "#layouts [role=status]")


def test_every_stage_of_the_pipeline_is_accounted_for(page):
    page.locator("#pipeline summary").click()
    stages = page.locator("#pipeline tbody tr").count()
    assert stages == searched().shown[0].recipe.pp
    assert "waiting" in text(page, "#pipeline thead")


def test_hovering_says_more(page):
    page.locator("#memory svg g.row").first.hover()
    assert "stage 0" in text(page, "#tip")
    assert "optimizer" in text(page, "#tip")


def test_the_launch_command_is_copied(opened):
    page = opened(searched(), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy launch.sh").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == searched().launch_files["launch.sh"]


def test_nothing_fits(opened):
    page = opened(nothing_fits())
    assert text(page, "h1").startswith("No recipe fits")
    assert page.locator("#pipeline").count() == 0
    assert "A larger GPU helps." in text(page, "#answer")
    assert "3.0 GiB above" in text(page, ".cards")
    assert page.locator("#launch").count() == page.locator("#sure").count() == 0
    assert len(numbers(page)) == 6


def test_nothing_was_even_simulated(opened):
    empty = nothing_fits()
    trials = tuple(trial for trial in empty.result.trials if trial.prediction is None)
    page = opened(replace(empty, result=replace(empty.result, trials=trials)))
    assert page.locator("#memory").count() == page.locator("#pipeline").count() == 0
    assert len(numbers(page)) == len(trials)


def test_nothing_was_looked_at(opened):
    empty = nothing_fits()
    page = opened(replace(empty, result=replace(empty.result, trials=(), stopped="timeout")))
    assert page.locator("#layouts").count() == 0
    assert "0 points proposed of 1,000 in the space. " in text(page, "#trials")


def test_several_objectives(opened):
    page = opened(several_objectives("memory", "step_time", count=3))
    assert text(page, "h1").startswith("Best in memory reserved")
    assert "3 recipes" in text(page, "#answer .points")
    across = page.locator("#tradeoffs select").first.evaluate("s => s.selectedOptions[0].text")
    assert across == "memory of a GPU, GiB"


def test_a_hostile_name_is_only_shown(opened):
    page = opened(hostile())
    assert HOSTILE.split("\u2028")[0] in text(page, "#answer")
    assert page.locator("img").count() == 0


def test_narrow_windows_do_not_scroll_sideways(opened):
    page = opened(searched(), size=(400, 800))
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_print_has_no_controls(page):
    page.emulate_media(media="print")
    assert not page.locator("#theme").is_visible()
    assert page.locator("h1").is_visible()
    assert page.locator("#memory svg").last.is_visible()


def test_works_in_the_sandboxed_frame_of_an_artifact_viewer(open_page, tmp_path):
    """MLflow shows HTML artifacts as a blob in a frame that may run scripts, and nothing else."""
    host = tmp_path / "host.html"
    host.write_text(
        "<iframe sandbox='allow-scripts' width=1300 height=700></iframe>", encoding="utf-8"
    )
    opened = open_page(host)
    opened.page.evaluate(
        """page => {
          const blob = new Blob([page], { type: "text/html" });
          document.querySelector("iframe").src = URL.createObjectURL(blob);
        }""",
        search_page(searched()),
    )
    frame = opened.page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for()
    frame.locator("#theme").click()
    assert frame.locator("html").get_attribute("data-theme") == "dark"
    frame.get_by_role("link", name="Memory").click()
    assert frame.locator("#memory").bounding_box()["y"] < 100
    frame.get_by_role("link", name="Answer", exact=True).click()
    frame.get_by_role("button", name="Copy launch.sh").click()
    frame.get_by_role("button", name="Copied").wait_for()
    # Files beside the report cannot be reached from there.
    assert frame.locator("a[href='launch.sh']").count() == 0
    assert opened.errors == []


def test_what_tracing_found_stands_beside_what_was_predicted(opened):
    figures = RankFigures(2**30, 2**30, 2**30, 10**12, {"tp": 7})
    check = Verification(
        recipe=searched().shown[0].recipe,
        micro_batches=4,
        step_micro_batches=16,
        builtin_step_s=2.0,
        traced_step_s=2.1,
        ranks=(RankCheck(0, 0, figures, figures, ("a copy",)),),
    )
    page = opened(searched(checks=(check,)))
    assert "+5.0 % against the built-in source" in text(page, "#answer")
    row = page.locator("#sure tr", has_text="communicated, tp")
    assert row.locator("td").all_inner_texts()[1:] == ["7 bytes", "7 bytes", "equal"]


def test_gpus_that_cost_nothing(opened):
    search = searched()
    question = replace(search.question, gpu=replace(search.question.gpu, price_usd_per_hour=0.0))
    shown = tuple(
        replace(trial, prediction=replace(trial.prediction, cost_of_run_usd=0.0))
        for trial in search.shown
    )
    page = opened(replace(search, question=question, shown=shown))
    assert "change of the step's time" in page.locator("#sure svg").last.text_content()
    assert "NaN" not in page.locator("main").inner_html()
