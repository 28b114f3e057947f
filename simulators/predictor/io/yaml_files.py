"""YAML, read in one way: what the package ships and what users hand in."""

from __future__ import annotations

import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from trainscout.simulators.predictor.question.errors import InputError

# What the project declares; a checkout and an installation both keep ``conf`` beside
# ``simulators``.
DECLARATIONS = Path(__file__).parents[3] / "conf"
# The largest file that is shipped has a quarter of this; parsing takes about 1 s per 10 MB.
LARGEST_BYTES = 4 << 20
# What is declared nests to a depth of six; aliases may repeat a part, but not to the power of it.
_DEEPEST = 50
_MOST_VALUES = 1_000_000


# LibYAML's parser, which PyYAML is mostly built with, takes a tenth of the time.
class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """As Hydra reads: ``1e12`` is a number, a date is text, a name stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                twice = f"{key.value} stands twice"
                raise yaml.constructor.ConstructorError(None, None, twice, key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in Loader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def read_yaml(
    file: Traversable | Path, field: str = "file", *, largest_bytes: int = LARGEST_BYTES
) -> Any:
    """The content of a file, plain values; ``field`` is what a user wrote the file's name under.

    Raises:
        InputError: for a file that cannot be read, is too large or is no YAML.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(largest_bytes + 1)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(field, file, f"cannot be read ({reason})") from error
    if len(content) > largest_bytes:
        problem = "is too large for a file of settings"
        raise InputError(field, file, problem, f"at most {largest_bytes >> 20} MiB")
    if not (isinstance(file, Path) and file.is_relative_to(DECLARATIONS.parent)):
        _check_shape(content, field, file)
    return parse_yaml(content, field, file)


def parse_yaml(content: str | bytes, field: str, file: object) -> Any:
    """The values that text or UTF-8 bytes hold.

    Raises:
        InputError: for what is no YAML, naming the field and the file it stands in.
    """
    try:
        return yaml.load(content, Loader)
    except _UNREADABLE as error:
        raise _unreadable(field, file, error) from error


_UNREADABLE = (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError)


def _check_shape(content: bytes, field: str, file: object) -> None:
    """Refuse what is no YAML, and before it is put together what becomes large or deep by that: a
    few lines of aliases of aliases are more values than memory holds."""
    sizes: dict[str, int] = {}  # of each anchor's part, aliases in it written out
    open_parts: list[tuple[str | None, int]] = []
    values = 0
    try:
        for event in yaml.parse(content.decode("utf-8-sig"), Loader):
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_parts.pop()
                if anchor is not None:
                    sizes[anchor] = values - before
                continue
            if isinstance(event, yaml.AliasEvent):
                # One of a part that has not ended, and so of itself, has no size yet.
                values += sizes.get(str(event.anchor), _MOST_VALUES)
            elif isinstance(event, yaml.NodeEvent):
                values += 1
                if isinstance(event, yaml.CollectionStartEvent):
                    open_parts.append((event.anchor, values))
                elif event.anchor is not None:
                    sizes[event.anchor] = 1
            if len(open_parts) > _DEEPEST or values > _MOST_VALUES:
                line = event.start_mark.line + 1 if event.start_mark else 1
                problem = f"cannot be read: line {line} nests or repeats values without end"
                allowed = f"{_DEEPEST} levels, {_MOST_VALUES:,} values with aliases written out"
                raise InputError(field, file, problem, allowed)
    except InputError:
        raise
    except _UNREADABLE as error:
        raise _unreadable(field, file, error) from error


def _unreadable(field: str, file: object, error: Exception) -> InputError:
    """What is wrong with YAML, in one line that says in which of the file's."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        line = "" if mark is None else f"line {mark.line + 1}: "
    else:
        problem, line = " ".join(str(error).split()), ""
        if isinstance(error, UnicodeDecodeError) and isinstance(error.object, bytes):
            line = f"line {error.object[: error.start].count(10) + 1}: "
    return InputError(field, file, f"cannot be read: {line}{problem}", "UTF-8 text in YAML")


def opening_comment(file: Path) -> str:
    """The comment that a file begins with, as one paragraph."""
    comment = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return " ".join(comment)
