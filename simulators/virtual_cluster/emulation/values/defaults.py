"""What a value is taken to be when nobody can know it: the one place these conventions live.

Data on an emulated device is never computed, so a value the host asks for may follow from
nothing. These defaults let a training step run the way a healthy one does: no overflow is found,
no division by zero, every tensor finite. They are conventions and not results.
"""

from __future__ import annotations

# By what kind of number it is: flags are down, so rare paths are not taken; 1 is in the domain of
# square roots, logarithms and divisions, and makes a gradient norm that clipping still looks at.
INVENTED: dict[str, bool | int | float] = {"bool": False, "int": 1, "float": 1.0}

# Questions about unknown numbers, by operation: they are finite.
FINITE: dict[str, bool] = {
    "isnan": False,
    "isinf": False,
    "isposinf": False,
    "isneginf": False,
    "isfinite": True,
}

# Data entering the device is followed exactly up to this many elements: flags, counters, scales.
EXACT_ELEMENTS = 64
# What is computed from known values is followed up to this many: tokens per rank and expert.
FOLLOWED_ELEMENTS = 65_536
