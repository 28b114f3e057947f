"""What emulated tensors are worth: values known exactly, expected, or invented by convention."""

from trainscout.simulators.virtual_cluster.emulation.values.exchange import Payloads
from trainscout.simulators.virtual_cluster.emulation.values.imbalance import Imbalance
from trainscout.simulators.virtual_cluster.emulation.values.values import Reading, Values

__all__ = ["Imbalance", "Payloads", "Reading", "Values"]
