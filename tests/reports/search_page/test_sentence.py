from dataclasses import replace

from tests.samples import MOE_MODEL, job_of
from trainscout.reports.search_page.recipes import recipe_sentence
from trainscout.simulators.predictor.question.recipe import Recipe


def test_says_what_a_recipe_does():
    words = recipe_sentence(
        job_of(Recipe(tp=4, pp=2, vpp=2, sp=True, recompute="selective", tp_comm_overlap=True))
    )
    assert words == (
        "Tensor parallelism over 4 GPUs, 2 pipeline stages of 2 chunks each, 2 data-parallel "
        "replicas, micro-batches of 1 (32 a step for each replica); recomputes selected modules; "
        "shards optimizer state (ZeRO 1); sequence parallel; overlaps tensor-parallel "
        "communication."
    )


def test_says_what_it_does_not():
    words = recipe_sentence(job_of(Recipe(pp=16, zero_stage=0)))
    assert words.startswith("No tensor parallelism, 16 pipeline stages, one replica")
    assert words.endswith("replicates optimizer state (ZeRO 0); overlaps no communication.")


def test_names_experts_and_context():
    job = replace(job_of(Recipe(ep=4, cp=2, zero_stage=3)), model=MOE_MODEL)
    assert "sequences split over 2 GPUs, experts spread over 4 GPUs" in recipe_sentence(job)
    assert "shards parameters and optimizer state (ZeRO 3)" in recipe_sentence(job)
