"""What a network adds to predictions: nothing where nothing is shared, and never less."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainscout as ts
from tests.simulators.predictor.network.topology.test_network import fabric_named
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.collectives.price import price_collective
from trainscout.simulators.predictor.network.choice import CongestedNetwork, NetworkChoice
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.congestion import Congestion
from trainscout.simulators.predictor.replay.network_use import network_use
from trainscout.simulators.predictor.workload.communicators import communicators, dimension
from trainscout.simulators.predictor.workload.ir import Collective
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.registry import SimulatorSpec, check_simulator, get_simulator

# Single uplinks, as fat as the NICs below them: what is shared is shared evenly.
FULL = fabric_named("leaf_spine", nics_per_leaf=8, uplink_gbps=3200.0, hop_latency_s=0.0)
HALF = replace(FULL, oversubscription=2.0)
HASHED = fabric_named("leaf_spine", nics_per_leaf=8)
RECIPES = (
    Recipe(tp=2, sp=True, pp=2, recompute="full"),
    Recipe(tp=8, sp=True, recompute="full", zero_stage=3),
    Recipe(tp=1, cp=4, pp=2, vpp=4, recompute="full", overlap_grad_reduce=True),
    Recipe(tp=1, recompute="full", zero_stage=3, dp_shard=32),
)
MIXTRAL = Recipe(ep=8, pp=2, recompute="full")


def question(model: str = "llama3_8b", **cluster: Any) -> Question:
    asked = ts.question(model=model, cluster="h100_64", global_batch_size=256)
    return replace(asked, cluster=replace(asked.cluster, **cluster))


LLAMA, EXPERTS = question(), question("mixtral_8x7b")


def spec(fabric: Any = HALF, **choice: Any) -> SimulatorSpec:
    return SimulatorSpec(
        network=CongestedNetwork(NetworkChoice(**{"engine": "flow", **choice}), fabric)
    )


def predicted(job: Job, of: SimulatorSpec | None = None) -> Prediction:
    assert why_invalid(job) is None
    return get_simulator(of or SimulatorSpec()).simulate(job)


def with_experts(**moe: Any) -> Job:
    model = EXPERTS.model
    assert model.moe is not None
    return replace(EXPERTS, model=replace(model, moe=replace(model.moe, **moe))).job(MIXTRAL)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_network_on_which_nothing_is_shared_changes_nothing(recipe: Recipe) -> None:
    job = LLAMA.job(recipe)
    alone, wired = predicted(job), predicted(job, spec(FULL))
    assert wired.step_time_s == alone.step_time_s
    assert wired.breakdown_s == alone.breakdown_s
    assert wired.memory == alone.memory
    assert wired.evidence_share == alone.evidence_share
    # Declared switches count whole, whatever part of the step is played on them.
    unvalidated = question(oversubscription=None).job(recipe)
    for choice in ({}, {"communicators": ("pp",)}):
        assert predicted(unvalidated, spec(FULL, **choice)).step_time_s == alone.step_time_s


def test_whatever_leaves_a_node_is_played() -> None:
    """What is not named shares no link: searches would choose it, as if oversubscription were free
    for it. (Of a whole replica only norms are summed: single numbers.)"""
    sharded = EXPERTS.job(replace(MIXTRAL, zero_stage=3, dp_shard=8))
    named = {dimension(name) for name in communicators(sharded)}
    assert named - {"model"} == set(NetworkChoice().communicators)


@pytest.mark.parametrize(
    "job",
    [
        LLAMA.job(Recipe(tp=16, sp=True, recompute="full")),
        EXPERTS.job(replace(MIXTRAL, tp=2, etp=2, sp=True, moe_dispatcher="allgather")),
    ],
)
def test_tensor_parallelism_and_gathered_tokens_meet_others_too(job: Job) -> None:
    narrow = replace(HALF, nics_per_leaf=8)
    played = predicted(job, spec(narrow))
    but_these = tuple(set(NetworkChoice().communicators) - {"tp", "etp", "etp_ep"})
    assert (
        played.step_time_s
        > 1.05 * predicted(job, spec(narrow, communicators=but_these)).step_time_s
    )


def test_nor_does_it_for_experts() -> None:
    for job in (EXPERTS.job(MIXTRAL), with_experts(hot_ratio=0.25, hot_weight=0.4)):
        assert predicted(job, spec(FULL)).step_time_s == predicted(job).step_time_s


def test_what_grows_with_the_size_takes_as_much_longer_as_links_are_oversubscribed() -> None:
    """One GPU of every node (tp=8): all of a ring crosses leaves."""
    job = LLAMA.job(RECIPES[1])
    group = communicators(job)["dp"]
    congestion = Congestion(job, spec().network)  # type: ignore[arg-type]
    large, larger = 2**30, 2**31
    prices = [
        (
            price_collective("all_gather", size, group, job.gpu, job.cluster).seconds,
            congestion.price(Collective("x", "all_gather", size, "dp"), True, group).seconds,
        )
        for size in (large, larger)
    ]
    (alone, slowed), (alone_larger, slowed_larger) = prices
    assert slowed_larger - slowed == pytest.approx(2 * (alone_larger - alone), rel=1e-6)
    assert 1.9 * alone < slowed < 2 * alone


def test_shares_of_links_are_the_same_however_little_is_played() -> None:
    """Hops take no share of 64 MB, but most of 10 kB."""
    job = LLAMA.job(RECIPES[1])
    fabric = replace(HALF, hop_latency_s=1e-6)
    little = predicted(job, spec(fabric, most_bytes_per_gpu=1e4))
    assert little.step_time_s == predicted(job, spec(fabric)).step_time_s


def test_tiny_messages_are_hardly_slowed_and_the_smallest_not_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = LLAMA.job(RECIPES[1])
    group = communicators(job)["dp"]
    congestion = Congestion(job, spec().network)  # type: ignore[arg-type]
    alone = price_collective("all_reduce", 64, group, job.gpu, job.cluster, "fp32").seconds
    op = Collective("x", "all_reduce", 64, "dp", "fp32")
    assert congestion.price(op, True, group).seconds == pytest.approx(alone, rel=0.02)
    monkeypatch.setattr(congestion, "slowed", None)
    op = replace(op, bytes=8)
    nothing_sent = price_collective("all_reduce", 8, group, job.gpu, job.cluster, "fp32")
    assert congestion.price(op, True, group) == nothing_sent


@pytest.mark.parametrize("recipe", RECIPES)
def test_sharing_costs_time_and_no_memory(recipe: Recipe) -> None:
    job = LLAMA.job(recipe)
    alone, full, half = predicted(job), predicted(job, spec(HASHED)), predicted(job, spec(HALF))
    assert alone.step_time_s < half.step_time_s
    assert alone.step_time_s < full.step_time_s
    assert half.memory == alone.memory
    assert half.evidence_share["estimated"] > alone.evidence_share["estimated"]
    assert "oversubscribed" in half.assumptions[-1]


def test_only_chosen_communicators_are_slowed() -> None:
    job = LLAMA.job(RECIPES[0])
    alone, slowed = predicted(job), predicted(job, spec(HALF, communicators=("pp",)))
    for part, seconds in alone.breakdown_s.items():
        if part in ("dp_communication", "tp_communication"):
            assert slowed.breakdown_s[part] == seconds
    assert slowed.breakdown_s["pp_communication"] > alone.breakdown_s["pp_communication"]


def test_a_pipeline_inside_nodes_meets_nobody() -> None:
    """Stages next to each other (tp=2 pp=4): what then leaves nodes are gradients."""
    recipe = Recipe(tp=2, sp=True, pp=4, recompute="full")
    close = replace(recipe, use_tp_pp_dp_mapping=True)
    slowed, kept = (predicted(LLAMA.job(each), spec(HASHED)) for each in (recipe, close))
    alone, kept_alone = (predicted(LLAMA.job(each)) for each in (recipe, close))
    part = "pp_communication"
    assert kept.breakdown_s[part] == kept_alone.breakdown_s[part] < alone.breakdown_s[part]
    assert slowed.breakdown_s[part] > alone.breakdown_s[part]
    assert kept.breakdown_s["dp_communication"] > slowed.breakdown_s["dp_communication"]


def test_the_clusters_own_oversubscription_is_the_networks_and_not_counted_twice() -> None:
    recipe = RECIPES[1]
    undeclared = replace(FULL, oversubscription=None)
    by_cluster = predicted(question(oversubscription=2.0).job(recipe), spec(undeclared))
    by_network = predicted(LLAMA.job(recipe), spec(HALF))
    assert by_cluster.step_time_s == pytest.approx(by_network.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("imbalance", "crossing", "busiest"),
    [
        # Halves of a group under two leaves: four GPUs send four others an eighth each.
        (1.0, 4 * 4 / 8, 7 / 8),
        # One receives a quarter of everything, the others equal parts of the rest.
        (2.0, 4 * (2 / 8 + 3 * (6 / 8) / 7), 7 * 2 / 8),
    ],
)
def test_hot_experts_take_a_leafs_uplinks_as_their_matrix_says(
    imbalance: float, crossing: float, busiest: float
) -> None:
    """Single-GPU nodes, four a leaf, 4:1: what crosses towards the hot expert has one NIC's rate
    between leaves, and what the busiest GPU receives has its NIC's where nothing is shared."""
    model = EXPERTS.model
    assert model.moe is not None
    moe = replace(model.moe, load_imbalance=imbalance)
    cluster = replace(EXPERTS.cluster, gpus_per_node=1, num_nodes=64, nics_per_node=1)
    job = replace(EXPERTS, model=replace(model, moe=moe), cluster=cluster).job(MIXTRAL)
    fabric = replace(FULL, nics_per_leaf=4, uplink_gbps=1600.0, oversubscription=4.0)
    use = network_use(job, build_workload(job), spec(fabric).network)  # type: ignore[arg-type]
    (exchange,) = [each for each in use.communicators if each.communicator == "ep"]
    assert exchange.operation == "all_to_all"
    assert exchange.factor == pytest.approx(crossing / busiest, rel=1e-3)


@pytest.mark.parametrize(("name", "busy_leaves"), [("embedding_grads", 4), ("copies", 8)])
def test_the_ends_of_a_pipeline_share_links_as_its_stages_do(name: str, busy_leaves: int) -> None:
    """Four stages on two nodes each: the ends sum tied embeddings, all stages mirrored copies."""
    tied = replace(LLAMA, model=replace(LLAMA.model, tied_embeddings=True))
    job = tied.job(Recipe(tp=8, sp=True, pp=4, recompute="full"))
    congestion = Congestion(job, spec().network)  # type: ignore[arg-type]
    group = communicators(job)["embedding"]
    op = Collective(name, "all_reduce", 2**30, "embedding", "fp32")
    alone = congestion.alone(op, True, group)
    assert congestion.price(op, True, group).seconds == pytest.approx(2 * alone.seconds, rel=0.01)
    slowed = congestion.slowed(op, True, group, alone)
    assert slowed.factor == pytest.approx(2, rel=1e-3)
    assert slowed.congested is not None
    first = congestion.model.network.first
    assert (slowed.congested.played.busy[first["leaf"] :] > 0).sum() == 2 * busy_leaves
    use = network_use(job, build_workload(job), spec().network)  # type: ignore[arg-type]
    assert {each.communicator: each.groups for each in use.communicators}["embedding"] == 16


def test_the_report_names_what_is_busy() -> None:
    job = LLAMA.job(RECIPES[1])
    use = network_use(job, build_workload(job), spec(HALF).network)  # type: ignore[arg-type]
    dp, inside = use.communicators
    assert (inside.communicator, inside.factor, inside.busy) == ("tp", 1, None)
    assert (dp.communicator, dp.groups, dp.group.size) == ("dp", 8, 8)
    assert dp.factor == pytest.approx(2, rel=1e-3)
    assert dp.alone_s < dp.seconds < 2 * dp.alone_s
    first = use.network.first
    assert dp.busy is not None
    assert dp.busy[first["leaf"] :].max() == pytest.approx(1, rel=1e-3)
    assert dp.busy[first["nic"] : first["leaf"]].max() == pytest.approx(0.5, rel=1e-3)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.sampled_from([LLAMA, EXPERTS]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 8]),
    st.floats(1.0, 8.0),
    st.integers(0, 3),
)
def test_a_network_never_makes_a_step_shorter(
    asked: Question, tp: int, pp: int, ep: int, ratio: float, seed: int
) -> None:
    recipe = Recipe(
        tp=tp,
        pp=pp,
        ep=ep if asked is EXPERTS else 1,
        etp=1 if asked is EXPERTS else None,
        sp=tp > 1,
        recompute="full",
        overlap_grad_reduce=seed % 2 == 0,
    )
    job = asked.job(recipe)
    if why_invalid(job) is not None:
        return
    fabric = replace(HASHED, oversubscription=ratio, ecmp_seed=seed)
    assert predicted(job, spec(fabric)).step_time_s >= predicted(job).step_time_s


def test_a_network_travels_to_workers_and_belongs_to_the_question() -> None:
    chosen = spec(replace(HALF, link_health={"leaf0-spine0": 0.5}))
    again = pickle.loads(pickle.dumps(chosen))
    assert again == chosen
    assert hash(again) == hash(chosen)
    assert chosen.identity() != spec(HALF).identity() != SimulatorSpec().identity()
    assert SimulatorSpec().identity() == "replay"


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ({"engine": "ether"}, "network.engine"),
        ({"communicators": ("db",)}, "network.communicators"),
        ({"communicators": ()}, "network.communicators"),
        ({"most_bytes_per_gpu": 0.0}, "network.most_bytes_per_gpu"),
    ],
)
def test_choices_that_cannot_be_played_are_refused(choice: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        NetworkChoice(**{"engine": "flow", **choice}).check()
    assert refused.value.field == field


def test_networks_that_a_cluster_cannot_have_are_refused() -> None:
    wrong = spec(replace(HALF, link_health={"leaf99-spine0": 0.5}))
    with pytest.raises(InputError, match=r"leaf99-spine0=0\.5: is not in this cluster"):
        check_simulator(wrong, LLAMA.gpu, LLAMA.cluster)
    own = replace(spec(), name="tests.optimizer.fake_simulator:FakeSimulator")
    with pytest.raises(InputError, match="takes no network"):
        get_simulator(own)


def test_what_a_network_plays_is_not_taken_for_granted() -> None:
    job = LLAMA.job(RECIPES[2])

    def stated(of: SimulatorSpec) -> str:
        return "; ".join(predicted(job, of).assumptions)

    worn = replace(HASHED, link_health={"node1-nic2": 0.25})
    peers, shared = "no link is slower than its peers", "do not share a NIC"
    assert peers in stated(SimulatorSpec())
    assert shared in stated(SimulatorSpec())
    assert peers in stated(spec(HASHED))
    assert shared not in stated(spec(HASHED))
    assert shared in stated(spec(HASHED, communicators=("dp",)))
    assert peers not in stated(spec(worn))
