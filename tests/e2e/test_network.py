"""Networks and uneven experts, from the command line."""

import json
from xml.etree import ElementTree

from tests.e2e.commands import environment, run
from tests.in_process import command
from tests.warm.session import run_python

LLAMA = [
    *("model=llama3_8b", "cluster=h100_64", "training.global_batch_size=256"),
    *("recipe.tp=8", "recipe.sp=true", "recipe.recompute=full"),
]
# One node under each leaf.
FLOW = ["network=flow", "topology.nics_per_leaf=8"]
SVG = "{http://www.w3.org/2000/svg}"


def test_a_prediction_on_a_network_says_what_congests(tmp_path):
    done = run("simulate.py", *LLAMA, *FLOW, "topology.oversubscription=2", cwd=tmp_path)
    for shown in ("Congestion", "Utilisation", "Hot links", ":up", "flow engine", "2:1"):
        assert shown in " ".join(done.stdout.split())
    (dp,) = [
        line.split() for line in done.stdout.splitlines() if line.lstrip().startswith("dp  ")
    ][:1]
    assert float(dp[-1]) >= 2


def test_a_picture_has_every_cable_and_what_it_carries(tmp_path):
    drawn = [*LLAMA, *FLOW, "topology.oversubscription=2", f"file={tmp_path}/map.svg"]
    assert command("network", "show")(drawn) == 0
    root = ElementTree.parse(tmp_path / "map.svg").getroot()
    assert root.tag == f"{SVG}svg"
    titles = [each.text for each in root.iter(f"{SVG}title")]
    cables = [title for title in titles if "Gb/s" in title]
    # 64 NICs and 8 leaves with 4 uplinks each.
    assert len(cables) == len(set(cables)) == 64 + 8 * 4
    assert any(title.endswith("dp 100%") for title in cables)


def test_json_has_the_factors_and_the_time_they_cost(tmp_path):
    answers = []
    for links in ([], ["topology.oversubscription=4", "+topology.link_health.leaf0-spine1=0"]):
        done = run("simulate.py", *LLAMA, *FLOW, *links, "format=json", cwd=tmp_path)
        answers.append(json.loads(done.stdout))
    full, worn = answers
    assert worn["step_time_s"] > full["step_time_s"]
    use = next(each for each in worn["network"] if each["communicator"] == "dp")
    # Of two uplinks one is left.
    assert use["congestion_factor"] >= 7.9
    assert use["hot_links"][0]["link"].startswith("leaf0-spine0:")


def test_uneven_experts_are_shown_beside_even_ones(tmp_path):
    (tmp_path / "loads.csv").write_text(
        "expert,tokens\n"
        + "".join(f"{expert},{100 + 50 * (expert == 3)}\n" for expert in range(8))
    )
    done = run(
        "simulate.py", "model=mixtral_8x7b", "cluster=h100_64", "training.global_batch_size=128",
        "recipe.ep=8", "recipe.etp=1", "recipe.pp=2", "recipe.recompute=full", "format=json",
        "model.moe.histogram=loads.csv",
        cwd=tmp_path,
    )  # fmt: skip
    even, uneven = json.loads(done.stdout)["experts"].values()
    # Every expert has a GPU of its own; the third receives 150 of 850.
    times = uneven["expert_gemm_s"] / even["expert_gemm_s"]
    assert 1.2 < times < 8 * 150 / 850 + 0.01
    assert uneven["step_time_s"] > even["step_time_s"]


def test_a_search_assumes_the_network_it_was_told(tmp_path):
    done = run(
        "optimize.py", "model=llama3_8b", "cluster=h100_64", "training.global_batch_size=256",
        *FLOW, "topology.oversubscription=2", "search=random", "search.n_trials=12",
        "space=moye", "executor=serial", "tracking=none", "verbosity=verbose",
        cwd=tmp_path,
    )  # fmt: skip
    assert "as the flow engine plays it over leaf_spine" in " ".join(done.stdout.split())


def test_a_fabric_is_drawn_and_priced(tmp_path):
    done = run_python(
        "-m", "trainscout", "network", "show", "topology=dragonfly_plus", "model=llama3_8b",
        "cluster=h100_64", "topology.nics_per_leaf=8", "topology.leaves_per_pod=2",
        "recipe.tp=8", "file=drawn.svg", "format=json", "fabric_prices.nic_usd_per_gbps=0",
        cwd=tmp_path, environment=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    # 8 leaves of 8 NICs and 8 links up each; a pod's 8 spines have 2 ports down and 2 over to the
    # 3 others, so that a switch of a leaf's 16 ports stands for 4 of them.
    parts = answer["parts"]
    assert (parts["leaves"], parts["spines"], parts["cores"]) == (8, 8, 0)
    assert parts["cables"] == 64 + 8 * 8 + 6 * 5
    assert answer["usd"] > 0
    root = ElementTree.parse(tmp_path / "drawn.svg").getroot()
    assert sum(1 for _ in root.iter(f"{SVG}path")) == parts["cables"]


def test_the_step_is_played_whole_on_request(tmp_path):
    """One node under a leaf with one uplink: stages and replicas share it."""
    question = ["model=llama3_8b", "cluster=h100_64", "training.global_batch_size=64"]
    recipe = ["recipe.tp=2", "recipe.pp=2", "recipe.recompute=full"]
    answers = []
    for more in ([], ["network.budget_s=0.0001"]):
        done = run(
            "simulate.py", *question, *recipe, *FLOW, "topology.oversubscription=4",
            "format=json", *more, cwd=tmp_path,
        )  # fmt: skip
        answers.append(json.loads(done.stdout))
    whole, cut = (each["whole_step"] for each in answers)
    assert whole["reached"] == 1
    assert whole["alone_s"] < whole["together_s"] <= whole["priced_s"]
    assert {each["communicator"] for each in whole["communicators"]} == {"dp", "pp"}
    assert cut["reached"] < 1
    assert cut["together_s"] >= cut["alone_s"]
