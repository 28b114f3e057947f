"""Each tactic fires exactly when it should."""

from dataclasses import replace

import pytest
from hypothesis import given

from tests.optimizer.fake_simulator import FakeSimulator, toy_question
from tests.pruning.questions import jobs
from tests.simulators.jobs import MOE
from trainscout.pruning import TACTICS, apply_tactics, select_tactics
from trainscout.pruning.distributed_optimizer import DistributedOptimizer
from trainscout.pruning.micro_batches import QUANTISATION_GAIN
from trainscout.pruning.tactic import History, Known, resolves_others_rank
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

QUESTION = toy_question()
PREDICTION = FakeSimulator().simulate(QUESTION.job(Recipe(zero_stage=0)))


def history(*known, bar=None):
    """A history of ``known`` and, if given, one best recipe as fast as ``bar``."""
    resolved = History(top=1)
    for one in known:
        resolved.add(one)
    if bar is not None:
        resolved.add(Known(Recipe(tp=8, pp=2), True, PREDICTION, bar))
    return resolved


def out_of_memory(**fields):
    return Known(Recipe(**fields), fits=False)


def fits(time_like=1.0, **fields):
    return Known(Recipe(**fields), True, PREDICTION, time_like)


def rule(recipe, resolved, question=QUESTION):
    verdict = apply_tactics(question.job(recipe), resolved, TACTICS.values())
    return None if verdict is None else verdict.rule


class TestRecompute:
    @pytest.mark.parametrize(
        ("more", "less"),
        [
            (Recipe(recompute="full"), Recipe(recompute="none")),
            (Recipe(recompute="selective"), Recipe(recompute="none")),
            (Recipe(recompute="full"), Recipe(recompute="selective")),
            (Recipe(recompute="full"), Recipe(recompute="full", recompute_layers=3)),
            (
                Recipe(recompute="full", recompute_layers=5),
                Recipe(recompute="full", recompute_layers=3),
            ),
        ],
    )
    def test_fires_only_from_more_to_less(self, more, less):
        assert rule(less, history(Known(more, fits=False))) == "recompute_oom"
        assert rule(more, history(Known(less, fits=False))) is None
        assert rule(less, history(Known(more, True, PREDICTION, 1.0))) is None

    def test_another_difference_proves_nothing(self):
        resolved = history(out_of_memory(recompute="full", micro_batch=2))
        assert rule(Recipe(recompute="none", micro_batch=1), resolved) is None

    def test_one_layer_per_stage_gains_nothing_from_full(self):
        resolved = history(out_of_memory(recompute="full", pp=8))
        assert rule(Recipe(recompute="none", pp=8), resolved) is None
        resolved = history(out_of_memory(recompute="selective", pp=8))
        assert rule(Recipe(recompute="none", pp=8), resolved) == "recompute_oom"

    def test_unfused_attention_scores_can_make_full_the_larger(self):
        unfused = replace(QUESTION, framework=Framework(attention="unfused"))
        resolved = history(out_of_memory(recompute="full"))
        assert rule(Recipe(recompute="selective"), resolved, unfused) is None
        assert rule(Recipe(recompute="none"), resolved, unfused) == "recompute_oom"


class TestSequenceParallel:
    def test_fires_only_for_the_twin_without(self):
        resolved = history(out_of_memory(tp=2, sp=True))
        assert rule(Recipe(tp=2), resolved) == "sequence_parallel_oom"
        assert rule(Recipe(tp=4), resolved) is None
        assert rule(Recipe(tp=2, sp=True), history(out_of_memory(tp=2))) is None
        assert rule(Recipe(tp=2), history(fits(tp=2, sp=True))) is None


class TestDistributedOptimizer:
    parts = PREDICTION.breakdown_s
    # The norm of gradients takes no longer than the optimizer.
    at_best = 1 - (2 * parts["optimizer"] + parts["dp_communication"]) / PREDICTION.step_time_s

    def test_fires_when_even_free_sharding_cannot_reach_the_best(self):
        twin = fits(1.0, zero_stage=0)
        assert rule(Recipe(), history(twin, bar=self.at_best * 0.999)) == "distributed_optimizer"
        assert rule(Recipe(), history(twin, bar=self.at_best * 1.001)) is None

    def test_needs_a_twin_that_fits_and_enough_best(self):
        assert rule(Recipe(), history(out_of_memory(zero_stage=0), bar=0.01)) is None
        resolved = History(top=2)
        resolved.add(fits(1.0, zero_stage=0))
        assert rule(Recipe(), resolved) is None

    def test_leaves_overlap_and_other_stages_alone(self):
        twin = fits(1.0, zero_stage=0, overlap_grad_reduce=True)
        assert rule(Recipe(overlap_grad_reduce=True), history(twin, bar=0.01)) is None
        assert rule(Recipe(zero_stage=0), history(fits(1.0, zero_stage=1), bar=0.01)) is None

    @pytest.mark.parametrize(
        "facts",
        [
            {"torch_wrappers": True},
            {"flattens_gradients": True},
            {"fp8_param_gather": (QUESTION.training.precision,)},
        ],
    )
    def test_leaves_software_alone_where_sharding_does_more_than_share(self, facts):
        software = replace(QUESTION, framework=Framework(**facts))
        resolved = history(fits(1.0, zero_stage=0), bar=0.01)
        assert rule(Recipe(), resolved, software) is None
        assert rule(Recipe(), resolved) == "distributed_optimizer"

    @pytest.mark.parametrize(("critical", "fires"), [(0, None), (1, "distributed_optimizer")])
    def test_counts_experts_for_themselves(self, critical, fires):
        """Their gradients meet fewer ranks: nothing follows from a stage that has none."""
        layers = QUESTION.model.num_layers // 2
        moe = replace(MOE.moe, num_dense_layers=layers)
        asked = replace(QUESTION, model=replace(MOE, num_layers=2 * layers, moe=moe))
        prediction = replace(PREDICTION, critical_stage=critical)
        twin = Known(Recipe(zero_stage=0, pp=2), True, prediction, 1.0)
        assert rule(Recipe(pp=2), history(twin, bar=0.01), asked) == fires

    def test_no_step_is_shorter_than_by_what_it_says(self):
        compared = []

        @given(jobs(zero_stage=(1,)))
        def check(job):
            recipe = replace(job.recipe, overlap_grad_reduce=False, overlap_param_gather=False)
            job, plain = (replace(job, recipe=replace(recipe, zero_stage=zero)) for zero in (1, 0))
            if why_invalid(job) is None is why_invalid(plain):
                own, twin = map(ReplaySimulator().without_error_bar, (job, plain))
                known = Known(plain.recipe, True, twin, twin.step_time_s)
                # What is better than the best so far is never skipped.
                resolved = history(known, bar=own.step_time_s * (1 + 1e-9))
                assert DistributedOptimizer().check(job, resolved) is None
                fires = DistributedOptimizer().check(job, history(known, bar=1e-9))
                compared.extend([job] if fires else [])

        check()
        assert compared

    def test_does_not_guess_without_the_parts(self):
        prediction = replace(PREDICTION, breakdown_s={"compute": PREDICTION.step_time_s})
        twin = Known(Recipe(zero_stage=0), True, prediction, 1.0)
        assert rule(Recipe(), history(twin, bar=0.01)) is None


class TestMicroBatches:
    def test_fires_only_far_from_the_best(self):
        larger = fits(1.0, micro_batch=4)
        far, near = 1 - QUANTISATION_GAIN - 0.001, 1 - QUANTISATION_GAIN + 0.001
        assert rule(Recipe(micro_batch=2), history(larger, bar=far)) == "micro_batches"
        assert rule(Recipe(micro_batch=1), history(larger, bar=far)) == "micro_batches"
        assert rule(Recipe(micro_batch=2), history(larger, bar=near)) is None

    def test_needs_a_larger_twin_that_fits_and_no_pipeline(self):
        far = 0.01
        smaller = fits(1.0, micro_batch=1)
        assert rule(Recipe(micro_batch=2), history(smaller, bar=far)) is None
        resolved = history(out_of_memory(micro_batch=4), bar=far)
        assert rule(Recipe(micro_batch=2), resolved) is None
        resolved = history(fits(1.0, micro_batch=4, pp=2), bar=far)
        assert rule(Recipe(micro_batch=2, pp=2), resolved) is None

    def test_leaves_alone_what_runs_beside_another_micro_batch(self):
        beside = {"overlap_moe_expert_parallel_comm": True}
        resolved = history(fits(1.0, micro_batch=4, **beside), bar=0.01)
        assert rule(Recipe(micro_batch=2, **beside), resolved) is None


def test_no_runtime_is_ruled_out_when_time_alone_does_not_decide():
    resolved = history(
        Known(Recipe(micro_batch=4), True, PREDICTION, None),
        Known(Recipe(zero_stage=0), True, PREDICTION, None),
        bar=0.01,
    )
    assert rule(Recipe(micro_batch=2), resolved) is None
    assert rule(Recipe(), resolved) is None


def test_the_twin_that_resolves_comes_first_in_an_exhaustive_search():
    for first, second in (
        (Recipe(recompute="full"), Recipe(recompute="selective")),
        (Recipe(recompute="full"), Recipe(recompute="full", recompute_layers=3)),
        (
            Recipe(recompute="full", recompute_layers=3),
            Recipe(recompute="full", recompute_layers=1),
        ),
        (Recipe(tp=2, sp=True), Recipe(tp=2)),
        (Recipe(zero_stage=0), Recipe(zero_stage=1)),
        (Recipe(micro_batch=4), Recipe(micro_batch=2)),
    ):
        assert resolves_others_rank(first) < resolves_others_rank(second)


def test_unknown_tactics_are_refused_with_the_nearest():
    with pytest.raises(InputError) as refused:
        select_tactics(["micro_batch"])
    assert refused.value.nearest == "micro_batches"


def test_every_tactic_is_found_by_its_name():
    assert all(name == tactic.name for name, tactic in TACTICS.items())
