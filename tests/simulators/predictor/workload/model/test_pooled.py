"""Classes of images and of sequences, and pairs of texts and images."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import CLASSES, HEARD, IMAGES, make_job
from tests.simulators.predictor.workload.blocks import operations, work
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.pooled import ALL, OWN, Pooled
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.tuning import Dpo
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import Collective, Gemm
from trainscout.simulators.predictor.workload.megatron import build_workload

MODELS = load_catalogue().models
TOKENS = replace(CLASSES, name="tokens", pooled=Pooled((256, 9), every_token=True))
CLIP = MODELS["clip_vit_l14"]


@pytest.mark.parametrize("model", [IMAGES, CLASSES, TOKENS, HEARD, CLIP, MODELS["siglip_so400m"]])
def test_products_are_what_flops_count(model) -> None:
    """Forward; causal kernels skip the half that the full square counts."""
    job = make_job(model, batch=16, micro_batch=2)
    assert work(job, "forward") * 8 == pytest.approx(step_flops(job).causal / 3, rel=1e-3)


@pytest.mark.parametrize(("contrastive", "ranks"), [(OWN, 1), (ALL, 8)])
def test_pairs_are_gathered_and_their_gradients_summed(contrastive: str, ranks: int) -> None:
    model = replace(CLIP, pooled=replace(CLIP.pooled, contrastive=contrastive))
    job = make_job(model, batch=32, micro_batch=4)
    gathered = [4 * ranks * 768 * 2] * (2 if ranks > 1 else 0)
    for way, kind in (("forward", "all_gather"), ("backward", "reduce_scatter")):
        found = [op for op in operations(job, way, Collective) if op.communicator == "dp"]
        assert [op.bytes for op in found] == gathered
        assert {op.kind for op in found} <= {kind}
    pairs = [op for op in operations(job, "forward", Gemm) if op.name.endswith("_pairs")]
    assert [(op.m, op.n, op.k) for op in pairs] == [(4, 4 * ranks, 768)] * 2


def test_a_published_encoder_takes_the_flops_that_its_paper_counts() -> None:
    """ViT-L/16 at 224: 61.6 billion multiplications (DeiT III, arXiv 2204.07118, table 1)."""
    job = make_job(MODELS["vit_l16"], batch=8)
    assert step_flops(job).model / 8 / 3 / 2 == pytest.approx(61.6e9, rel=0.01)


def test_layer_scale_costs_bytes_and_no_products() -> None:
    plain = make_job(IMAGES, batch=8)
    scaled = make_job(replace(IMAGES, layer_scale=True), batch=8)
    assert work(scaled, "forward") == work(plain, "forward")
    one, other = (ReplaySimulator().simulate(job) for job in (plain, scaled))
    assert other.step_time_s > one.step_time_s
    assert build_workload(scaled).stages[0].parameters.total == (
        build_workload(plain).stages[0].parameters.total + 2 * 12 * 256
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pooled": Pooled((100, 10))}, "model.pooled.widths"),
        ({"pooled": replace(HEARD.pooled, patch_size=0)}, "model.pooled.stem"),
        ({"pooled": Pooled((256, 10), contrastive=ALL)}, "model.pooled.contrastive"),
        ({"pooled": Pooled((256, 10), contrastive="most")}, "model.pooled.contrastive"),
        (
            {"pooled": Pooled((256, 4), contrastive=OWN, every_token=True)},
            "model.pooled.contrastive",
        ),
        ({"tied_embeddings": True}, "model.pooled"),
        ({"towers": CLIP.towers}, "model.pooled"),
    ],
)
def test_impossible_heads_are_refused(changes, field: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(CLASSES, **changes).check()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("model", "knobs", "field"),
    [
        (CLIP, {"micro_batch": 1}, "recipe.micro_batch"),
        (CLIP, {"micro_batch": 4, "pp": 2}, "recipe.pp"),
        (CLASSES, {"cp": 2}, "recipe.cp"),
    ],
)
def test_what_cuts_or_splits_what_is_compared_is_refused(model, knobs, field: str) -> None:
    with pytest.raises(InputError) as caught:
        check_job(make_job(model, batch=32, **knobs))
    assert caught.value.field == field


def test_pairs_of_answers_want_words() -> None:
    training = Training(8, 1e9, dpo=Dpo())
    with pytest.raises(InputError, match="none of"):
        training.check_for(IMAGES)


def test_images_of_learned_positions_have_their_own_length() -> None:
    for model, length in ((IMAGES, None), (IMAGES, IMAGES.sequence_length), (HEARD, 8)):
        Training(8, 1e9, sequence_length=length).check_for(model)
    with pytest.raises(InputError, match=r"training\.sequence_length"):
        Training(8, 1e9, sequence_length=8).check_for(IMAGES)


def test_towers_are_recomputed_with_the_layers() -> None:
    """Every layer's products come once more, and of what a layer keeps its input is left."""
    plain, again = (
        make_job(CLIP, batch=32, micro_batch=4, recompute=name) for name in ("none", "full")
    )
    more = work(again, "backward") - work(plain, "backward")
    assert 0.75 < more / work(plain, "forward") < 1
    found = [ReplaySimulator().simulate(job).memory.per_stage[0] for job in (plain, again)]
    kept = [stage.kind["activations"] for stage in found]
    assert kept[1] < kept[0] / 5
    flops = step_flops(again)
    assert flops.hardware / flops.model == pytest.approx(4 / 3, rel=0.02)
