"""Shell text as words and operators; nothing is expanded yet, and nothing is ever run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainscout.simulators.predictor.question.errors import InputError

MOST_BYTES = 1 << 18
_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "(", ")", "\n")
_REDIRECTION = re.compile(r"(&>>?|\d*>>?&?|\d*<&?|<<<)")
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
_ARRAY = re.compile(r"(\w+)(\+?)=\(")


@dataclass(frozen=True)
class Word:
    """A word as written, quotes and expansions included."""

    text: str
    line: int


@dataclass(frozen=True)
class Array:
    """``NAME=( words )``, or ``NAME+=( words )``."""

    name: str
    append: bool
    words: tuple[Word, ...]
    line: int


@dataclass(frozen=True)
class Operator:
    """What ends a command or groups commands; a newline is one."""

    text: str
    line: int


Token = Word | Array | Operator


def tokens_of(text: str) -> list[Token]:
    """The tokens of a shell script; comments and redirections are left out, and so are
    here-documents but those that ``read`` puts into a variable, which become an assignment.

    Raises:
        InputError: for a quote or a bracket that is never closed, or a script beyond 256 KiB.
    """
    if len(text) > MOST_BYTES:
        raise InputError("given", f"{len(text)} characters", "is too long", "at most 256 KiB")
    return _Reader(text.replace("\r\n", "\n")).tokens()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.heredocs: list[tuple[str, str]] = []
        self._counted = (0, 1)

    @property
    def line(self) -> int:
        at, line = self._counted
        self._counted = (self.at, line + self.text.count("\n", at, self.at))
        return self._counted[1]

    def tokens(self, closing: str | None = None) -> list[Token]:
        """Tokens up to the ``closing`` operator of an array (None: to the end)."""
        found: list[Token] = []
        while self.at < len(self.text):
            rest = self.text[self.at : self.at + 2]
            if rest[0] in " \t":
                self.at += 1
            elif rest == "\\\n":
                self.at += 2
            elif rest[0] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif closing is not None and rest[0] == closing:
                self.at += 1
                return found
            else:
                self._token(found, rest)
        if closing is not None:
            raise InputError("given", "(", "is never closed in the script", closing)
        return found

    def _token(self, found: list[Token], rest: str) -> None:
        line = self.line
        if (heredoc := _HEREDOC.match(self.text, self.at)) is not None:
            self.heredocs.append((heredoc[2], heredoc[1]))
            self.at = heredoc.end()
        elif (redirection := _REDIRECTION.match(self.text, self.at)) is not None:
            self.at = redirection.end()
            while self.text[self.at : self.at + 1] in (" ", "\t"):
                self.at += 1
            self._word()
        elif rest == "((":
            start = self.at
            self.at = bracket_end(self.text, self.at + 1) + 1
            found.append(Word(self.text[start : self.at], line))
        elif rest in _OPERATORS or rest[0] in _OPERATORS:
            operator = rest if rest in _OPERATORS else rest[0]
            self.at += len(operator)
            found.append(Operator(operator, line))
            if operator == "\n":
                self._take_heredocs(found, line)
        elif (array := _ARRAY.match(self.text, self.at)) is not None:
            self.at = array.end()
            inner = self.tokens(closing=")")
            words = tuple(token for token in inner if isinstance(token, Word))
            found.append(Array(array[1], bool(array[2]), words, line))
        else:
            found.append(Word(self._word(), line))

    def _take_heredocs(self, found: list[Token], line: int) -> None:
        """Go behind the documents that lines so far began; of ``read -d '' NAME <<END`` in front
        of the last operator make ``NAME="..."``."""
        for delimiter, quote in self.heredocs:
            end = re.compile(rf"^\t*{re.escape(delimiter)}$", re.MULTILINE).search(
                self.text, self.at
            )
            start, stop = self.at, len(self.text) if end is None else end.start()
            self.at = stop if end is None else end.end()
            ends = [at for at, each in enumerate(found[:-1], 1) if isinstance(each, Operator)]
            first = ends[-1] if ends else 0
            command = [each.text for each in found[first:-1] if isinstance(each, Word)]
            if command[:1] == ["read"] and "-d" in command and command[-1].isidentifier():
                special = r'([\\$`"])' if quote else '(")'
                value = re.sub(special, r"\\\1", self.text[start:stop])
                found[first:-1] = [Word(f'{command[-1]}="{value}"'.replace("\\\n", ""), line)]
        self.heredocs = []

    def _word(self) -> str:
        """The word that begins here, as written."""
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self.at += 2
            elif char in "'\"`":
                self.at = quote_end(self.text, self.at) + 1
            elif self.text.startswith(("$(", "${"), self.at):
                self.at = bracket_end(self.text, self.at + 1) + 1
            elif char in " \t\n;|&()<>":
                break
            else:
                self.at += 1
        if self.at == start:
            # A character that begins no word here: passed over, so that reading goes on.
            self.at += 1
        return self.text[start : self.at].replace("\\\n", "")


def quote_end(text: str, at: int) -> int:
    """Where the quote that opens at ``at`` closes.

    Raises:
        InputError: when it never does.
    """
    quote, start = text[at], at
    at += 1
    while at < len(text):
        char = text[at]
        if char == quote:
            return at
        if char == "\\" and quote != "'":
            at += 1
        elif quote == '"' and text.startswith(("$(", "${"), at):
            at = bracket_end(text, at + 1)
        at += 1
    raise _unclosed(text, start, "a closing quote")


def bracket_end(text: str, at: int) -> int:
    """Where the bracket that opens at ``at`` closes.

    Raises:
        InputError: when it never does.
    """
    opening, depth, start = text[at], 0, at
    closing = ")" if opening == "(" else "}"
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "'\"`":
            at = quote_end(text, at)
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise _unclosed(text, start, closing)


def _unclosed(text: str, start: int, allowed: str) -> InputError:
    line = text.count("\n", 0, start) + 1
    return InputError("given", text[start], f"is never closed (line {line})", allowed)
