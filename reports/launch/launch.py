"""What launches a job in one framework: files, what they cannot say, what is left to fill in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """A job in the words of one framework.

    ``framework`` is the name to choose it by, ``title`` the one people use. ``files`` maps names
    to texts, the shell script that starts them first; there are none when the framework cannot
    run the job, and ``impossible`` says why. ``unsupported`` says in words what the recipe asks
    for that the files do not do: the job runs without it. ``fill_in`` names what no recipe knows.
    """

    framework: str
    title: str
    files: Mapping[str, str]
    unsupported: tuple[str, ...] = ()
    fill_in: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()

    @property
    def script(self) -> str | None:
        """The name of the shell script to run on every node."""
        return next(iter(self.files), None)
