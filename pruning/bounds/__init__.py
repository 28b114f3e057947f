"""Admissible lower bounds on the step time and memory of recipes, for whole spaces at once.

*Admissible*: what the replay would predict is never below the bound, so a recipe whose bound is
worse than what is known can be discarded unseen, and nothing is lost.

**Step time.** The replay plays a graph of passes whose seconds are sums of block prices. The bound
takes the same prices and the longest of some chains through that graph (``paths``), then what no
schedule can hide: on the stage where the chain ends the gradient reduction (all of it when it runs
behind the passes, its last bucket when it runs beside), gradient norm, and after the barrier that
all stages meet at the longest optimizer step. Where one stage holds the whole model and every pass
exchanges parameters or gradients (ZeRO 2 and 3), it is at least what both take together while they
slow each other (``beside``). Slowdown elsewhere and waits that no chain sees are left out; both
only add time.

**Memory.** Parameters, gradients, optimizer state, scratch and buffers are exact, by the code of
``memory``. Activations are counted along the stage's order of passes as there, for the
first stage of each content, which has most in flight. Where a job has more than a few different
stages, the others are left out: the bound is then below the footprint, else equal to it.

What depends on few fields is worked out once per combination of them (``pruning.recipe_table``),
the rest is NumPy on whole columns.
"""
