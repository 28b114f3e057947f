"""The GPUs that ``conf/gpu`` declares, read as data: nothing here imports ``conf``.

The commands that fit, measure and validate parts of a prediction need them without a question.
"""

from __future__ import annotations

from pathlib import Path

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Gpu

# A checkout and an installation both keep ``conf`` beside ``simulators``.
GPUS = Path(__file__).parents[3] / "conf" / "gpu"


def declared_gpus(folder: Path | None = None) -> dict[str, Gpu]:
    """Every GPU declaration of a folder (the project's own by default), by file name.

    Raises:
        InputError: when the folder holds none or a file is no such declaration.
    """
    folder = folder or GPUS
    gpus = {path.stem: load_gpu(path) for path in sorted(folder.glob("*.yaml"))}
    if not gpus:
        raise InputError("--gpus", folder, "holds no GPU declaration", "a folder like conf/gpu")
    return gpus


def load_gpu(path: Path) -> Gpu:
    """A GPU declaration (the fields of ``Gpu`` as flat YAML).

    Raises:
        InputError: when the file is not such a declaration.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
        rates = {name: float(rate) for name, rate in content["peak_flops"].items()}
        numbers = {
            name: float(value) if isinstance(value, str) and name != "name" else value
            for name, value in content.items()
            if name != "architecture"
        }
        gpu = Gpu(**{**numbers, "architecture": content["architecture"], "peak_flops": rates})
    except (OSError, TypeError, KeyError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise InputError("--gpu", path, f"is not a GPU declaration ({error})") from error
    gpu.check()
    return gpu
