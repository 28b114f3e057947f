"""What every emulated rank imports before it knows which rank it is: torch and what patches it."""

import contextlib
import importlib
import pkgutil

import tests.warm.processes  # noqa: F401
from trainscout.simulators.virtual_cluster import emulation
from trainscout.simulators.virtual_cluster.emulation import native

native.load()

import torch._dynamo  # noqa: E402, F401

for _module in pkgutil.walk_packages(emulation.__path__, f"{emulation.__name__}."):
    if ".vendor." not in _module.name:
        importlib.import_module(_module.name)

# A third of what importing Transformers takes, into which neither torch nor what tests set enters.
for _module in ("scipy.optimize", "httpx", "filelock"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
