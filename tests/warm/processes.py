"""Processes that the package starts are forked, too: importing this puts a warm one in the place
of each that would first import torch, for an emulated rank, or MLflow: two seconds."""

import os
import sys

from tests.warm import client
from tests.warm.session import warm_python, warm_ranks
from trainscout.simulators.predictor.io import own_process, second_core

cold_process = own_process.own_process
is_second_core = second_core.is_second_core
# In a server of commands: who started it has both.
_addresses = {name: os.environ.get(name) for name in (client.COMMANDS, client.RANKS)}


def warm_process(module: str, *arguments: str) -> list[str]:
    """As ``own_process``, of which other processes are made as ever."""
    cold = cold_process(module, *arguments)
    if ".virtual_cluster." in module:
        address = _addresses[client.RANKS] or warm_ranks()
    elif module == "trainscout.optimizer.tracking.serve":
        address = _addresses[client.COMMANDS] or warm_python()
    else:
        return cold
    return [sys.executable, "-I", "-S", client.__file__, address, *cold[1:]]


own_process.own_process = warm_process

# Workers of tests leave no core free, and what a fork has priced is lost: of a second small search
# it is two CPU seconds in three. Set before others import it.
assert "trainscout.optimizer.bounding" not in sys.modules
second_core.is_second_core = lambda: False
