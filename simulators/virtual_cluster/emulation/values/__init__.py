"""What emulated tensors are worth: values known exactly, expected, or invented by convention."""

from .exchange import Exchange, Payloads
from .imbalance import Imbalance
from .values import Reading, Values

__all__ = ["Exchange", "Imbalance", "Payloads", "Reading", "Values"]
