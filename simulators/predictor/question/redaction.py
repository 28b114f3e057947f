"""What may be shown and kept of what users write: no passwords, nothing that a terminal obeys.

Everything that leaves a command goes through here: messages, reports, settings that are kept
beside results, and what is tracked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_STARS = "***"
# Names whose value is a secret. ``tokens`` are what models train on.
_NAME = r"(?:\w*_)?(?:password|passwd|pwd|secret|token|api_?key|access_?key|credentials?)"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_RULES = [
    # scheme://user:password@host; whatever a password is made of, the host follows the last @.
    (re.compile(r"(\w[\w+.-]*://[^\s/@:'\"]*):[^\s'\"]*@"), rf"\1:{_STARS}@"),
    # https://token@host; of a database it is a user.
    (re.compile(r"(https?://)[^\s/@:'\"]+@"), rf"\1{_STARS}@"),
    # ?token=..., executor.options.password=...
    (re.compile(rf"(?<![\w-])({_NAME})(=)[^\s&;,}}'\"]+", re.IGNORECASE), rf"\1\2{_STARS}"),
    # Who knows the path of a webhook can post to it.
    (
        re.compile(r"(webhook[=:]\s*['\"]?\w+://[^\s/?#'\"]+)[^\s'\"]*?(?=:? |:?$|['\"])"),
        rf"\1/{_STARS}",
    ),
]
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def redacted_text(text: str) -> str:
    """Text with stars for the passwords and tokens in its addresses and settings."""
    if "://" not in text and "=" not in text:
        return text
    for rule, instead in _RULES:
        text = rule.sub(instead, text)
    return text


def redacted(value: Any, name: str = "") -> Any:
    """Settings as they may be kept: mappings, lists and text; ``name`` is that of the value."""
    if isinstance(value, Mapping):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redacted(item, name) for item in value)
    last = name.rpartition(".")[2]
    if value is not None and _SECRET_NAME.fullmatch(last):
        return _STARS
    if not isinstance(value, str):
        return value
    return redacted_text(f"{last}={value}").removeprefix(f"{last}=")


def visible(text: str) -> str:
    """Text without characters that a terminal obeys instead of showing them, but for tabs and new
    lines: they are spelled ``\\x1b``."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown(text: str) -> str:
    """Text as it may stand on a terminal."""
    return visible(redacted_text(text))


def root_cause(error: BaseException) -> str:
    """The innermost reason in one line: what the socket or the database said."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return shown((str(error).strip() or type(error).__name__).splitlines()[0][:300])
