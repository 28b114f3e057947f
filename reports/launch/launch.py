"""What launches a job in one framework: files, what they cannot say, what is left to fill in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainscout.reports.launch.shell import title_lines
from trainscout.simulators.predictor.question.job import Job


@dataclass(frozen=True)
class Launch:
    """A job in the words of one framework.

    ``framework`` is the name to choose it by, ``title`` the one people use. ``fill_in`` names what
    no recipe knows. ``unsupported`` says in words what the recipe asks for that the files do not
    do: the job runs without it; ``impossible`` why the framework cannot run the job at all.
    ``files`` maps names to texts, the shell script that starts them first; there are none for a
    job that is impossible.
    """

    framework: str
    title: str
    fill_in: tuple[str, ...]
    unsupported: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def script(self) -> str | None:
        """The name of the shell script to run on every node."""
        return next(iter(self.files), None)

    @property
    def script_text(self) -> str | None:
        return None if self.script is None else self.files[self.script]

    def header(self, job: Job, *about: str) -> list[str]:
        """What stands at the top of its script."""
        return [
            *title_lines(job),
            *about,
            "Fill in: " + "; ".join(self.fill_in),
            *(f"Not expressible in {self.title}: {each}" for each in self.unsupported),
        ]
