"""Image files that torchvision's own library would read, read without it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")
if importlib.util.find_spec("torchvision") is not None:
    pytest.skip("torchvision may have its own library", allow_module_level=True)

UNCHANGED, GRAY, RGB, RGBA = 0, 1, 3, 4


@pytest.fixture(scope="module")
def image():
    from trainscout.simulators.virtual_cluster.emulation.vendor.torchvision import (
        declare_images,
    )

    module = ModuleType("torchvision.io.image")
    module._has_image_ops = lambda: False
    declare_images(module)
    assert module._has_image_ops()
    # What is there is left alone, as of older releases, which ask nothing.
    declare_images(ModuleType("torchvision.io.image"))
    return torch.ops.image


@pytest.mark.parametrize(
    ("kind", "mode", "channels"),
    [
        ("RGB", UNCHANGED, 3),
        ("L", UNCHANGED, 1),
        ("P", UNCHANGED, 3),
        ("1", UNCHANGED, 1),
        ("RGB", GRAY, 1),
        ("L", RGB, 3),
        ("RGB", RGBA, 4),
    ],
)
def test_channels(image, tmp_path: Path, kind: str, mode: int, channels: int) -> None:
    Image.new(kind, (5, 3)).save(tmp_path / "image.png")
    data = image.read_file(str(tmp_path / "image.png"))
    assert bytes(data.tolist()) == (tmp_path / "image.png").read_bytes()
    found = image.decode_image(data, mode)
    assert (found.shape, found.dtype) == ((channels, 3, 5), torch.uint8)


def test_pixels_and_orientation(image, tmp_path: Path) -> None:
    pixels = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by half
    Image.fromarray(pixels).save(tmp_path / "image.png", exif=exif)
    data = image.read_file(str(tmp_path / "image.png"))
    expected = torch.from_numpy(pixels).permute(2, 0, 1)
    assert torch.equal(image.decode_png(data, RGB), expected)
    assert torch.equal(image.decode_png(data, RGB, True), expected.flip(1, 2))
