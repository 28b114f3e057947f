"""When a script fails: is that its own doing or a gap of the emulator, said in one line."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from pickle import PickleError
from types import FrameType

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.vendor.packages import needs_own_python

_OWN = str(Path(__file__).parent)
# Frames that are nobody's call: the emulator's own and those of what it runs on.
_BELOW = ("/torch/", "/importlib/", "<frozen ", "<string>")
# What torch says of tensors without data.
_NO_DATA = (
    "data is not allocated",
    "Cannot access data pointer",
    "FakeTensor",
    "fake tensor",
    "without running `_apply`",
    "from the 'CUDA' backend",
)
# Of torch's pipeline stages, which tell each other the shapes they were not given.
_NEEDS_PEERS = "metadata required for recv info"
_RUN_TOGETHER = "give stages example inputs, or run their ranks together (trainscout live)"
_ADVICE = "leave it out of this run, or report this line"
_INSTALL = "install the package's own Python (pip install --no-deps), or run --without {}"


def describe_gap(error: BaseException) -> str | None:
    """The line for a failure that is the emulator's: operation, call site, what to do. None for
    one that a device raises too (out of memory, shapes that do not fit) or the script itself."""
    if isinstance(error, ImportError) and needs_own_python(
        package := (error.name or "").split(".")[0]
    ):
        return f"gap of the emulator: {error}; {_INSTALL.format(package)}"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = []
    for frame in reversed(frames):
        if not _is_below(frame):
            break
        inside.append(frame)
    else:
        frame = None
    if not _is_gap(error, inside):
        return None
    lines = {id(each): line for each, line in traceback.walk_tb(error.__traceback__)}
    where = "unknown place"
    if frame is not None:
        code = frame.f_code
        where = f"{code.co_filename}:{lines[id(frame)]} in {code.co_name}"
    refused = isinstance(error, InputError)
    what = _operation(inside) or "an operation"
    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    advice = "" if refused else f"; {_RUN_TOGETHER if _NEEDS_PEERS in reason else _ADVICE}"
    return f"gap of the emulator: {what} at {where}: {reason}{advice}"


def _is_below(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_OWN) or any(part in name for part in _BELOW)


def _is_gap(error: BaseException, inside: list[FrameType]) -> bool:
    if isinstance(error, InputError):
        return True
    if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError, ImportError)):
        return False
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    kinds = [
        getattr(fakes, name)
        for name in (
            *("UnsupportedFakeTensorException", "DynamicOutputShapeException"),
            *("DataDependentOutputException", "UnsupportedOperatorException"),
        )
        if hasattr(fakes, name)
    ]
    if isinstance(error, tuple(kinds)) or any(
        text in str(error) for text in (*_NO_DATA, _NEEDS_PEERS)
    ):
        return True
    emulated = [
        frame
        for frame in inside
        if frame.f_code.co_filename.startswith(_OWN)
        # What only stands around calls of the script's modules and compiled functions.
        and not frame.f_code.co_filename.endswith(("/optimizers.py", "/compiled.py"))
    ]
    if not emulated:
        return False
    if isinstance(error, NotImplementedError):
        return True
    # Shapes that do not fit and handles that do not exist fail on a device as well, and files
    # that are missing or hold what torch does not load do there, too.
    imitated = isinstance(error, (RuntimeError, ValueError, IndexError, OSError, PickleError))
    return not imitated


def _operation(inside: list[FrameType]) -> str | None:
    for frame in inside:
        if frame.f_code.co_name == "__torch_dispatch__":
            function = frame.f_locals.get("func")
            if function is not None:
                return str(function)
    return inside[0].f_code.co_name if inside else None
