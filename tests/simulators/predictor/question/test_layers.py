"""Patterns of layers: what they say, what is refused, and that old declarations mean the same."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.jobs import (
    HYBRID,
    LLAMA,
    MLA_MOE,
    MOE,
    SPARSE,
    SSM,
    UNCUT,
    make_job,
)
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layer_pattern import format_layers, parse_layers
from trainscout.simulators.predictor.question.layers import (
    DENSE_LAYER,
    EXPERT_LAYER,
    AttentionMixer,
    Index,
    Layer,
    Mixer,
)
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.megatron import build_workload

FOUR = Mixer(attention=AttentionMixer(heads=4, kv_heads=4))


def test_a_pattern_is_read_in_order() -> None:
    found = parse_layers("2*(3*linear/moe, attention/none), none/dense")
    linear, attention = Layer("linear", "moe"), Layer("attention", "none")
    assert found == (*(3 * (linear,) + (attention,)) * 2, Layer("none", "dense"))


words = st.builds(Layer, st.sampled_from(["a", "b", "none"]), st.sampled_from(["dense", "moe"]))


@given(st.lists(words, min_size=1, max_size=40))
def test_what_is_written_is_read_back(layers: list[Layer]) -> None:
    assert parse_layers(format_layers(layers)) == tuple(layers)


def test_repetitions_are_folded() -> None:
    layers = parse_layers("10*(5*local/dense, attention/dense), 4*local/dense")
    assert format_layers(layers) == "10*(5*local/dense, attention/dense), 4*local/dense"


@pytest.mark.parametrize(
    "text",
    ["", "a", "a/dense,", "3*", "(a/dense", "a/dense)", "0.5*a/dense", "a/dense b/dense", "\x00"],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"model\.layers"):
        parse_layers(text)


def test_many_layers_are_refused_before_they_are_made() -> None:
    with pytest.raises(InputError, match="more than 10,000 layers"):
        parse_layers("9999*(9999*(9999*a/dense))")


@pytest.mark.parametrize(
    ("changes", "field", "words_"),
    [
        ({"layers": "11*attention/moe"}, "model.layers", "adds up to 11 layers"),
        ({"layers": "12*attention/mow"}, "model.layers", "did you mean 'moe'"),
        ({"layers": "12*atention/moe"}, "model.layers", "did you mean 'attention'"),
        ({"layers": "11*attention/moe, none/none"}, "model.layers", "layers of nothing"),
        ({"layers": "12*local/dense"}, "model.layers", "no layer with experts"),
        ({"layers": None}, "model.kinds.local", "for no layer"),
        (
            {"kinds": {"local": Mixer(attention=AttentionMixer(window=0))}},
            "model.kinds.local.attention.window",
            "out of range",
        ),
        (
            {"kinds": {"local": Mixer(attention=AttentionMixer(window=8, chunk=8))}},
            "model.kinds.local.attention",
            "one of window, chunk, index",
        ),
        (
            {"kinds": {"local": Mixer(attention=AttentionMixer(index=Index(4, 0, 16)))}},
            "model.kinds.local.attention.index.dim",
            "out of range",
        ),
        (
            {"kinds": {"local": Mixer(mamba2=replace(SSM, groups=3))}},
            "model.kinds.local.mamba2.groups",
            "does not divide",
        ),
        ({"kinds": {"local": Mixer()}}, "model.kinds.local", "mixes nothing"),
        (
            {"kinds": {"local": Mixer(attention=AttentionMixer(heads=8, kv_heads=3))}},
            "model.kinds.local.attention.kv_heads",
            "does not divide 8 heads",
        ),
        (
            {"kinds": {"local": Mixer(attention=AttentionMixer(gated=True, head_gates=True))}},
            "model.kinds.local.attention.head_gates",
            "one of the two",
        ),
        (
            {"kinds": {"local": Mixer(mamba2=SSM), "x": Mixer(mamba2=SSM)}},
            "model.kinds.x",
            "no layer",
        ),
        ({"moe": replace(MOE.moe, layer_period=2)}, "model.moe.layer_period", "beside"),
    ],
)
def test_impossible_kinds_are_refused_by_field(
    changes: dict[str, object], field: str, words_: str
) -> None:
    good = {"layers": "6*(local/dense, attention/moe)"}
    good |= {"kinds": {"local": Mixer(attention=AttentionMixer(window=8))}}
    model = replace(MOE, **good)
    model.check()
    with pytest.raises(InputError, match=words_) as caught:
        replace(model, **changes).check()
    assert caught.value.field == field


def test_a_model_with_a_pattern_is_a_value() -> None:
    again = pickle.loads(pickle.dumps(HYBRID))
    assert again == HYBRID
    assert hash(again) == hash(HYBRID)
    assert again.pattern == HYBRID.pattern
    assert (
        replace(HYBRID, kinds=HYBRID.kinds | {"ssm": Mixer(mamba2=replace(SSM, state=8))}) != again
    )


@pytest.mark.parametrize("name", list(load_catalogue().models))
def test_a_pattern_that_says_the_same_predicts_the_same(name: str) -> None:
    declared = load_catalogue().models[name]
    if declared.layers is not None or declared.pooled is not None:
        return  # pairs are compared on one stage
    moe = declared.moe and replace(declared.moe, num_dense_layers=0, layer_period=1)
    patterned = replace(declared, moe=moe, layers=format_layers(declared.pattern))
    patterned.check()

    def job_of(model: Model, tp: int) -> Job:
        shape = {"tp": tp, "sp": True, "pp": 4, "pipeline_layout": "balanced"}
        return make_job(model, nodes=8, recompute="full", recompute_layers=2, **shape)

    # Of 14 or 28 heads eight ranks have no equal share.
    tp = next(each for each in (8, 4, 2) if why_invalid(job_of(declared, each)) is None)
    found = []
    for model in (declared, patterned):
        job = job_of(model, tp)
        assert why_invalid(job) is None
        prediction = ReplaySimulator().without_error_bar(job)
        parameters = sum(stage.parameters.total for stage in build_workload(job).stages)
        found.append(
            (
                prediction.step_time_s,
                prediction.memory,
                step_flops(job),
                parameters,
                model.layer_kinds,
            )
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("model", [LLAMA, MOE, MLA_MOE])
def test_layers_without_a_pattern_are_attention_and_an_mlp_or_experts(model: Model) -> None:
    assert model.is_plain
    assert set(model.layer_kinds) <= {DENSE_LAYER, EXPERT_LAYER}


@pytest.mark.parametrize(
    ("model", "recipe", "field"),
    [
        (HYBRID, {"cp": 2, "cp_comm_type": "p2p"}, "cp_comm_type"),
        (SPARSE, {"cp": 2, "cp_comm_type": "a2a"}, "cp"),
        (HYBRID, {"ep": 2, "overlap_moe_expert_parallel_comm": True}, None),
        (
            replace(HYBRID, kinds=HYBRID.kinds | {"ssm": Mixer(mamba2=replace(SSM, groups=1))}),
            {"tp": 2},
            "tp",
        ),
        (UNCUT, {"tp": 2}, "tp"),
        (UNCUT, {"cp": 2, "cp_comm_type": "a2a"}, "cp"),
        (replace(UNCUT, layers="12*narrow/moe", kinds={"narrow": FOUR}), {"tp": 8}, "tp"),
    ],
)
def test_recipes_that_no_mixer_of_the_model_has(
    model: Model, recipe: dict[str, object], field: str | None
) -> None:
    recipe = {"sp": recipe.get("tp", 1) > 1} | recipe
    violation = why_invalid(make_job(model, **recipe))
    assert violation is not None
    assert violation.field == (field or "overlap_moe_expert_parallel_comm")


def test_a_gpu_without_fp32_has_no_selective_scans() -> None:
    job = make_job(UNCUT)
    parts = (job.cluster, job.training, job.framework)
    Question(UNCUT, job.gpu, *parts).check()
    with pytest.raises(InputError, match="fp32") as caught:
        Question(UNCUT, make_job(LLAMA).gpu, *parts).check()
    assert caught.value.field == "gpu.peak_flops"
