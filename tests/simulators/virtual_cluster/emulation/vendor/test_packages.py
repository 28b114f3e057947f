"""What is installed on the virtual machine, as import, find_spec and metadata see it."""

from __future__ import annotations

import builtins
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainscout.simulators.virtual_cluster.emulation.vendor as vendor
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.vendor.packages import MODULES


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    vendor.uninstall_vendor()


def test_every_listed_name_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    vendor.install_vendor()
    for module, implementations in MODULES.items():
        found = importlib.import_module(module)
        for names in implementations.values():
            for name in names:
                assert hasattr(found, name.partition("=")[0])


def test_names_come_from_their_files() -> None:
    # Read without torch: every implementation named is a file beside the catalogue.
    folder = Path(vendor.__file__).parent
    for implementations in MODULES.values():
        for file in implementations:
            assert (folder / f"{file.replace('.', '/')}.py").is_file()


def test_installed_packages_are_seen() -> None:
    vendor.install_vendor()
    tops = importlib.metadata.packages_distributions()
    for name, package in vendor.PACKAGES.items():
        if not package.modules:
            continue
        assert importlib.util.find_spec(name) is not None
        for spelt in (package.distribution, package.distribution.replace("-", "_")):
            assert importlib.metadata.version(spelt) == package.version
        assert package.distribution in tops[name]


def test_versions_are_what_megatron_asks_for() -> None:
    pytest.importorskip("torch")
    vendor.install_vendor()
    module = importlib.import_module("grouped_gemm")
    assert module.__version__ == "1.1.4"


def test_packages_can_be_absent() -> None:
    vendor.install_vendor(without=["apex", "transformer_engine"])
    for name in ("apex", "amp_C", "transformer_engine"):
        assert importlib.util.find_spec(name) is None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    assert importlib.util.find_spec("flash_attn") is not None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("apex")
    # Megatron-core's router looks for this whether or not Transformer Engine is there.
    assert builtins.te_general_gemm is None  # type: ignore[attr-defined]
    vendor.uninstall_vendor()
    assert not hasattr(builtins, "te_general_gemm")
    assert importlib.util.find_spec("flash_attn") is None


def test_names_not_emulated_are_missing_as_from_an_older_version() -> None:
    pytest.importorskip("torch")
    vendor.install_vendor()
    with pytest.raises(ImportError):
        importlib.import_module("apex.transformer.tensor_parallel")
    module = importlib.import_module("grouped_gemm.ops")
    assert not hasattr(module, "sinkhorn")


def test_modules_without_stand_ins_are_those_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    for name, text in (
        ("ops/triton/layer_norm", "raise OSError('needs a device')"),
        ("ops/own", "from mamba_ssm.ops.triton.layer_norm import RMSNorm"),
        ("__init__", "raise OSError('needs a device')"),
    ):
        file = tmp_path / "mamba_ssm" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    vendor.install_vendor()
    assert importlib.import_module("mamba_ssm.ops.own").RMSNorm.__module__.startswith("trainscout")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mamba_ssm.ops.neither")
    sys.modules.pop("mamba_ssm.ops.own")


def test_unknown_package_is_refused() -> None:
    with pytest.raises(InputError, match="transformer_engine"):
        vendor.install_vendor(without=["transformer_engin"])
    assert not any(name.startswith("transformer_engine") for name in sys.modules)


def test_what_a_stand_in_lacks_is_of_the_module_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "mamba_ssm" / "ops" / "selective_scan_interface.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import selective_scan_cuda\nselective_scan_fn = both_ways = selective_scan_cuda.fwd"
    )
    (tmp_path / "mamba_ssm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    vendor.install_vendor()
    stand_in = importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    compiled = importlib.import_module("selective_scan_cuda")
    assert stand_in.both_ways is compiled.fwd
    assert stand_in.selective_scan_fn is not compiled.fwd
    assert not hasattr(stand_in, "neither_has_it")


def test_a_stand_in_lacks_what_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "mamba_ssm" / "ops" / "triton" / "layer_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text("import nowhere_installed\nboth_ways = 1")
    (tmp_path / "mamba_ssm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    vendor.install_vendor()
    assert not hasattr(importlib.import_module("mamba_ssm.ops.triton.layer_norm"), "both_ways")
