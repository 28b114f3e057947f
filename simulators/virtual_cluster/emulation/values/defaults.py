"""What a value is taken to be when nobody can know it: the one place these conventions live.

Data on an emulated device is never computed, so a value the host asks for may follow from
nothing. These defaults let a training step run the way a healthy one does: no overflow is found,
no division by zero, every tensor finite. They are conventions and not results.
"""

from __future__ import annotations

# By what kind of number it is: flags are down, so rare paths are not taken; 1 is in the domain of
# square roots, logarithms and divisions, and makes a gradient norm that clipping still looks at.
INVENTED: dict[str, bool | int | float] = {"bool": False, "int": 1, "float": 1.0}
# Of many numbers neighbours differ, since scripts drop what shows no difference: groups of equal
# rewards (DAPO, https://arxiv.org/abs/2503.14476, section 3.2). They come in turn, the first as
# above; a prime number of them, so that those of a group differ wherever it lies. Pixels, too:
# bytes of four dimensions, three channels among them, are such shares of white.
IN_TURN = tuple(1 - place / 32 for place in range(7))

# Questions about unknown numbers, by operation: they are finite.
FINITE: dict[str, bool] = {
    "isnan": False,
    "isinf": False,
    "isposinf": False,
    "isneginf": False,
    "isfinite": True,
}
# Whether all of a tensor are as they should be, which is what scripts assert: they are. Of rows
# nothing is said: those that are all padding are left out.
SOUND: dict[str, bool] = {"all": True, "_is_all_true": True}

# A loop that ends when a number nobody knows is small goes round so often. Sinkhorn routing of
# Megatron-Core (``sinkhorn``, until the mean change is 1e-4) does 2 to 4 times with logits of a
# standard deviation of at most 1, of 2,048 to 32,768 tokens and 8 to 256 experts; 7 to 14 with 4.
PASSES = 4

# Of a mask of which nothing is known this share is taken to be set: the size of what it selects.
ASSUMED_SHARE = 0.5
# Of the columns that products in 8 bits take part in, those with values too large for them: "more
# than 99.9 % of values" are multiplied in 8 bits (Dettmers et al. 2022, LLM.int8(), abstract).
OUTLIER_SHARE = 0.001
# Numbers that are not whole and enter the device are followed exactly up to this many elements:
# scales, means.
EXACT_ELEMENTS = 64
# Of grids up to this many: times, noise levels, and all that rises from element to element.
GRID_ELEMENTS = 4096
# Whole numbers and flags that do, and all that is computed from known values: labels, masks,
# positions, tokens per rank and expert. A batch of a million tokens: larger ones are activations.
FOLLOWED_ELEMENTS = 1 << 20
