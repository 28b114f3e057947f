"""Training, the honest comparison, and what the replay does with its outcome."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.simulators.predictor.collectives.machines import A100, H100
from tests.simulators.predictor.interference.tables import write_table
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.interference import fit
from trainscout.simulators.predictor.interference import (
    KERNEL_CLASSES,
    learned,
    overlap_slowdowns,
)
from trainscout.simulators.predictor.interference.learned import RANGED, parse_fitted
from trainscout.simulators.predictor.interference.overlap import physical_slowdowns
from trainscout.simulators.predictor.interference.table import read_samples
from trainscout.simulators.predictor.question.errors import InputError

pytest.importorskip("xgboost")
GPUS = load_catalogue().gpus
GEMM, STREAMING = KERNEL_CLASSES.index("gemm"), KERNEL_CLASSES.index("streaming")


def slower_streaming(kernel_class: str, physical: float) -> float:
    return physical * (1.4 if kernel_class == "elementwise" else 1.0)


@pytest.fixture
def fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model of a law that only streaming kernels break, in place of the shipped one."""
    table = write_table(tmp_path / "table.csv", slower_streaming)
    assert fit.main([str(table), "--output", str(tmp_path)]) == 0
    monkeypatch.setattr(learned, "_folder", lambda: tmp_path)
    caches = (learned.fitted, learned._booster, learned._factors)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


def mix(gemm_s: float, streaming_s: float) -> np.ndarray:
    kernel_s = np.zeros((1, 2, len(KERNEL_CLASSES)))
    kernel_s[0, 0, [GEMM, STREAMING]] = gemm_s, streaming_s
    kernel_s[0, 1, [GEMM, STREAMING]] = 0.2 * gemm_s, 0.9 * streaming_s
    return kernel_s


def test_a_law_the_physics_miss_is_learned_for_its_class_only(fitted: Path) -> None:
    content = yaml.safe_load((fitted / "overlap.yaml").read_text())
    uses = {name: entry["uses"] for name, entry in content["classes"].items()}
    assert uses.pop("streaming") == "learned"
    assert set(uses.values()) == {"physical"}
    out = content["residuals"]["class streaming"]["one source out"]
    assert out["learned, replay"]["rmse"] < out["physical"]["rmse"] / 4


def test_replay_corrects_the_learned_class_by_its_share(fitted: Path) -> None:
    channels, traffic = np.array([12]), np.array([3e11])
    one, _ = overlap_slowdowns(H100, mix(0.0, 1.0), channels, traffic)
    other, _ = overlap_slowdowns(H100, mix(1.0, 0.0), channels, traffic)
    both, _ = overlap_slowdowns(H100, mix(1.0, 1.0), channels, traffic)
    physical, _ = physical_slowdowns(H100, np.array([0.9]), channels, traffic)
    assert one[0, 0] == pytest.approx(1.4 * physical[0, 0], rel=0.03)
    assert other == pytest.approx(
        physical_slowdowns(H100, np.array([0.2]), channels, traffic)[0], rel=1e-9
    )
    assert both == pytest.approx((one + other) / 2, rel=1e-9)


def test_outside_its_range_the_learned_model_is_silent(fitted: Path) -> None:
    kernel_s = mix(0.0, 1.0)
    for gpu, channels in ((A100, 12), (H100, 60)):
        held, traffic = np.array([channels]), np.array([3e11])
        found, _ = overlap_slowdowns(gpu, kernel_s, held, traffic)
        assert found == pytest.approx(physical_slowdowns(gpu, np.array([0.9]), held, traffic)[0])


def test_no_seen_row_enters_a_prediction_of_its_fold(tmp_path: Path) -> None:
    # Slowdowns differ by source only: seeing others says nothing about the one left out.
    table = write_table(tmp_path / "table.csv", lambda kernel_class, physical: physical)
    text = table.read_text().splitlines()
    rows = [text[0]]
    for line in text[1:]:
        cells = line.split(",")
        cells[3] = str(1.0 + 0.5 * int(cells[5][-1]))
        rows.append(",".join(cells))
    table.write_text("\n".join(rows) + "\n")
    samples = read_samples([table], GPUS)
    predicted = fit.cross_validate(samples)["one source out", "one factor"]
    for number in range(4):
        own = samples.group == number
        assert not np.isclose(predicted[own], samples.slowdown[own]).any()


def test_physics_that_hold_are_kept(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv", lambda kernel_class, physical: physical)
    samples = read_samples([table], GPUS)
    predicted = fit.cross_validate(samples)
    assert set(fit.choose(samples, predicted).values()) == {"physical"}
    everything = np.ones(len(samples.slowdown), dtype=np.bool_)
    exact = fit.score(samples, predicted["one source out", "physical"], everything)
    assert exact.hits == (1.0, 1.0, 1.0)
    assert exact.rmse == pytest.approx(0.0, abs=1e-12)


def test_two_sources_are_too_few_to_choose(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv", slower_streaming, sources=2)
    samples = read_samples([table], GPUS)
    uses = fit.choose(samples, fit.cross_validate(samples))
    assert set(uses.values()) == {"physical"}


def test_shipped_model_says_what_it_was_chosen_on() -> None:
    content = yaml.safe_load((learned._folder() / "overlap.yaml").read_text("utf-8"))
    assert set(content["classes"]) == set(KERNEL_CLASSES)
    assert content["residuals"]["all"]["n"] == sum(content["sources"].values())
    out = {
        name: content["residuals"][f"class {name}"]["one source out"] for name in KERNEL_CLASSES
    }
    for name, entry in content["classes"].items():
        if entry["uses"] == "learned":
            better, worse = out[name]["learned, replay"], out[name]["physical"]
            assert better["within_5_10_15_percent"][2] > worse["within_5_10_15_percent"][2]
    assert set(parse_fitted(content, "overlap.yaml").ranges) <= set(KERNEL_CLASSES)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"classes": {"gemm": {}}},
        {"classes": {"gemm": {"uses": "learned", "range": {"sms": [1, 2]}}}},
        {"classes": {"softmax": {"uses": "learned", "range": {n: [0, 1] for n in RANGED}}}},
    ],
)
def test_file_of_another_kind_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(InputError, match="overlap"):
        parse_fitted(content, "overlap.yaml")


def test_absent_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    table = write_table(tmp_path / "table.csv", slower_streaming)
    assert fit.main([str(table)]) == 2
    assert "pip install" in capsys.readouterr().err


def test_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main([str(tmp_path / "absent.csv")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_more_dram_seconds_than_seconds_are_refused() -> None:
    kernel_s = np.zeros((1, 2, len(KERNEL_CLASSES)))
    kernel_s[0, 1, 0] = 1.0
    with pytest.raises(InputError, match="DRAM"):
        overlap_slowdowns(H100, kernel_s, np.array([1]), np.array([0.0]))
