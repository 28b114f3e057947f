"""What emulated tensors are worth: values known exactly, expected, or invented by convention."""

from .exchange import Exchange
from .payloads import Payloads
from .values import Reading, Values

__all__ = ["Exchange", "Payloads", "Reading", "Values"]
