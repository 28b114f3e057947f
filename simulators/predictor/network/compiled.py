"""How the engines' loops are compiled: by numba, once a machine."""

from __future__ import annotations

from numba import njit

# Without a function for C code to call, 7 % of what compiling takes; nobody asks for any.
compiled = njit(cache=True, no_cfunc_wrapper=True)
