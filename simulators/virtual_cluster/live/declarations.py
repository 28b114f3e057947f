"""Switch fabrics that ``conf/topology`` declares, read as data."""

from __future__ import annotations

from trainscout.simulators.predictor.network.topology import SwitchFabric
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.execution.declarations import declared


def load_fabric(name: str) -> SwitchFabric:
    """A topology's declaration.

    Raises:
        InputError: for what is not declared, or not a topology.
    """
    content = declared("--topology", "topology", name)
    try:
        fabric = SwitchFabric(**content)
    except TypeError as error:
        raise InputError("--topology", name, f"is no declaration ({error})") from error
    fabric.check()
    return fabric
