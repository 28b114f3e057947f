"""Knob files: what they make of a command line, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.scripts.search import read_launch, survey_launches, tactics_for
from trainscout.optimizer.scripts.space import compile_script_space
from trainscout.pruning import TACTICS, apply_tactics, select_tactics
from trainscout.pruning.tactic import History, Known
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import UNDECLARED
from trainscout.simulators.predictor.question.launch import (
    Launch,
    Linear,
    MicroBatches,
    ScriptQuestion,
)

MEGATRON = {
    "given": {"global_batch_size": 64, "num_layers": 8},
    "knobs": {
        "tp": {"choices": [1, 2]},
        "pp": {"choices": [1, 2]},
        "multiplier": {"choices": [1, 2, 4]},
        "sp": {"choices": [False, True], "text": ["", "--sequence-parallel"], "when": "tp > 1"},
        "recompute": {"choices": ["none", "full"], "text": ["", "--recompute full"]},
    },
    "derived": {
        "dp": "world_size / (tp * pp)",
        "number": "multiplier * pp",
        "mbs": "global_batch_size / (dp * number)",
    },
    "means": {"tp": "tp", "pp": "pp", "sp": "sp", "recompute": "recompute", "micro_batch": "mbs"},
}
WORDS = ["train.py", "--tp", "{tp}", "--pp={pp}", "--mbs", "{mbs}", "{sp}", "{recompute}"]


def question(world_size=16, given=None):
    cluster, gpu = load_catalogue().machines("h100_64", None, prefix="--")
    return ScriptQuestion(cluster, gpu, UNDECLARED, world_size, given or {})


def compiled(spec, words, tmp_path, world_size=16):
    return compile_script_space(
        spec, words, question(world_size, spec.get("given") or {}), tmp_path
    )


def test_arguments_variables_and_files(tmp_path):
    (tmp_path / "train.toml").write_text('lr = 1\nwidth = {width}\nextra = {"a": 1}\n')
    spec = {
        "knobs": {"width": [8, 16], "algo": ["Ring"], "quiet": [True]},
        "environment": {"NCCL_ALGO": "{algo}"},
        "files": {"config": "train.toml"},
    }
    words = ["train.py", "--config", "{config}", "--quiet={quiet}", "{{width}}"]
    first, second = survey_launches(compiled(spec, words, tmp_path)).recipes
    config = "{config.toml}"
    assert first.start.words == ("train.py", "--config", config, "--quiet=true", "{width}")
    assert first.start.environment == (("NCCL_ALGO", "Ring"),)
    assert dict(first.start.files)["config.toml"] == 'lr = 1\nwidth = 8\nextra = {"a": 1}\n'
    assert "width = 16" in dict(second.start.files)["config.toml"]


def test_meaning_tells_launches_apart(tmp_path):
    survey = survey_launches(compiled(MEGATRON, WORDS, tmp_path))
    launch = Launch(tp=2, sp=True, micro_batch=4, recompute="full")
    point = survey.space.point(survey.point_of(launch))
    # The multiplier follows from the micro-batch, and tells nothing more.
    assert point == {"tp": 2, "pp": 1, "multiplier": 2, "sp": True, "recompute": "full"}
    found = survey.recipes[survey.row_of[survey.point_of(launch)]]
    expected = "train.py --tp 2 --pp=1 --mbs 4 --sequence-parallel --recompute full"
    assert found.start.words == tuple(expected.split())
    alone = Launch(tp=1, micro_batch=4)
    words = survey.recipes[survey.row_of[survey.point_of(alone)]].start.words
    assert words == ("train.py", "--tp", "1", "--pp=1", "--mbs", "4")


def test_points_that_start_the_same_are_one_launch(tmp_path):
    spec = {"knobs": {"a": [1, 2, 4]}, "derived": {"half": "a // 2"}}
    survey = survey_launches(compiled(spec, ["t.py", "{half}"], tmp_path))
    assert [each.start.words[1] for each in survey.recipes] == ["0", "1", "2"]
    spec["derived"]["half"] = "a // 4"
    survey = survey_launches(compiled(spec, ["t.py", "{half}"], tmp_path))
    assert len(survey) == 2
    assert survey.equal_points == 1


def test_record_and_back(tmp_path):
    launch = dataclasses.replace(
        survey_launches(compiled(MEGATRON, WORDS, tmp_path)).recipes[0],
        micro_batches=MicroBatches(8, 2),
        linear=Linear(40, (1, 2)),
    )
    record = json.loads(json.dumps(dataclasses.asdict(launch)))
    back = read_launch(record)
    assert back == launch
    compared = ("start", "traced", "micro_batches", "linear")
    assert [getattr(back, name) for name in compared] == [
        getattr(launch, name) for name in compared
    ]


def test_what_repeats_itself_is_traced_in_part(tmp_path):
    spec = {
        **MEGATRON,
        "repeats": {
            "some": {"step": "multiplier * pp", "traced": 2},
            "layers": {"step": "num_layers", "traced": ["pp", "2 * pp"]},
        },
        "derived": {**MEGATRON["derived"], "batch": "mbs * dp * some"},
    }
    words = [*WORDS, "{layers}", "{batch}"]
    survey = survey_launches(compiled(spec, words, tmp_path))
    launch = survey.recipes[survey.row_of[survey.point_of(Launch(tp=1, micro_batch=1))]]
    assert launch.start.words[-2:] == ("8", "64")
    # Two micro-batches of one sequence on sixteen replicas, of one layer and of two.
    assert [start.words[-2:] for start in launch.traced] == [("1", "32"), ("2", "32")]
    assert launch.micro_batches == MicroBatches(4, 2)
    assert launch.linear == Linear(8, (1, 2))
    whole = survey.recipes[survey.row_of[survey.point_of(Launch(tp=1, micro_batch=4))]]
    assert whole.micro_batches == MicroBatches(1, 1)


def test_tactics_apply_where_knobs_mean_something(tmp_path):
    space = compiled(MEGATRON, WORDS, tmp_path)
    assert set(tactics_for(space, tuple(TACTICS), survey_launches(space))) == {
        "recompute_oom", "sequence_parallel_oom", "micro_batches", "micro_batch_oom",
    }  # fmt: skip
    without = {name: MEGATRON[name] for name in ("given", "knobs", "derived")}
    space = compiled(without, WORDS, tmp_path)
    assert tactics_for(space, tuple(TACTICS), survey_launches(space)) == ()


@pytest.mark.parametrize(
    ("work", "known"), [("batch * 512", True), ("8192", False), (None, False)]
)
def test_smaller_micro_batches_say_nothing_where_fewer_larger_ones_make_a_step(
    tmp_path, work, known
):
    spec = {"knobs": {"batch": [1, 2, 4]}, "means": {"micro_batch": "batch"}}
    space = compiled(
        spec | ({"work_per_step": work} if work else {}), ["t.py", "{batch}"], tmp_path
    )
    survey = survey_launches(space)
    assert tactics_for(space, tuple(TACTICS), survey) == (("micro_batch_oom",) if known else ())
    # Of a batch that fills one micro-batch the gradients come as activations go.
    one, two = (survey.recipes[row] for row in (0, 1))
    history = History(top=5)
    history.add(Known(one, fits=False))
    tactics = select_tactics(["micro_batch_oom"])
    for given in ({}, {"global_batch_size": 32}, {"global_batch_size": 64}):
        verdict = apply_tactics(question(given=given).job(two), history, tactics)
        rules_out = given["global_batch_size"] > 32 if given else work is not None
        assert (verdict is not None) == rules_out


@pytest.mark.parametrize(
    ("failed", "asked", "rule"),
    [
        ({"sp": True, "tp": 2}, {"sp": False, "tp": 2}, "sequence_parallel_oom"),
        ({"recompute": "selective"}, {"recompute": "none"}, "recompute_oom"),
        ({"micro_batch": 2}, {"micro_batch": 4}, "micro_batch_oom"),
        ({"pp": 4, "vpp": 1}, {"pp": 4, "vpp": 2}, "virtual_stages_oom"),
        ({"zero_stage": 1}, {"zero_stage": 0}, "sharding_oom"),
    ],
)
def test_what_a_twin_without_memory_rules_out(failed, asked, rule):
    history = History(top=5)
    history.add(Known(Launch(**failed), fits=False))
    fixed = question(given={"num_layers": 8, "global_batch_size": 128})
    tactics = select_tactics([rule])
    verdict = apply_tactics(fixed.job(Launch(**asked)), history, tactics)
    assert verdict is not None
    assert verdict.rule == rule
    other = Launch(**asked, settings=(("seed", 1),))
    assert apply_tactics(fixed.job(other), history, tactics) is None


def test_smaller_micro_batches_rule_out_none_of_a_pipeline_that_may_hold_the_whole_batch():
    history = History(top=5)
    history.add(Known(Launch(pp=2, micro_batch=2), fits=False))
    tactics = select_tactics(["micro_batch_oom"])
    asked = Launch(pp=2, micro_batch=4)
    assert apply_tactics(question().job(asked), history, tactics) is None
    known = question(given={"global_batch_size": 4096})
    assert apply_tactics(known.job(asked), history, tactics) is not None


@pytest.mark.parametrize(
    ("change", "words", "named"),
    [
        ({}, [*WORDS, "{mbz}"], "mbs"),
        ({"knobs": {}}, WORDS, "knobs"),
        ({"knobs": {"tp": {"choices": []}}}, WORDS, "knobs.tp.choices"),
        ({"nobs": {}}, WORDS, "--space=nobs: .* stand under knobs:; did you mean .knobs"),
        ({"means": {"tpp": "tp"}}, WORDS, "tp"),
        ({"means": {"sp": "tp"}}, WORDS, "means.sp"),
        ({"files": {"config": "absent.toml"}}, [*WORDS, "{config}"], "absent.toml"),
        ({"derived": {"dp": "world_size / tpp"}}, WORDS, "tpp"),
        ({"repeats": {"some": {"step": "tp"}}}, WORDS, "traced"),
    ],
)
def test_wrong_knob_files_are_refused(change, words, named, tmp_path):
    with pytest.raises(InputError, match=named):
        survey_launches(compiled({**MEGATRON, **change}, words, tmp_path))


def test_a_knob_that_nothing_reads(tmp_path):
    spec = {**MEGATRON, "knobs": {**MEGATRON["knobs"], "lr": [1, 2]}}
    with pytest.raises(InputError, match="lr: changes nothing"):
        compiled(spec, WORDS, tmp_path)


def test_a_world_that_no_combination_fits(tmp_path):
    spec = {"knobs": {"tp": [2, 4]}, "means": {"tp": "tp"}}
    with pytest.raises(InputError, match=r"--world-size=7.*tp=2 does not divide"):
        survey_launches(compiled(spec, ["t.py", "{tp}"], tmp_path, world_size=7))
    spec = {"knobs": {"tp": [2, 4]}, "constraints": ["tp > 4"]}
    with pytest.raises(InputError, match="tp > 4"):
        survey_launches(compiled(spec, ["t.py", "{tp}"], tmp_path))


def test_constraints_may_name_what_is_derived(tmp_path):
    spec = {
        "knobs": {"tp": [1, 2, 4], "mode": ["dp", "fsdp"]},
        "derived": {"dp": "world_size / tp", "half": "dp / 2"},
        # Text that is spelled like a name is text.
        "constraints": ["half >= 2 and mode == 'dp'"],
    }
    space = compiled(spec, ["t.py", "{tp}", "{mode}"], tmp_path, world_size=8)
    found = [each.start.words for each in survey_launches(space).recipes]
    assert found == [("t.py", "1", "dp"), ("t.py", "2", "dp")]
