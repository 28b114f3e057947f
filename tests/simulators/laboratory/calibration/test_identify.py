from dataclasses import replace

import pytest

from tests.simulators.laboratory.calibration.runs import cluster_jobs, launch_jobs, node_jobs
from trainscout.simulators.laboratory.calibration.identify import identify
from trainscout.simulators.laboratory.calibration.model import MeasuredRun, StepTimes
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.calibration import CORRECTIONS


def found(jobs, wanted=CORRECTIONS):
    return identify(
        StepTimes([MeasuredRun(str(n), job, 1.0) for n, job in enumerate(jobs)]), wanted
    )


def test_one_node_says_nothing_about_the_network():
    identified = found(node_jobs())
    assert identified.fitted == ("compute_time",)
    assert "network between nodes" in identified.fixed["network_time"]
    assert "0.0%" in identified.fixed["network_time"]
    assert "host" in identified.fixed["host_time"]


def test_several_nodes_say_something_about_the_network():
    assert found(cluster_jobs()).fitted == ("compute_time", "network_time")


def test_small_kernels_say_something_about_the_host():
    assert "host_time" in found([*node_jobs(), *launch_jobs()]).fitted


def test_what_is_not_asked_for_is_fixed():
    identified = found(cluster_jobs(), ("compute_time",))
    assert identified.fitted == ("compute_time",)
    assert identified.fixed["network_time"] == "not asked for"


def test_too_few_runs_are_refused():
    with pytest.raises(InputError, match="too few different runs"):
        found(node_jobs()[:3])


def test_a_run_repeated_is_one_run():
    with pytest.raises(InputError, match="too few different runs"):
        found(node_jobs()[:1] * 10)


def test_corrections_that_move_all_runs_alike_are_refused():
    job = cluster_jobs()[0]
    # Different jobs with one and the same step.
    alike = [
        replace(job, training=replace(job.training, tokens=tokens)) for tokens in (1, 2, 3, 4, 5)
    ]
    with pytest.raises(
        InputError, match=r"compute_time and network_time.*cannot be distinguished"
    ):
        found(alike)
    assert found(alike, ("compute_time",)).fitted == ("compute_time",)


def test_a_correction_with_hardly_any_effect_is_fixed():
    job = cluster_jobs()[-1]
    batches = (256, 512, 768, 1024)
    hidden = [
        replace(job, training=replace(job.training, global_batch_size=batch), recipe=recipe)
        for batch, recipe in zip(
            batches, (job.recipe, replace(job.recipe, micro_batch=2)) * 2, strict=True
        )
    ]
    identified = found(hidden)
    assert identified.fitted == ("compute_time",)
    assert "not identifiable" in identified.fixed["network_time"]
