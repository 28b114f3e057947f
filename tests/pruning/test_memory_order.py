"""Twins that are said to need no more memory need no more by the footprint."""

from dataclasses import replace

import pytest
from hypothesis import given

from tests.pruning.questions import MODELS, jobs
from tests.simulators.jobs import GPT175B, TINY, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.pruning import TACTICS
from trainscout.pruning.memory_order import MEMORY_ORDER
from trainscout.pruning.tactic import History, Known
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator


def used_bytes(job):
    memory = ReplaySimulator().without_error_bar(job).memory
    return memory.capacity_bytes - memory.headroom_bytes


# Most of a tactic's jobs have such a twin, where few of all jobs have.
DIRECTED = {
    "recompute_oom": {},
    # Experts under tensor parallelism have sequence parallelism already.
    "sequence_parallel_oom": {
        "tp": (2, 4),
        "sp": (False,),
        "model": tuple(each for each in MODELS if each.moe is None),
    },
    "micro_batch_oom": {"micro_batch": (2, 4)},
    "virtual_stages_oom": {
        "pp": (2, 3, 4, 6),
        "vpp": (2, 3),
        "schedule": ("1f1b",),
        "ends": ("even", "even", "counted"),
        "recompute": ("none", "selective", "selective", "full"),
        "model": tuple(
            each for each in MODELS if len(each.layer_kinds) == 1 and each.diffusion is None
        ),
    },
    "sharding_oom": {"zero_stage": (0, 0, 1)},
}


@pytest.mark.parametrize("tactic", MEMORY_ORDER, ids=lambda tactic: tactic.name)
def test_no_twin_needs_more(tactic):
    compared = []

    @given(jobs(**DIRECTED[tactic.name]))
    def check(job):
        for twin in tactic.twins(job):
            smaller = replace(job, recipe=twin)
            if why_invalid(smaller) is None:
                compared.append(twin)
                assert used_bytes(smaller) <= used_bytes(job)

    check()
    assert len(compared) > 10


@pytest.mark.parametrize("vpp", [1, 2, 4, 6])
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_orders_hold_on_a_published_model(vpp, micro_batch, recompute):
    recipe = {"vpp": vpp, "micro_batch": micro_batch, "recompute": recompute, "zero_stage": 0}
    job = make_job(GPT175B, nodes=32, batch=1536, tp=8, pp=8, sp=True, **recipe)
    for tactic in MEMORY_ORDER:
        for twin in tactic.twins(job):
            assert used_bytes(replace(job, recipe=twin)) <= used_bytes(job)


@pytest.mark.parametrize(
    ("tactic", "smaller", "larger"),
    [
        ("micro_batch_oom", {"micro_batch": 2}, {"micro_batch": 4}),
        ("virtual_stages_oom", {"pp": 2}, {"pp": 2, "vpp": 3}),
        ("sharding_oom", {"zero_stage": 1}, {"zero_stage": 0}),
        ("sharding_oom", {"zero_stage": 2}, {"zero_stage": 1}),
    ],
)
def test_fires_from_less_to_more_only(tactic, smaller, larger):
    check = TACTICS[tactic].check
    for known, asked, fires in ((smaller, larger, True), (larger, smaller, False)):
        for fits in (False, True):
            history = History(1)
            history.add(Known(Recipe(**known), fits))
            verdict = check(make_job(TINY, **asked), history)
            assert (verdict is not None) == (fires and not fits)
            if verdict is not None:
                assert verdict.rule == tactic
                assert not verdict.fits
                assert "needs no more memory" in verdict.reason


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        # A third of the size does not divide; recomputed layers are counted by chunk.
        ({"micro_batch": 3}, {"micro_batch": 4}),
        (
            {"pp": 2, "recompute": "full", "recompute_layers": 1},
            {"pp": 2, "vpp": 3, "recompute": "full", "recompute_layers": 1},
        ),
        ({"pp": 2, "vpp": 2}, {"pp": 2, "vpp": 3}),
        ({"zero_stage": 3}, {"zero_stage": 2}),
    ],
)
def test_what_is_no_order_resolves_nothing(smaller, larger):
    history = History(1)
    history.add(Known(Recipe(**smaller), False))
    for tactic in MEMORY_ORDER:
        assert tactic.check(make_job(TINY, **larger), history) is None


@pytest.mark.parametrize(
    ("facts", "micro_batch", "needs_more"),
    [
        (
            {"sums_whole_grads": True, "reduce_grads_fp32": True, "torch_wrappers": True},
            1,
            {"zero_stage": 2},
        ),
        ({"flattens_gradients": True, "gradient_bucket": "gradient"}, 1, {"zero_stage": 2}),
        # The smaller ones are two, of which the second meets gradients.
        ({"torch_wrappers": True}, 8, {"micro_batch": 4}),
    ],
)
def test_where_less_needs_more_it_resolves_nothing(facts, micro_batch, needs_more):
    training = {**facts, "accumulate_grads_fp32": False}
    model = replace(TINY, sequence_length=8)
    job = make_job(model, training=training, zero_stage=1, micro_batch=micro_batch)
    further = replace(job, recipe=replace(job.recipe, **needs_more))
    assert used_bytes(further) > used_bytes(job)
    for software in (job, replace(job, framework=load_catalogue().frameworks["nanotron"])):
        history = History(1)
        history.add(Known(further.recipe, False))
        assert not any(tactic.check(software, history) for tactic in MEMORY_ORDER)


def test_micro_batches_that_are_all_in_flight_in_a_pipeline_resolve_nothing():
    """A new gradient of weights meets more of what smaller ones keep."""
    known = load_catalogue()
    model = replace(known.models["gemma2_27b"], sequence_length=1024)
    for batch, fires in ((32, False), (256, True)):
        job = make_job(model, nodes=4, batch=batch, pp=8, micro_batch=2)
        job = replace(job, framework=known.frameworks["torch_compile"])
        smaller = replace(job, recipe=replace(job.recipe, micro_batch=1))
        assert (used_bytes(smaller) <= used_bytes(job)) == fires
        history = History(1)
        history.add(Known(smaller.recipe, False))
        assert (TACTICS["micro_batch_oom"].check(job, history) is not None) == fires
