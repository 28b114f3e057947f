"""Every declared model, GPU and cluster: complete, sourced, and of the published size."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

import trainscout.conf
from tests.conf.conftest import Compose, names
from tests.parameter_count import count_parameters
from trainscout.conf.build import build_question, build_recipe
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.kernels.choice import sustained_flops_per_s
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.validity import why_invalid

MODELS = [
    "gpt13b",
    "gpt30b",
    "gpt40b",
    "gpt70b",
    "gpt175b",
    "gpt485b",
    "gpt3_2b7",
    "gpt3_18b4",
    "gpt22b",
    "gpt530b",
    "gpt1t",
    "mixtral_8x1b75",
    "mixtral_8x7b",
    "mixtral_16x7b",
    "mixtral_32x7b",
    "mixtral_8x22b",
    "llama2_7b",
    "llama2_13b",
    "llama2_70b",
    "llama3_8b",
    "llama3_70b",
    "llama3_405b",
    "qwen2_5_72b",
    "qwen3_30b_a3b",
    "qwen3_235b_a22b",
    "llama4_maverick",
    "deepseek_v2",
    "deepseek_v3",
]
GPUS = [
    "v100_32",
    "a40",
    "a100_40",
    "a100_80",
    "a800_80",
    "h100",
    "h800",
    "h200",
    "h20",
    "b200",
    "gb200",
    "rtx3090",
    "h100_pcie",
    "h100_nvl",
    "a100_40_pcie",
    "v100_16",
    "a6000",
    "l40s",
    "rtx4090",
]
CLUSTERS = {
    "h800_96": 96,
    "a800_8": 8,
    "h100_64": 64,
    "v100_16": 16,
    "a40_8": 8,
    "a100_256": 256,
    "a100_512": 512,
    "h100_128": 128,
    "h100_512": 512,
    "h100_8192": 8192,
    "h100_16384": 16384,
    "b200_8": 8,
    "gb200_nvl72": 72,
}


def declared(group: str, name: str) -> dict[str, object]:
    path = Path(trainscout.conf.__file__).parent / group / f"{name}.yaml"
    content = read_yaml(path)
    assert isinstance(content, dict)
    return content


def model(name: str) -> Model:
    return load_catalogue().models[name]


def gpu(name: str) -> Gpu:
    return load_catalogue().gpus[name]


def test_every_promised_name_is_there() -> None:
    assert set(MODELS) <= set(names("model"))
    assert set(GPUS) <= set(names("gpu"))
    assert set(CLUSTERS) <= set(names("cluster"))


def one_of_each(group: str) -> list[str]:
    """The first file of each set of fields: Hydra composes those of one set alike."""
    found: dict[frozenset[str], str] = {}
    for name in names(group):
        found.setdefault(frozenset(_fields(declared(group, name))), name)
    return list(found.values())


def _fields(content: object, prefix: str = "") -> list[str]:
    if not isinstance(content, dict):
        return [prefix]
    return [each for key, value in content.items() for each in _fields(value, f"{prefix}.{key}")]


@pytest.mark.parametrize("name", names("model"))
def test_model_says_where_it_is_from(name: str) -> None:
    built = model(name)
    assert built.name == name
    assert len(built.source) > 20


@pytest.mark.parametrize("name", one_of_each("model"))
def test_model_composes_and_checks(composed: Compose, name: str) -> None:
    assert build_question(composed(f"model={name}")).model == model(name)


@pytest.mark.parametrize("name", one_of_each("gpu"))
def test_gpu_composes_and_wins_over_the_cluster(composed: Compose, name: str) -> None:
    built = build_question(composed(f"gpu={name}", "cluster=h100_64")).gpu
    assert built.name == name


@pytest.mark.parametrize("name", names("cluster"))
def test_cluster_composes_with_its_gpu_and_launches(composed: Compose, name: str) -> None:
    cfg = composed(f"cluster={name}", "model=llama3_8b", "recipe.tp=2")
    parts = build_question(cfg)
    assert parts.cluster.name == name
    assert parts.gpu.name == declared_gpu(name)
    assert parts.cluster.num_gpus == CLUSTERS.get(name, parts.cluster.num_gpus)
    job = Job(parts.model, parts.gpu, parts.cluster, parts.training, build_recipe(cfg.recipe))
    precisions = parts.gpu.peak_flops
    half = "bf16" if "bf16" in precisions else "fp16"
    batch = dataclasses.replace(
        parts.training, global_batch_size=parts.cluster.num_gpus, precision=half
    )
    assert why_invalid(dataclasses.replace(job, training=batch)) is None


def declared_gpu(cluster: str) -> str:
    defaults = declared("cluster", cluster)["defaults"]
    assert isinstance(defaults, list)
    return next(iter(defaults[0].values()))


@pytest.mark.parametrize("name", names("gpu"))
def test_every_gpu_figure_has_a_source(name: str) -> None:
    built = gpu(name)
    figures = {field.name for field in dataclasses.fields(Gpu)} - {
        "name",
        "architecture",
        "published_as",
        "sources",
    }
    # What a GPU may lack is None, or a link of no rate.
    optional = {"sustained_fraction", "products_of", "products_reach"}
    optional |= {"usual_server", "c2c_bytes_per_s", "pcie_staged"}
    figures -= {name for name in optional if not getattr(built, name)}
    assert set(built.sources) == figures
    assert all(len(source) > 10 for source in built.sources.values())
    assert "assumption" in built.sources["price_usd_per_hour"]


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        # Totals the publishers print, or count in the released weights, to this precision.
        ("gpt175b", 174.6, 0.001),
        ("gpt3_2b7", 2.65, 0.005),
        ("gpt3_18b4", 18.4, 0.005),
        ("gpt22b", 22, 0.005),
        ("gpt530b", 529.6, 0.001),
        ("gpt1t", 1008.0, 0.001),
        ("llama2_7b", 6.738, 0.0005),
        ("llama2_13b", 13.016, 0.0005),
        ("llama2_70b", 68.977, 0.0005),
        ("llama3_8b", 8.030, 0.0005),
        ("llama3_70b", 70.554, 0.0005),
        ("llama3_405b", 405.85, 0.0005),
        ("qwen2_5_72b", 72.7, 0.001),
        ("qwen3_30b_a3b", 30.5, 0.002),
        ("qwen3_235b_a22b", 235.1, 0.001),
        ("llama4_maverick", 400, 0.005),
        ("mixtral_8x7b", 46.7, 0.001),
        ("mixtral_8x22b", 140.6, 0.001),
        ("deepseek_v2", 236, 0.005),
        ("deepseek_v3", 671, 0.001),
        # Moye's names round: the shapes of Table 9 count less than their label.
        ("gpt13b", 13, 0.02),
        ("gpt40b", 40, 0.035),
        ("gpt485b", 485, 0.005),
        ("gpt30b", 28.7, 0.005),
        ("gpt70b", 64.9, 0.005),
    ],
)
def test_total_parameters_are_the_published_ones(
    name: str, billions: float, tolerance: float
) -> None:
    assert count_parameters(model(name)).total == pytest.approx(billions * 1e9, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("mixtral_8x7b", 12.9, 0.005),
        ("mixtral_8x22b", 39.1, 0.005),
        ("qwen3_30b_a3b", 3.3, 0.02),
        ("qwen3_235b_a22b", 22.2, 0.005),
        ("llama4_maverick", 17, 0.02),
        ("deepseek_v2", 21, 0.025),
        ("deepseek_v3", 37, 0.02),
    ],
)
def test_active_parameters_are_the_published_ones(
    name: str, billions: float, tolerance: float
) -> None:
    assert count_parameters(model(name)).active == pytest.approx(billions * 1e9, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral_8x1b75", 1.75),
        ("mixtral_8x7b", 7),
        ("mixtral_16x7b", 7),
        ("mixtral_32x7b", 7),
        ("mixtral_8x22b", 22),
    ],
)
def test_mixtral_names_count_one_expert_without_embeddings(name: str, billions: float) -> None:
    # "8x7B" names the layers a token would pass through with a single expert.
    mixtral = model(name)
    assert mixtral.moe is not None
    assert name.startswith(f"mixtral_{mixtral.moe.num_experts}x")
    single = dataclasses.replace(mixtral.moe, num_experts=1, top_k=1)
    count = count_parameters(dataclasses.replace(mixtral, moe=single))
    assert count.total - count.embedding == pytest.approx(billions * 1e9, rel=0.01)


def test_first_dense_layers_and_shared_experts() -> None:
    v2, v3 = model("deepseek_v2").moe, model("deepseek_v3").moe
    assert v2 is not None
    assert v3 is not None
    assert (v2.num_dense_layers, v3.num_dense_layers) == (1, 3)
    assert v2.shared_ffn_hidden_size == 2 * v2.ffn_hidden_size
    assert v3.shared_ffn_hidden_size == v3.ffn_hidden_size


@pytest.mark.parametrize("name", names("gpu"))
def test_narrower_arithmetic_is_never_slower(name: str) -> None:
    built = gpu(name)
    order = [p for p in ("fp8", "bf16", "fp16", "tf32", "fp32") if p in built.peak_flops]
    rates = [built.peak_flops[precision] for precision in order]
    assert rates == sorted(rates, reverse=True)


def test_generations_grow() -> None:
    a100, h100, b200, gb200 = (gpu(name) for name in ("a100_80", "h100", "b200", "gb200"))
    for older, newer in itertools.pairwise((a100, h100, b200, gb200)):
        assert older.peak("bf16") < newer.peak("bf16")
        assert older.sms < newer.sms
        assert older.memory_bandwidth_bytes_per_s <= newer.memory_bandwidth_bytes_per_s
        assert older.nvlink_bytes_per_s <= newer.nvlink_bytes_per_s


@pytest.mark.parametrize(
    ("cut", "whole"), [("a800_80", "a100_80"), ("h800", "h100")], ids=["a800", "h800"]
)
def test_export_parts_differ_in_nvlink_alone(cut: str, whole: str) -> None:
    lesser, full = gpu(cut), gpu(whole)
    assert lesser.nvlink_bytes_per_s == 200e9  # 400 GB/s over both directions
    assert lesser.nvlink_bytes_per_s < full.nvlink_bytes_per_s
    same = dataclasses.replace(
        lesser,
        name=full.name,
        published_as=full.published_as,
        nvlink_links=full.nvlink_links,
        nvlink_bytes_per_s=full.nvlink_bytes_per_s,
        price_usd_per_hour=full.price_usd_per_hour,
        sources=full.sources,
    )
    assert same == full


@pytest.mark.parametrize("name", names("gpu"))
def test_nvlink_links_carry_what_their_generation_does(name: str) -> None:
    per_link = {"blackwell": 50e9, **dict.fromkeys(("volta", "ampere", "hopper", "ada"), 25e9)}
    built = gpu(name)
    if built.architecture.link != "NVLink":
        pytest.skip(f"joined by {built.architecture.link}")
    expected = 14.0625e9 if name in ("a40", "a6000") else per_link[built.architecture.name]
    assert built.nvlink_bytes_per_s == built.nvlink_links * expected


@pytest.mark.parametrize("name", names("gpu"))
def test_memory_is_the_nominal_size_less_at_most_a_tenth(name: str) -> None:
    built = gpu(name)
    nominal = re.search(r"(\d+) GB", built.sources["memory_bytes"])
    assert nominal is not None
    assert 0.9 * int(nominal[1]) < built.memory_bytes / 2**30 <= int(nominal[1])


def test_any_size_by_override(composed: Compose) -> None:
    parts = build_question(composed("cluster=h100_64", "cluster.num_nodes=16"))
    assert parts.cluster.num_gpus == 128
    assert build_question(composed("gpu.price_usd_per_hour=3.5")).gpu.price_usd_per_hour == 3.5
    assert build_question(composed("cluster.memory_reserve=0.1")).cluster.memory_reserve == 0.1


def test_nvl72_is_one_nvlink_domain(composed: Compose) -> None:
    cluster = build_question(composed("cluster=gb200_nvl72")).cluster
    assert cluster.domain == cluster.num_gpus == 72
    assert build_question(composed("cluster=a40_8")).cluster.domain == 2


@pytest.mark.parametrize(
    ("name", "limit_w", "measured", "measured_limit_w", "sxm_limit_w"),
    [
        ("h100_pcie", 350, "h100", 700, 700),
        ("h100_nvl", 400, "h100", 700, 700),
        ("a100_40_pcie", 250, "a100_80_pcie", 300, 400),
    ],
)
def test_boards_of_less_power_hold_the_rate_of_the_stated_rule(
    name: str, limit_w: float, measured: str, measured_limit_w: float, sxm_limit_w: float
) -> None:
    at_rest_w = sxm_limit_w / 7
    dynamic = (limit_w - at_rest_w) / (measured_limit_w - at_rest_w)
    held = sustained_flops_per_s(gpu(measured), "bf16") * dynamic**0.5
    assert sustained_flops_per_s(gpu(name), "bf16") == pytest.approx(held, rel=2e-3)
