"""Switch fabrics that ``conf/topology`` declares, read as data."""

from __future__ import annotations

from simulators.errors import InputError
from simulators.network.topology import SwitchFabric
from simulators.replay.ranks.declarations import declared


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
