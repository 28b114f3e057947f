"""Every command the documentation shows is one the program accepts."""

import itertools
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from conf.build import build_declared, build_recipe
from conf.commands import register_commands
from conf.door import run_directory
from conf.plan import build_plan, check_plan
from optimizer.options import EXECUTORS
from simulators.calibration import Calibration, calibration_text
from simulators.validity import check_job
from tests.e2e.commands import ROOT

PAGES = [
    "README.md",
    "docs/howto.md",
    "docs/network-in-predictions.md",
    "docs/performance.md",
    "docs/search.md",
    "conf/config.yaml",
    "conf/simulate.yaml",
]


def documented(program: str) -> list[list[str]]:
    """Arguments of each command of ``program`` that the pages show, once."""
    found: dict[tuple[str, ...], None] = {}
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", Path(ROOT, page).read_text())
        for shown in re.findall(rf"python {program} ([^`|\n]*)", text):
            arguments = tuple(shlex.split(shown, comments=True))
            if arguments and "..." not in arguments and "--help" not in arguments:
                found[arguments] = None
    return [list(arguments) for arguments in found]


@pytest.fixture(scope="module", autouse=True)
def hydra():
    register_commands()
    OmegaConf.register_new_resolver("run_directory", run_directory, replace=True)
    with initialize_config_module("conf", version_base="1.3"):
        yield


@pytest.fixture(autouse=True)
def own_files(tmp_path, monkeypatch):
    """The files that commands of these pages have written before."""
    monkeypatch.chdir(tmp_path)
    Path("calibration.yaml").write_text(calibration_text(Calibration("h100"), {}))
    Path("measured").mkdir()
    Path("measured/gemm_h100.csv").write_text(
        "gpu,dtype,m,n,k,batch,layout,time_us\nH100 SXM5,bf16,4096,4096,4096,1,TN,250\n"
    )


def jobs(arguments: list[str]) -> list[list[str]]:
    """The override lists of a command: one, or every combination of a ``-m`` sweep."""
    settings = [argument for argument in arguments if not argument.startswith("-")]
    if "-m" not in arguments:
        return [settings]
    names, values = zip(*(setting.split("=", 1) for setting in settings), strict=True)
    combinations = itertools.product(*(value.split(",") for value in values))
    return [
        [f"{name}={value}" for name, value in zip(names, combination, strict=True)]
        for combination in combinations
    ]


# A command that names a directory of the reader's own is run in the tests of such directories.
SEARCHES = [given for given in documented("optimize.py") if "--config-dir" not in given]


@pytest.mark.parametrize("arguments", SEARCHES, ids=" ".join)
def test_a_documented_search_could_start(arguments):
    for executor, package in EXECUTORS.items():
        if f"executor={executor}" in arguments and package and not find_spec(package):
            pytest.skip(f"needs {package}")
    if any(argument.endswith("=traced") for argument in arguments):
        pytest.importorskip("torch")
        pytest.importorskip("megatron.core")
    for overrides in jobs(arguments):
        check_plan(build_plan(compose("config", overrides)), None)


@pytest.mark.parametrize("arguments", documented("simulate.py"), ids=" ".join)
def test_a_documented_recipe_can_be_launched(arguments):
    config = compose("simulate", arguments)
    check_job(build_declared(config).job(build_recipe(config.recipe)))


def test_the_pages_show_commands():
    assert len(SEARCHES) >= 10
    assert len(documented("simulate.py")) >= 4
