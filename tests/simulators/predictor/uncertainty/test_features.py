import math
from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.jobs import make_job
from tests.simulators.predictor.uncertainty.rows import FEATURES
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.features import (
    KINDS,
    features_of,
    kinds_of,
    similarity,
    sizes_of,
    unlike,
)


def likeness(one, other):
    """``similarity`` of two predictions, written out."""
    kinds = zip(KINDS.values(), kinds_of(one), kinds_of(other), strict=True)
    squared = sum(distance**2 for distance, mine, theirs in kinds if mine != theirs)
    sizes = zip(sizes_of(one), sizes_of(other), strict=True)
    return math.exp(-0.5 * (squared + sum((mine - theirs) ** 2 for mine, theirs in sizes)))


def test_a_prediction_is_like_itself():
    assert likeness(FEATURES, FEATURES) == 1.0


@pytest.mark.parametrize(
    ("changes", "squared_distance"),
    [
        ({"gpu": "h800"}, 1.0),
        ({"gpu": "a100_80", "architecture": "ampere"}, 2.0),
        ({"vendor": "another"}, 2.25),
        ({"bits": 8}, 1.0),
        ({"kernel_error": 0.3, "fabric_error": 0.2, "slow_fabric_error": 0.4}, 0.0),
        ({"moe": True}, 2.25),
        ({"num_gpus": 256}, 1.0),
        ({"layer_s": 0.1}, 4.0),
        ({"communication_share": 0.25}, 1.0),
        ({"host_share": 0.3}, 4.0),
        ({"attention": "unfused", "fusion": "eager"}, 2.0),
    ],
)
def test_distances_add_as_squares(changes, squared_distance):
    expected = math.exp(-squared_distance / 2)
    assert likeness(replace(FEATURES, **changes), FEATURES) == pytest.approx(expected)


def test_features_follow_from_a_prediction():
    question = make_job(tp=2)
    prediction = ReplaySimulator().simulate(question)
    found = features_of(question, prediction.step_time_s, prediction.breakdown_s)
    assert found.gpu == question.gpu.name
    assert found.num_gpus == question.world_size
    parts = prediction.breakdown_s
    exposed = sum(parts[part] for part in parts if part.endswith("_communication"))
    assert found.communication_share == pytest.approx(exposed / prediction.step_time_s)
    assert found.host_share == pytest.approx(parts["host"] / prediction.step_time_s)
    layers = question.model.num_layers / question.recipe.pp
    per_layer = parts["compute"] / layers / question.num_micro_batches
    assert found.layer_s == pytest.approx(per_layer)


def test_a_model_is_known_by_its_experts_and_not_by_its_name():
    question = make_job()
    renamed = replace(question, model=replace(question.model, name="other"))
    parts = {"compute": 1.0}
    assert features_of(question, 2.0, parts) == features_of(renamed, 2.0, parts)


def test_likeness_is_the_similarity_of_a_table():
    others = [replace(FEATURES, bits=8), replace(FEATURES, num_gpus=8, layer_s=0.02), FEATURES]
    kinds = [
        [mine != theirs for mine, theirs in zip(kinds_of(FEATURES), kinds_of(other), strict=True)]
        for other in others
    ]
    found = similarity(
        unlike(np.array(kinds, dtype=int).T, np.zeros((len(KINDS), 1), dtype=int)),
        np.array([sizes_of(other) for other in others]).T,
        np.array([sizes_of(FEATURES)]).T,
    )
    assert found == pytest.approx([likeness(FEATURES, other) for other in others])
