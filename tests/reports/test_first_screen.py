"""The first screen decides: the answer, what else there is, what is proved, what was assumed."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.samples import CLUSTER, GPU, MODEL, MOE_MODEL, TRAINING, job_of, prediction, trial
from tests.simulators.predictor.kernels.gpus import GPUS
from trainscout.optimizer.certificate import Certificate
from trainscout.optimizer.trial import Choices, SearchResult
from trainscout.reports import first_screen as module
from trainscout.reports.first_screen import impossible_degrees
from trainscout.reports.terminal_tables import search_report
from trainscout.reports.trials import LEAST_OFFERED
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.memory.bands import TIGHT
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import NUMERICS
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.fastest import published_fastest


def found(step_s, headroom_gib=3.0, number=0, status="ok", **fields):
    step = replace(prediction(step_s, headroom_gib), interval_s=(step_s * 0.9, step_s * 1.2))
    return trial(number, Recipe(zero_stage=1, **fields), status, prediction=step, values=(step_s,))


BEST = found(2.0, tp=2, pp=2, sp=True, tp_comm_overlap=True)
OTHER = found(2.02, 4.3, 1, tp=4, sp=True)
ROOMY = found(2.066, 23.8, 2, tp=4, pp=2, recompute="full")
SIMPLE = found(2.03, 3.0, 3, tp=2, pp=2)
FASTER = found(1.9, -1.0, 4, "tight", tp=1, pp=4)


def with_chance(each, probability):
    memory = replace(each.prediction.memory, fit_probability=probability, band=TIGHT)
    return replace(each, prediction=replace(each.prediction, memory=memory))


FASTER = with_chance(FASTER, 0.41)
PROOF = Certificate(
    ("cost",), 6000, {}, 0, {}, 5776, 5000, 771, 5, 0, 0, 10, 0.0, True, 2.0, 2.0, 0.0
)


def screen(*, lead=0.03, monkeypatch=None, assumed=(), width=100, **changes):
    monkeypatch.setattr(module, "tie_shares", lambda ranked, job_of: [lead] * len(ranked))
    trials = (BEST, OTHER, ROOMY, SIMPLE, FASTER)
    result = SearchResult(
        trials,
        (BEST, OTHER),
        (BEST,),
        ("cost",),
        "proved",
        1.0,
        6000,
        certificate=PROOF,
        tight=(FASTER,),
        choices=Choices((BEST, OTHER, ROOMY), ROOMY, SIMPLE),
    )
    shown = search_report(
        replace(result, **changes), job_of, Path("outputs/here"), assumed=assumed
    )
    buffer = io.StringIO()
    Console(file=buffer, width=width, highlight=False).print(shown)
    return [each.rstrip() for each in buffer.getvalue().splitlines()]


def line(lines, words):
    return next(each for each in lines if words in each)


def test_the_answer_comes_first_and_all_fits_on_a_screen(monkeypatch):
    lines = screen(monkeypatch=monkeypatch)
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert lines[0] == "tiny on pair (16 x h100), batch 64 x 1024 tokens, bf16"
    assert lines[1] == "Run      TP 2 x PP 2 x DP 4, micro-batch 1"
    assert lines[2].split()[:3] == ["tp2", "pp2", "dp4"]
    assert line(lines, "Memory").endswith("fits: 73.0 of 76.0 GiB usable on stage 1, 3.0 GiB free")
    assert line(lines, "Start").endswith("bash outputs/here/launch.sh")
    assert "outputs/here/report.html" in line(lines, "Look")


def test_what_nothing_starts_is_said_with_the_reason(monkeypatch):
    model = replace(job_of(BEST.recipe).model, normalization="rmsnorm", qk_norm_whole=True)
    job = replace(job_of(BEST.recipe), model=model)
    monkeypatch.setattr(f"{__name__}.job_of", lambda recipe: replace(job, recipe=recipe))
    said = line(screen(monkeypatch=monkeypatch), "Start")
    assert said.endswith("no launch files; Megatron-LM cannot: model: norms over all heads")


@pytest.mark.parametrize("gpu", ["h100", "gb200", "mi300x"])
@pytest.mark.parametrize(("faster", "cautions"), [(1.04, 0), (1.06, 1)])
def test_what_nobody_published_is_to_be_measured_first(monkeypatch, gpu, faster, cautions):
    job = replace(job_of(BEST.recipe), gpu=GPUS[gpu])
    known = [each for each in published_fastest().runs if each.kind.bits == "16-bit"]
    peak = job.gpu.peak("bf16") / 1e12
    alike = [each for each in known if abs(each.peak_tflops / peak - 1) < 0.01]
    best = max(alike, key=lambda each: each.mfu)
    kind = replace(best.kind, gpu=gpu)
    monkeypatch.setattr(
        "trainscout.simulators.predictor.uncertainty.fastest.kind_of", lambda _: kind
    )
    monkeypatch.setattr(f"{__name__}.job_of", lambda recipe: replace(job, recipe=recipe))
    quick = replace(BEST, prediction=replace(BEST.prediction, mfu=best.mfu * faster))
    lines = screen(monkeypatch=monkeypatch, best=(quick,))
    shown = " ".join(each.strip() for each in lines if "measure first" in each)
    assert shown.count("Caution  measure first") == cautions
    if cautions:
        assert f"reaches {best.mfu:.1%} MFU".replace("%", " %") in shown


def test_what_nothing_speaks_for_makes_room(monkeypatch):
    many = tuple(
        found(
            2.1 + pp / 100, 3.0, 10 + pp, tp=4, pp=pp, overlap_grad_reduce=True, recompute="full"
        )
        for pp in range(1, 20)
    )
    choices = Choices((BEST, *many, ROOMY), ROOMY, SIMPLE)
    lines = screen(monkeypatch=monkeypatch, choices=choices)
    assert 25 <= len(lines) <= 29
    assert line(lines, "if you fear out-of-memory")
    assert line(lines, "simplest")
    assert line(lines, "TP 4 x PP 1 ")
    assert not any("TP 4 x PP 19 " in each for each in lines)
    narrow = screen(monkeypatch=monkeypatch, choices=choices, width=80)
    assert len(narrow) <= 29
    assert max(map(len, narrow)) <= 80
    assert any(each.startswith("  recompute=full") for each in narrow)


def test_other_layouts_say_what_speaks_for_them(monkeypatch):
    lines = screen(monkeypatch=monkeypatch)
    start = lines.index(line(lines, "Otherwise"))
    rows = [each.split() for each in lines[start + 1 : start + 5]]
    assert [" ".join(row[:8]) for row in rows] == [
        "TP 1 x PP 4 x DP 4",
        "TP 4 x PP 1 x DP 4",
        "TP 2 x PP 2 x DP 4",
        "TP 4 x PP 2 x DP 2",
    ]
    assert lines[start + 1].endswith("1.900 s      -5.0 %  -1.0 GiB  if it fits: 41% likely")
    assert lines[start + 2].endswith("2.020 s      +1.0 %   4.3 GiB  tie")
    assert lines[start + 3].endswith(
        "2.030 s      +1.5 %   3.0 GiB  tie, simplest: 2 switches fewer"
    )
    # Beyond what predicted differences are worth.
    assert lines[start + 4].endswith("+3.3 %  23.8 GiB  if you fear out-of-memory")
    assert "recompute=full" in lines[start + 4]


def test_what_hardly_fits_is_no_alternative(monkeypatch):
    hardly, barely = with_chance(FASTER, 0.099), with_chance(FASTER, LEAST_OFFERED)
    offered = screen(monkeypatch=monkeypatch, tight=(hardly, FASTER, barely))
    assert [each.split()[-2] for each in offered if "if it fits" in each] == ["41%", "10%"]
    none = screen(monkeypatch=monkeypatch, tight=(hardly,))
    assert not any("if it fits" in each for each in none)
    assert line(none, "Otherwise")


def test_what_takes_twice_as_long_is_no_alternative(monkeypatch):
    slow = found(4.1, 30.0, 9, tp=8)
    lines = screen(monkeypatch=monkeypatch, choices=Choices((BEST, OTHER, slow), slow, SIMPLE))
    assert line(lines, "TP 4 x PP 1 ")
    assert not any("TP 8 " in each for each in lines)


def test_what_is_proved_is_said(monkeypatch):
    proved = " ".join(" ".join(screen(monkeypatch=monkeypatch)).split())
    assert "Sure the best of 5,776 recipes, proved" in proved
    assert "off by more than 3.0 % one time in 5: measure both" in proved
    alone = " ".join(screen(monkeypatch=monkeypatch, lead=0.001))
    assert "measure both" not in alone
    half = replace(PROOF, proved=False, gap=0.024)
    assert "of 5 recipes so far" not in " ".join(screen(monkeypatch=monkeypatch))
    text = " ".join(" ".join(screen(monkeypatch=monkeypatch, certificate=half)).split())
    assert "the best of 5 recipes so far, and 2.4% at most behind the best of all" in text
    sampled = " ".join(" ".join(screen(monkeypatch=monkeypatch, certificate=None)).split())
    assert "the best of 5 recipes that were tried; a tie" in sampled
    late = {"certificate": None, "unproved": "that takes more than 120 s"}
    sampled = " ".join(" ".join(screen(monkeypatch=monkeypatch, **late)).split())
    assert "were tried, not proved: that takes more than 120 s" in sampled


@pytest.mark.parametrize("numerics", NUMERICS)
def test_what_the_search_may_change_of_the_numbers_is_said(monkeypatch, numerics):
    shown = " ".join(" ".join(screen(monkeypatch=monkeypatch, numerics=numerics)).split())
    assert ("fewer bits: space.numerics=any" in shown) == (numerics == "declared")
    assert (f"too (space.numerics={numerics})" in shown) == (numerics != "declared")


def test_what_nobody_gave_is_marked(monkeypatch):
    lines = screen(monkeypatch=monkeypatch, assumed=("global_batch_size", "tokens"))
    assert lines[0].endswith("tokens, bf16 (batch assumed)")
    assert "1 B tokens (assumed): " in line(lines, "Cost")
    assert "assumed" not in "".join(screen(monkeypatch=monkeypatch))


def test_degrees_that_cannot_be_say_why():
    job = Job(replace(MODEL, num_heads=52, hidden_size=52 * 64), GPU, CLUSTER, TRAINING, Recipe())
    assert impossible_degrees(job) == "TP 8 (does not divide the 52 attention heads)"
    assert impossible_degrees(job_of(Recipe())) == ""
    experts = replace(MOE_MODEL, moe=replace(MOE_MODEL.moe, num_experts=6))
    assert impossible_degrees(replace(job, model=experts)).startswith("EP 4 (")


@pytest.mark.parametrize("verbosity", ["normal", "verbose"])
def test_one_figure_of_memory_a_recipe(verbosity, monkeypatch):
    outside = replace(
        BEST.prediction.memory,
        peak_reserved_bytes=BEST.prediction.memory.peak_reserved_bytes - 2**30,
    )
    best = replace(BEST, prediction=replace(BEST.prediction, memory=outside))
    result = SearchResult((best,), (best,), (best,), ("cost",), "proved", 1.0, 1)
    text = as_text(search_report(result, job_of, None, verbosity=verbosity))
    assert "73.0" in text
    assert "72.0" not in text


def test_a_search_that_was_cut_short_says_so(monkeypatch):
    lines = screen(monkeypatch=monkeypatch, stopped="interrupted", resumed_trials=2)
    stated = " ".join(" ".join(lines).split())
    assert "Ended 5 points proposed, 2 of them resumed; ended because it was interrupted" in stated
    assert "interrupted: resume=true goes on" in stated
    assert not [each for each in screen(monkeypatch=monkeypatch) if each.startswith("Ended")]


def test_the_causal_count_stands_beside_an_mfu_that_it_changes(monkeypatch):
    long = replace(BEST, prediction=replace(BEST.prediction, mfu=1.2, mfu_causal=0.7))
    words = " ".join(" ".join(screen(monkeypatch=monkeypatch, best=(long, OTHER))).split())
    assert "MFU 120.0 %, counted causal 70.0 %" in words
    assert not any("causal" in line for line in screen(monkeypatch=monkeypatch))
