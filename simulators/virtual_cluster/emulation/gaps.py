"""Is a failure the script's own doing or a gap of the emulator?"""

from __future__ import annotations

import traceback
from pathlib import Path
from pickle import PickleError
from types import FrameType

from trainscout.simulators.predictor.question.errors import InputError

_OWN = str(Path(__file__).parent)
# Frames that are nobody's call: the emulator's own and those of what it runs on.
_BELOW = ("/torch/", "/importlib/", "-packages/ray/", "<frozen ", "<string>")
# What torch says of tensors without data.
_NO_DATA = (
    "data is not allocated",
    "Cannot access data pointer",
    "FakeTensor",
    "fake tensor",
    "without running `_apply`",
    "from the 'CUDA' backend",
)
# What it raises of tensors whose shapes it cannot tell.
_NO_SHAPE = (
    *("UnsupportedFakeTensorException", "DynamicOutputShapeException"),
    *("DataDependentOutputException", "UnsupportedOperatorException"),
)
# What Ray repeats, in errors of its own and below lines of its own, of what was refused a worker.
NO_GPU_OF_RAY = "workers of Ray get no virtual GPU"
# What only stands around calls of the script's modules and compiled functions.
_AROUND = ("/training_loop.py", "/compiled.py")
# Of these the emulator has no part, whatever a script was told before.
ELSEWHERE = (KeyboardInterrupt, SystemExit, MemoryError, ImportError, SyntaxError)


def gap_left(error: BaseException) -> str | None:
    """What is lacking, of an exception that leaves the emulator; None where that is no gap of its,
    or was seen before, further inside."""
    seen = vars(error)
    inside, _ = frames(error)
    if "left_emulator" in seen or not is_gap(error, inside):
        return None
    seen["left_emulator"] = True
    refused = isinstance(error, InputError)
    return reason(error) if refused else f"{operation(inside)}: {reason(error)}"


def frames(error: BaseException) -> tuple[list[FrameType], str]:
    """The emulator's frames, innermost first, and the script's place that called them."""
    inside: list[FrameType] = []
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = frame.f_code.co_filename
        if not name.startswith(_OWN) and not any(part in name for part in _BELOW):
            return inside, f"{name}:{line} in {frame.f_code.co_name}"
        inside.append(frame)
    return inside, "unknown place"


def reason(error: BaseException) -> str:
    """What an exception says, in one line."""
    lines = str(error).splitlines() or [type(error).__name__]
    told = (each.rpartition("InputError: ")[2] for each in lines if NO_GPU_OF_RAY in each)
    return next(told, lines[0])[:200]


def is_gap(error: BaseException, inside: list[FrameType]) -> bool:
    """Whether only the emulator raises this, not a device (out of memory, shapes that do not fit)
    nor the script itself; ``inside``: the emulator's frames."""
    if isinstance(error, InputError):
        return True
    if isinstance(error, ELSEWHERE):
        return False
    told = (*_NO_DATA, NO_GPU_OF_RAY)
    if type(error).__name__ in _NO_SHAPE or any(text in str(error) for text in told):
        return True
    names = [frame.f_code.co_filename for frame in inside]
    if not any(name.startswith(_OWN) and not name.endswith(_AROUND) for name in names):
        return False
    if isinstance(error, NotImplementedError):
        return True
    # Shapes that do not fit and handles that do not exist fail on a device as well, and files
    # that are missing or hold what torch does not load do there, too.
    imitated = isinstance(error, (RuntimeError, ValueError, IndexError, OSError, PickleError))
    return not imitated


def operation(inside: list[FrameType]) -> str:
    """What was asked of the emulator whose frames are ``inside``."""
    for frame in inside:
        if frame.f_code.co_name == "__torch_dispatch__" and "func" in frame.f_locals:
            return str(frame.f_locals["func"])
    return inside[0].f_code.co_name if inside else "an operation"
