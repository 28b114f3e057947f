"""What emulated tensors are worth: values known exactly, expected, or invented by convention."""

from simulators.emulation.values.imbalance import Imbalance
from simulators.emulation.values.payloads import Payloads
from simulators.emulation.values.sizes import UnknownSizeError
from simulators.emulation.values.values import Reading, Values

__all__ = ["Imbalance", "Payloads", "Reading", "UnknownSizeError", "Values"]
