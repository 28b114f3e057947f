"""Rows of a dialect's table: what they write of a job, and what they read back."""

from dataclasses import replace

import pytest

from tests.samples import job_of, moe_job_of
from trainscout.reports.dialects.options import Options
from trainscout.reports.dialects.setting import Setting, command_options, knob, read, write
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.knob import MEGATRON_LM, Flag
from trainscout.simulators.predictor.question.recipe import KNOBS, Recipe

TABLE = (
    Setting("--layers", "model.num_layers"),
    Setting("--plain", "model.gated_mlp", on=False),
    Setting("--shared", "model.moe.shared_ffn_hidden_size"),
    Setting("--experts", "model.moe.num_experts", default=4),
    Setting(
        "--norm", "model.normalization", {"layernorm": "LN"}, near={"LN2": ("layernorm", "is LN")}
    ),
    Setting("--modules", lambda job: ("a", "b"), when=lambda job: job.recipe.tp > 1),
    Setting("--zero", lambda job: 0),
)


def test_a_job_is_written_in_the_table_s_order():
    job = job_of(Recipe(tp=2))
    assert write(TABLE, job) == {
        "--layers": job.model.num_layers,
        "--plain": True,
        "--norm": "LN",
        "--modules": ("a", "b"),
        "--zero": 0,
    }
    words = command_options(write(TABLE, job))
    assert words[1:4] == [("--plain",), ("--norm", "LN"), ("--modules", "a", "b")]


def test_parts_that_a_model_has_not_are_not_written():
    dense, experts = job_of(Recipe()), moe_job_of(Recipe())
    assert "--experts" not in write(TABLE, dense)
    normed = replace(experts, model=replace(experts.model, normalization="layernorm"))
    written = write(TABLE, normed)
    assert written["--experts"] == 8
    # No shared expert: a field that is 0.
    assert "--shared" not in written


def test_what_is_given_is_read_by_part():
    options = Options(["--layers", "3", "--plain", "--norm", "LN2"])
    assert read(TABLE, "model", options) == {
        "num_layers": 3,
        "gated_mlp": False,
        "normalization": "layernorm",
    }
    assert options.assumed == [("--norm LN2", "is LN")]
    assert read(TABLE, "model.moe", options) == {"num_experts": 4}


@pytest.mark.parametrize("words", ["--layers three", "--layers", "--norm RMS"])
def test_values_that_are_none_are_refused(words):
    with pytest.raises(InputError, match=words.split()[0]):
        read(TABLE, "model", Options(words.split()))


def test_a_switch_may_say_that_a_knob_is_off(monkeypatch):
    flag = Flag("--no-overlap", {True: False, False: True})
    declared = replace(KNOBS["tp_comm_overlap"], flags={MEGATRON_LM: flag})
    monkeypatch.setitem(KNOBS, "tp_comm_overlap", declared)
    row = knob(MEGATRON_LM, "tp_comm_overlap")
    on, off = (job_of(Recipe(tp=2, tp_comm_overlap=each)) for each in (True, False))
    assert write((row,), on) == {}
    assert write((row,), off) == {"--no-overlap": True}
    assert read((row,), "recipe", Options(["--no-overlap"])) == {"tp_comm_overlap": False}


def test_names_of_old_stand_for_those_of_now():
    older = {"--depth": ("--layers", None), "--deep": ("--layers", "96")}
    assert Options(["--depth", "2"], older).whole("--layers") == 2
    assert Options(["--depth", "2", "--layers", "3"], older).whole("--layers") == 3
    # A switch of old says its value whatever else is said.
    assert Options(["--deep", "--layers", "3"], older).whole("--layers") == 96
