import pytest

from tests.simulators.jobs import LLAMA, make_job
from trainscout.reports.wording import format_question, format_ranks
from trainscout.simulators.predictor.question.tuning import Dpo, Lora


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([2], "#2"), ([2, 3, 4], "#2 to #4"), ([2, 3, 5, 7, 8], "#2 to #3, #5, #7 to #8")],
)
def test_ranks_are_run_together(ranks, words):
    assert format_ranks(ranks) == words


@pytest.mark.parametrize(
    ("dpo", "lora", "words"),
    [
        (Dpo(), None, "holds its own weights"),
        (Dpo(), Lora(8), "shares the frozen weights"),
        (Dpo(True), None, "is precomputed"),
    ],
)
def test_a_question_on_pairs_says_so(dpo, lora, words):
    stated = format_question(make_job(LLAMA, batch=16, training={"dpo": dpo, "lora": lora}))
    assert "batch 16 pairs x 64 tokens" in stated
    assert f"DPO (its reference {words})" in stated


def test_a_question_says_what_frozen_weights_are_kept_in():
    stated = format_question(make_job(LLAMA, training={"lora": Lora(8, frozen_weights="nf4")}))
    assert "beside weights in nf4" in stated
