"""Emulated ranks are forked, too: importing this puts a warm process in the place of each that the
package would start for one, which costs two seconds of importing torch."""

import os
import sys

from tests.warm import client
from tests.warm.session import warm_ranks
from trainscout.simulators.predictor.io import own_process

cold_process = own_process.own_process
# Of a server of commands: whoever started it has the ranks' server, too.
_address = os.environ.get(client.RANKS)


def warm_process(module: str, *arguments: str) -> list[str]:
    """As ``own_process``, of which other processes are made as ever."""
    cold = cold_process(module, *arguments)
    if ".virtual_cluster." not in module:
        return cold
    return [sys.executable, "-I", "-S", client.__file__, _address or warm_ranks(), *cold[1:]]


own_process.own_process = warm_process
