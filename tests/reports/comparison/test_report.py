import csv
import io
import json
import re
from dataclasses import replace

import pytest
import yaml

from tests.reports.comparison.samples import predictions, space
from tests.reports.launch_import.samples import CONF
from tests.samples import CLUSTER, GPU, MODEL, TRAINING
from trainscout.conf.build import build_value
from trainscout.reports.comparison.comparison import compare
from trainscout.reports.comparison.for_programs import comparison_csv, comparison_record
from trainscout.reports.comparison.predictions import Predictions
from trainscout.reports.comparison.reasons import mechanism
from trainscout.reports.comparison.report import answer_line, comparison_report
from trainscout.reports.comparison.wording import Unit, format_change, signed_seconds
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.network_doubt import UNVALIDATED
from trainscout.simulators.registry import get_simulator

FIRST = Recipe(tp=2, sp=True)
OTHER = replace(FIRST, pp=2, vpp=2, micro_batch=2)


def made(other=OTHER, **simulated):
    simulated = {"step_s": lambda r: 10 - r.vpp - r.micro_batch, **simulated}
    second = None if other is None else ("b", "here", other)
    return compare(("a", "there", FIRST), second, space(), predictions(**simulated))


def test_the_report_has_every_part_and_fits_a_page():
    text = as_text(comparison_report(made()))
    for shown in (
        "a  tp2 pp1 dp8 mb1 sp zero1  (there)",
        "b is 2.000 s a step (25.0 %) faster than a",
        "Where the step goes",
        "Why b differs",
        "Which change brings what, from a to b",
        "vpp 1 -> 2",
        "If you change only one knob of a",
        "Memory of the worst stage, GiB",
    ):
        assert shown in text
    assert max(map(len, text.splitlines())) <= 120


def test_alone_a_recipe_is_shown_with_its_neighbours():
    text = as_text(comparison_report(made(None)))
    assert "If you change only one knob of a" in text
    assert "Which change" not in text


def test_dollars_are_those_of_a_billion_tokens_where_nobody_gave_a_length():
    row = re.compile(r"(\d+) B tokens at .*?(\$[\d.,]+)")
    found = made(None)
    asked = row.search(as_text(comparison_report(found)))
    side = found.first
    job = replace(side.job, training=replace(side.job.training, tokens=5e9))
    cost = 5 * side.prediction.cost_of_run_usd
    side = replace(side, job=job, prediction=replace(side.prediction, cost_of_run_usd=cost))
    found = replace(found, first=side)
    assert row.search(as_text(comparison_report(found)))[1] == "5"
    assumed = row.search(as_text(comparison_report(found, assumed={"tokens"})))
    assert assumed.groups() == asked.groups()


def test_what_of_an_unvalidated_network_is_counted_is_said():
    found, stated = made(None), f"{UNVALIDATED}: 50% of its rate is counted"
    assert "unvalidated" not in as_text(comparison_report(found))
    prediction = replace(found.first.prediction, assumptions=("even loads", stated))
    half = replace(found, first=replace(found.first, prediction=prediction))
    assert f"Assumed: {stated}" in as_text(comparison_report(half))


def test_equal_recipes_differ_in_nothing():
    text = as_text(comparison_report(made(FIRST)))
    assert "a and b are the same recipe." in text
    assert "Which change" not in text
    assert "b - a" not in text


def test_the_answer_alone():
    def answer(**simulated):
        return as_text(answer_line(made(None, **simulated))).strip()

    faster = answer(step_s=lambda r: 10 - r.micro_batch)
    assert faster == "a takes 9.000 s a step; micro_batch 1 -> 2 makes it 1.000 s faster."
    best = answer(step_s=lambda r: 10.0 + (r != FIRST))
    assert best == "a takes 10.00 s a step; no single change that fits makes it faster."
    fits = answer(headroom_gib=lambda r: 3 * r.pp - 4)
    assert fits.startswith("a takes 8.000 s a step and does not fit in memory, by 1.0 GiB; ")
    assert "fits, " in fits
    assert answer(headroom_gib=lambda r: -1.0).endswith("no single change fits.")


def test_memory_adds_up_to_what_is_needed():
    question = Question(MODEL, GPU, CLUSTER, TRAINING)
    first = ("a", "", Recipe(tp=2, sp=True))
    comparison = compare(first, None, space(), Predictions(question, get_simulator("replay")))
    lines = as_text(comparison_report(comparison)).split("Memory of the worst stage, GiB")[1]
    amounts = {name: float(value) for name, value in _AMOUNT.findall(lines)}
    within = sum(list(amounts.values())[: list(amounts).index("peak allocated")])
    assert within == pytest.approx(amounts["peak allocated"], abs=0.04)
    outside = amounts["communication buffers"] + amounts["context"]
    assert amounts["needed"] == pytest.approx(amounts["peak reserved"] + outside, abs=0.02)
    headroom = comparison.first.prediction.memory.headroom_bytes / 2**30
    assert amounts["usable"] - amounts["needed"] == pytest.approx(headroom, abs=0.02)


_AMOUNT = re.compile(r"^([a-z]+(?: [a-z]+)*) +([\d.]+)$", re.MULTILINE)


def test_what_does_not_fit_is_said():
    report = comparison_report(made(headroom_gib=lambda r: 5 - 3 * r.micro_batch))
    text = " ".join(as_text(report).split())
    assert "b does not fit in memory, by 1.0 GiB." in text
    assert "of them may not fit in memory and count with the time" in text
    assert "!: does not fit in memory, or may not." in text


def test_a_search_that_asked_something_else_is_noticed():
    comparison = made()
    step_s = comparison.difference.other.prediction.step_time_s
    same = as_text(comparison_report(comparison, stored_step_s=step_s))
    other = as_text(comparison_report(comparison, stored_step_s=2 * step_s))
    assert "asked about another" not in same
    assert "it was about another model, cluster or training" in other


def test_records_are_json_with_the_same_figures():
    comparison = made()
    record = json.loads(json.dumps(comparison_record(comparison), allow_nan=False))
    difference = record["difference"]
    steps = [record[side]["prediction"]["step_time_s"] for side in ("a", "b")]
    assert difference["step_time_s"] == pytest.approx(steps[1] - steps[0])
    assert sum(difference["breakdown_s"].values()) == pytest.approx(difference["step_time_s"])
    brought = sum(change["step_s"] for change in difference["changes"]["changes"])
    assert brought == pytest.approx(difference["step_time_s"])
    for neighbour in record["one_knob"]:
        assert neighbour["difference_s"] == pytest.approx(neighbour["step_time_s"] - steps[0])


def test_csv_has_a_row_for_every_recipe():
    comparison = made()
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
    assert [row["recipe"] for row in rows[:3]] == ["a", "b", "one_knob"]
    assert len(rows) == 2 + len(comparison.neighbours)
    assert float(rows[1]["step_time_s"]) == comparison.difference.other.prediction.step_time_s


@pytest.mark.parametrize(
    ("fields", "before", "after", "words"),
    [
        (("vpp",), (1,), (8,), "vpp 1 -> 8"),
        (("sp", "tp"), (False, 1), (True, 2), "sp off -> on, tp 1 -> 2"),
        (("etp",), (None,), (1,), "etp tp -> 1"),
        (
            ("recompute", "recompute_layers"),
            ("none", None),
            ("full", 1),
            "recompute none -> full(1 a chunk)",
        ),
        (
            ("recompute", "recompute_modules"),
            ("selective", "mlp"),
            ("none", None),
            "recompute selective(mlp) -> none",
        ),
        (("recompute_layers",), (None,), (1,), "recompute_layers all -> 1"),
    ],
)
def test_changes_in_words(fields, before, after, words):
    assert format_change(fields, before, after) == words


def test_signed_quantities():
    assert signed_seconds(-0.0125) == "-12.5 ms"
    assert signed_seconds(0.0) == "0"
    unit = Unit.of(91.8)
    assert (unit.name, unit.signed(-13.7234), unit.signed(0.001)) == ("s", "-13.72", "0")
    small = Unit.of(0.25)
    assert (small.name, small.signed(0.0123)) == ("ms", "+12.3")


def test_reasons_are_the_real_quantities():
    """Of GPT-22B on 16 H100, counted by hand."""
    shape = build_value(Model, "model", yaml.safe_load((CONF / "model/gpt22b.yaml").read_text()))
    question = Question(shape, GPU, CLUSTER, TRAINING)
    first = Recipe(tp=8, pp=2, recompute="full")
    other = Recipe(tp=4, pp=4, vpp=2, sp=True)
    comparison = compare(
        ("a", "", first),
        ("b", "", other),
        space(),
        Predictions(question, get_simulator("replay")),
    )
    words = {reason.part: reason.words for reason in comparison.difference.reasons}
    # (pp - 1) / (vpp x micro-batches): 64 sequences, one replica each.
    assert "a (2 - 1) / (1 x 64) = 1.6 %, b (4 - 1) / (2 x 64) = 2.3 %" in words["bubble"]
    assert "b repeats 0.0 % of the model's FLOPs" in words["compute"]
    # 64 x 2048 tokens x 6144 x 2 bytes to the one neighbour of the last stage.
    size = 2048 * 6144 * 2 / 2**20
    sent = f"{64 * size / 1024:.1f} GiB a step and GPU in messages of {size:.1f} MiB"
    assert f"sends its neighbours {sent}" in words["pp_communication"]
    assert "in groups of 8 inside a node, b sends" in words["tp_communication"]
    gaps = sum(reason.difference_s for reason in comparison.difference.reasons)
    step_s = comparison.difference.other.prediction.step_time_s
    total = step_s - comparison.first.prediction.step_time_s
    assert gaps == pytest.approx(total, abs=0.02 * step_s)


def test_weights_gathered_for_every_micro_batch_are_a_reason():
    sharded = Recipe(zero_stage=3, recompute="full")
    question = Question(MODEL, GPU, replace(CLUSTER, nic_gbps=25), TRAINING)
    sides = ("a", "", sharded), ("b", "", replace(sharded, micro_batch=2))
    comparison = compare(*sides, space(), Predictions(question, get_simulator("replay")))
    words = {reason.part: reason.words for reason in comparison.difference.reasons}
    assert "a gathers its weights for each of 4 micro-batches and" in words["dp_communication"]
    assert "b gathers its weights for each of 2 micro-batches and" in words["dp_communication"]


def test_the_headline_is_what_to_change():
    after = replace(FIRST, pp=2, micro_batch=2, tp_comm_overlap=True)
    made_of = compare(
        ("a", "there", FIRST),
        ("b", "here", after),
        space(),
        predictions(lambda r: 10 - r.tp_comm_overlap - 0.5 * r.micro_batch - 0.02 * r.pp),
    )
    text = as_text(comparison_report(made_of))
    # 9.48 s become 7.98 s.
    headline = "Change tp_comm_overlap off -> on and micro_batch 1 -> 2: -15.8 %, 7.980 s a step"
    assert headline in text
    assert text.index(headline) < text.index("Where the step goes")


def test_dollars_say_for_what_and_at_which_price():
    first = made().first.job
    assert f"at ${first.gpu.price_usd_per_hour:g} a GPU-hour" in as_text(comparison_report(made()))


def test_traffic_is_counted_on_the_wire():
    simulator = get_simulator("replay")
    whole = replace(FIRST, sp=False)
    job = Question(MODEL, GPU, CLUSTER, TRAINING).job(whole)
    traffic = mechanism(job, simulator.simulate(job)).traffic["tp"]
    # Without sequence parallelism it all is all-reduces, whose ring sends 2 (n - 1) / n.
    assert traffic.sent_bytes == pytest.approx(2 * (2 - 1) / 2 * traffic.bytes)
    gathered = Question(MODEL, GPU, CLUSTER, TRAINING).job(FIRST)
    sent = mechanism(gathered, simulator.simulate(gathered)).traffic["tp"]
    # Gathers and scatters are half of an all-reduce each; backward, inputs are gathered again.
    assert sent.bytes / traffic.bytes > 1
    assert sent.sent_bytes / sent.bytes == pytest.approx(0.5, rel=0.1)
