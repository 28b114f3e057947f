"""Commands as a test runs them: in this process, through the table of commands."""

from collections.abc import Callable, Sequence

from trainscout.cli import main


def command(*words: str) -> Callable[[Sequence[object]], int]:
    """``trainscout WORDS``: takes the arguments after them, returns the exit code."""
    return lambda arguments: main([*words, *map(str, arguments)])
