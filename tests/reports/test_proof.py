"""The proof in words says what the certificate says."""

from dataclasses import replace

import pytest

from trainscout.optimizer.certificate import Certificate
from trainscout.reports.proof import format_proof

PROVED = Certificate(
    objectives=("cost",),
    points=1400,
    not_launchable={"experts": 20, "batch_divides": 400},
    equal=20,
    equal_by_rule={"sharding": 20},
    recipes=960,
    out_of_memory=640,
    out_of_reach=288,
    simulated=32,
    failed=0,
    open=0,
    top_k=10,
    epsilon=0.0,
    proved=True,
    best=100.0,
    bound=100.0,
    gap=0.0,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "No other recipe of the space beats one of these 10 best, under this model."),
        ({}, "1,400 points, 400 break batch_divides, 20 break experts, 20 mean the same"),
        ({}, "640 (66.7%) are beyond doubt out of memory by their bound (a probability under 2%)"),
        ({"tight": 7}, "32 (3.3%) were simulated, 7 of them tight."),
        ({}, "A recipe fits that does with a probability of 80% or more."),
        ({"epsilon": 0.01}, "by more than 1.000%"),
        ({"failed": 3}, "Nothing is said about 3 that failed."),
        ({"objectives": ("cost", "memory")}, "beats one of this front"),
        ({"best": None, "gap": None}, "No recipe fits"),
        ({"recipes": 1}, "It is the only recipe of the space."),
        ({"not_launchable": {}, "equal": 0}, "Of 1,400 points, all 960 launchable recipes, 640"),
        (
            {"proved": False, "open": 1234, "gap": 0.008, "bound": 99.2},
            "1,234 recipes are open; by their bounds, one may be up to 0.80% better",
        ),
        (
            {"proved": False, "open": 960, "gap": None, "best": None},
            "Nothing proved yet: 960 recipes are open and none known fits.",
        ),
    ],
)
def test_the_claim_and_the_account(changes, expected):
    assert expected in format_proof(replace(PROVED, **changes))


def test_the_record_has_the_share_that_needed_no_simulation():
    assert PROVED.to_dict()["discarded_share"] == pytest.approx(928 / 960)
