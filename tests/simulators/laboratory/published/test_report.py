import json
from dataclasses import replace

import pytest

from tests.samples import prediction
from tests.simulators.laboratory.published.runs import RUN, TwoSeconds, declarations
from trainscout.simulators.laboratory.published.page.headline import by_scale, headline, targets
from trainscout.simulators.laboratory.published.page.page import accuracy_pages
from trainscout.simulators.laboratory.published.page.terminal_tables import validation_tables
from trainscout.simulators.laboratory.published.published import PeerPrediction
from trainscout.simulators.laboratory.published.replay import replay_rows
from trainscout.simulators.laboratory.published.report import GROUPINGS, validation_report
from trainscout.simulators.laboratory.residuals import residuals_of
from trainscout.simulators.predictor.io.terminal import as_text

KEYS = {"n", "skipped", "median_abs_error", "mean_abs_error", "p90_abs_error", "bias"}
ROWS = [
    RUN,
    replace(RUN, id="slow", measured_iter_s=2.5, measured_peak_mem_gib=30.0),
    replace(RUN, id="poor", measured_iter_s=200.0, quality="C"),
    replace(RUN, id="strange", gpu="MI250X"),
    replace(RUN, id="drawn", source="A ruler", extrapolated=True),
]
COVERAGE = {
    "level": 0.8,
    "n": 100,
    "publications": 20,
    "publication": 0.8,
    "framework": 0.72,
    "gpu": 0.84,
    "faster": 0.08,
    "slower": 0.12,
    "width": 0.5,
    "width_in_view": 0.4,
    "order": {
        "pairs": 7,
        "publications": 3,
        "off": 0.25,
        "told": 0.5,
        "right": 0.9,
        "apart": {"5%": 0.6},
        "likely": [
            {"least": 0.5, "most": 0.6, "pairs": 7, "publications": 3, "said": 0.55, "came": 0.7}
        ],
    },
}
PEERS = [PeerPrediction("Korthikanti 2022, table 5", "run", "calculon", 3.0)]


@pytest.fixture(scope="module")
def results():
    return replay_rows(ROWS, declarations(), TwoSeconds(), lambda: None)


@pytest.fixture(scope="module")
def report(results):
    return validation_report(results, ("A", "B"), PEERS)


def test_the_shape_that_others_read(report):
    assert set(report["overall"]) == KEYS
    for part in (report, report["memory"]):
        for name in GROUPINGS:
            assert all(set(summary) == KEYS for summary in part[name].values())
    assert {"id", "measured", "predicted", "error", "assumptions"} <= set(report["rows"][0])
    json.dumps(report, allow_nan=False)


def test_poor_rows_are_listed_but_not_counted(report):
    assert report["overall"]["n"] == 2
    assert report["overall"]["bias"] == pytest.approx((-0.5 - 0.2) / 2)
    rows = {row["id"]: row for row in report["rows"]}
    assert not rows["poor"]["counted"]
    assert rows["poor"]["error"] == pytest.approx(-0.99)


def test_what_cannot_be_predicted_is_counted_as_skipped_with_its_reason(report):
    assert report["overall"]["skipped"] == 1
    assert report["by_gpu"]["MI250X"]["skipped"] == 1
    ((skipped),) = report["skipped"]
    assert skipped["id"] == "strange"
    assert "MI250X" in skipped["reason"]


def test_memory_is_summed_up_apart(report):
    assert report["memory"]["overall"]["n"] == 1
    assert report["memory"]["by_source"]["Somebody 2024"]["n"] == 1


def test_runs_predicted_not_to_fit_are_counted_and_kept(report, results):
    assert report["memory"]["ran_but_predicted_not_to_fit"] == 0
    assert all(row["fits"] == "fits" for row in report["rows"])
    misfit = replace(results[0], prediction=prediction(2.0, headroom_gib=-1.0))
    changed = validation_report([misfit, results[1]], ("A", "B"), [])
    assert changed["memory"]["ran_but_predicted_not_to_fit"] == 1
    assert [row["fits"] for row in changed["rows"]] == ["no", "fits"]
    assert changed["overall"]["n"] == 2
    text = as_text(validation_tables(changed, [misfit, results[1]]))
    assert changed["memory"]["bands"]["all"] == {"fits": 1, "tight": 0, "no": 1}
    assert "Memory of runs that ran, by band" in text


def test_every_grouping_shares_out_the_rows(report):
    for name in GROUPINGS:
        assert sum(one["n"] for one in report[name].values()) == report["overall"]["n"]


def test_extrapolated_rows_are_named_so_and_count_nowhere_else(report, results):
    assert report["extrapolated"]["A ruler"]["n"] == 1
    assert "A ruler" not in report["by_source"]
    assert headline(report).n == 2
    assert headline(report).skipped == 1
    (drawn,) = (row for row in report["rows"] if row["id"] == "drawn")
    assert not drawn["counted"]
    assert any("extrapolated" in words for words in drawn["assumptions"])
    assert residuals_of([result for result in results if result.row.id == "drawn"]) == ()
    pages = accuracy_pages(report, COVERAGE, None, None, [])
    assert "A ruler" in pages["accuracy/published-runs.md"]
    assert "A ruler" not in pages["accuracy.md"]


def test_targets_are_met_or_not_by_the_figures(report):
    by_name = {target.name: target for target in targets(report, COVERAGE, None, ())}
    assert by_name["step time, median"].met is False
    assert by_name["TorchTitan, mean"].met is None
    bars = "runs inside their 80% error bar, left out: a {}"
    assert by_name[bars.format("publication")].met
    assert not by_name[bars.format("framework")].met
    assert bars.format("cluster") not in by_name
    assert by_name["Korthikanti 2022, table 5, mean"].reached == "50.0%"
    beaten = by_name["Korthikanti 2022, table 5: beat the flat baseline"]
    flat = report["baseline"]["sets"]["Korthikanti 2022, table 5"]["flat_baseline"]
    assert beaten.met is (flat["mean_abs_error"] > 0.5)


def test_bands_are_shown_from_small_to_large():
    bands = ["1025+", "unknown", "9-64", "65-256", "1-8"]
    ordered = [name for name, _ in by_scale({band: {} for band in bands})]
    assert ordered == ["1-8", "9-64", "65-256", "1025+", "unknown"]


def test_the_terminal_shows_summaries_and_reasons(report, results):
    text = as_text(validation_tables(report, results))
    assert "Somebody 2024" in text
    assert "MI250X: no such GPU is declared" in text
    assert "-35.0%" in text


def test_every_page_has_its_sections(report):
    part = {"overall": report["overall"], "by_class": {"gemm": report["overall"]}}
    pages = accuracy_pages(report, COVERAGE, None, part, [])
    sections = {
        "accuracy.md": ("By kind of run", "Error bars", "Memory", "Targets missed"),
        "accuracy/published-runs.md": ("Layouts", "Memory by source", "Targets met"),
        "accuracy/parts.md": ("Kernels", "Collectives", "Overlap slowdown"),
    }
    for page, names in sections.items():
        for section in names:
            assert f"\n## {section}\n" in pages[page]
    assert "| all | 2 | 1 |" in pages["accuracy/parts.md"]


def test_a_reader_decides_by_the_first_page_without_what_is_met(report):
    text = accuracy_pages(report, COVERAGE, None, None, [])["accuracy.md"]
    missed = [target for target in targets(report, COVERAGE, None, ()) if target.met is False]
    assert all(f"| {target.name} |" in text for target in missed)
    assert "step time, 90th percentile" in text
    assert "error bar, left out: a GPU" not in text
    assert "8% are faster than their interval and 12% slower" in text
    assert "60% by more than 5%" in text
    assert "| 50% to 60% | 7 | 3 | 55.0% | 70.0% |" in text
    assert len(text.split()) < 1_500
