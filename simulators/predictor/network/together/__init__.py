"""Work and communications that wait for each other, on one network where all of them meet."""

from .activities import Activities, Message, alone
from .play import PlayedTogether, play_together

__all__ = ["Activities", "Message", "PlayedTogether", "alone", "play_together"]
