"""The commands of a shell script, read without running anything.

Assignments (plain, arrays, ``+=``), variables with defaults, whole-number arithmetic, ``if`` and
``case`` on values that the script or the environment sets: what launch scripts are made of.
Conditions that depend on more (files, other programs) are not followed, and are listed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainscout.reports.dialects.options import is_known, shown
from trainscout.reports.launch_import.shell_values import Variables
from trainscout.reports.launch_import.shell_words import Array, Operator, Token, Word, tokens_of

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_SHELLS = ("sh", "bash")
_SKIPPED = {"for": "done", "while": "done", "until": "done"}
_ENDS = ("\n", ";", "&&", "||", "|", "&", ";;")


@dataclass(frozen=True)
class Command:
    """One command with its variables replaced, and variables set for it alone."""

    words: tuple[str, ...]
    environment: dict[str, str]
    line: int


@dataclass
class Script:
    """What a script would do, as far as it can be told: ``variables`` as they end up, and
    ``not_followed``, in words, what was passed over."""

    commands: list[Command] = field(default_factory=list)
    variables: Variables = field(default_factory=lambda: Variables({}))
    not_followed: list[str] = field(default_factory=list)


def read_script(text: str, environment: Mapping[str, str]) -> Script:
    """The commands of ``text``; variables that it does not set come from ``environment``.

    Raises:
        InputError: for text whose quotes or brackets do not close.
    """
    script = Script(variables=Variables(environment))
    _Interpreter(script).run(tokens_of(text))
    return script


class _Interpreter:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.variables = script.variables

    def run(self, tokens: Sequence[Token]) -> None:
        at = 0
        while at < len(tokens):
            at = self._statement(tokens, at)

    def _statement(self, tokens: Sequence[Token], at: int) -> int:
        token = tokens[at]
        if isinstance(token, Operator):
            return at + 1
        if isinstance(token, Word):
            if token.text == "if":
                return self._if(tokens, at)
            if token.text == "case":
                return self._case(tokens, at)
            if token.text in _SKIPPED:
                end = _block_end(tokens, at)
                self._note(tokens[at:end], f"the {token.text} loop in line {token.line}")
                return end
            if _is_function(tokens, at):
                end = _function_end(tokens, at)
                self._note(tokens[at:end], f"the function in line {token.line}")
                return end
        end = at
        while end < len(tokens) and not _ends(tokens[end]):
            end += 1
        self._command(tokens[at:end])
        return end

    def _command(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if isinstance(token, Array):
                values = [
                    each for word in token.words for each in self.variables.expand(word.text)
                ]
                self.variables.assign(token.name, values, append=token.append, array=True)
        words = [token for token in tokens if isinstance(token, Word)]
        if words and words[0].text in _DECLARING:
            words = [word for word in words[1:] if not word.text.startswith("-")]
            declared = True
        else:
            declared = bool(words) and all(_ASSIGNMENT.match(word.text) for word in words)
        own: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.match(words[0].text)) is not None:
            value = self.variables.expand_text(match[3])
            if declared:
                self.variables.assign(match[1], [value], append=bool(match[2]), array=False)
            else:
                own[match[1]] = value
            words = words[1:]
        if not words or declared:
            return
        expanded = [each for word in words for each in self.variables.expand(word.text)]
        if expanded:
            self._called(Command(tuple(expanded), own, words[0].line))

    def _called(self, command: Command) -> None:
        if command.words[0] in ("source", ".") and len(command.words) > 1:
            name = shown(command.words[1])
            self.script.not_followed.append(f"{name}, which line {command.line} sources")
        inner = _shell_text(command.words)
        if inner is not None:
            # sh -c "...": its variables are replaced already.
            self.run(tokens_of(inner))
            return
        self.script.commands.append(command)

    def _if(self, tokens: Sequence[Token], at: int) -> int:
        end, marks = _if_parts(tokens, at)
        taken: bool | None = False
        for index, (word, start) in enumerate(marks[:-1]):
            stop = marks[index + 1][1]
            if word in ("if", "elif"):
                verdict = self._condition(tokens[start + 1 : stop]) if taken is False else False
                if verdict is None:
                    line = tokens[start].line
                    rest = tokens[stop:end]
                    self._note(rest, f"the condition in line {line}, which cannot be decided here")
                    return end
            elif word == "then":
                if verdict and taken is False:
                    self.run(tokens[start + 1 : stop])
                    taken = True
            elif taken is False:
                self.run(tokens[start + 1 : stop])
        return end

    def _condition(self, tokens: Sequence[Token]) -> bool | None:
        """Whether a test holds; None when that cannot be told."""
        tokens = [
            token
            for token in tokens
            if not (isinstance(token, Operator) and token.text in ("\n", ";"))
        ]
        result: bool | None = None
        joined = ""
        part: list[str] = []
        inside = False
        for token in [*tokens, Operator("&&", 0)]:
            if isinstance(token, Word):
                inside = inside or token.text in ("[", "[[")
                words = self.variables.expand(token.text)
                part += words if token.text in ("[", "[[", "]", "]]", "!") else (words or [""])
            elif isinstance(token, Operator) and token.text in ("&&", "||"):
                verdict = _test(part)
                if verdict is None:
                    return None
                if joined == "&&":
                    result = bool(result) and verdict
                elif joined == "||":
                    result = bool(result) or verdict
                else:
                    result = verdict
                joined, part = token.text, []
            else:
                return None
        return result

    def _case(self, tokens: Sequence[Token], at: int) -> int:
        end = _block_end(tokens, at)
        subject_token = tokens[at + 1]
        subject = (
            "".join(self.variables.expand(subject_token.text))
            if isinstance(subject_token, Word)
            else ""
        )
        inner = list(tokens[at + 3 : end - 1])
        while inner:
            close = next((i for i, token in enumerate(inner) if _is(token, ")")), None)
            if close is None:
                break
            patterns = [token.text for token in inner[:close] if isinstance(token, Word)]
            stop = next((i for i, token in enumerate(inner) if _is(token, ";;")), len(inner))
            if any(_matches(subject, pattern) for pattern in patterns):
                self.run(inner[close + 1 : stop])
                break
            inner = inner[stop + 1 :]
        return end

    def _note(self, tokens: Sequence[Token], what: str) -> None:
        """Mention what was passed over if it could have changed the launch."""
        texts = [token.text for token in tokens if isinstance(token, Word)]
        arrays = any(isinstance(token, Array) for token in tokens)
        if arrays or any(_ASSIGNMENT.match(text) or text.endswith(".py") for text in texts):
            self.script.not_followed.append(what)


def _ends(token: Token) -> bool:
    return isinstance(token, Operator) and token.text in (*_ENDS, "(", ")")


def _is(token: Token, text: str) -> bool:
    return isinstance(token, Operator) and token.text == text


def _is_function(tokens: Sequence[Token], at: int) -> bool:
    token = tokens[at]
    if isinstance(token, Word) and token.text == "function":
        return True
    return at + 2 < len(tokens) and _is(tokens[at + 1], "(") and _is(tokens[at + 2], ")")


def _function_end(tokens: Sequence[Token], at: int) -> int:
    """Just behind the body, in braces or parentheses, of the function defined at ``at``."""
    begin = tokens[at]
    at += 2 if isinstance(begin, Word) and begin.text == "function" else 1
    if at + 1 < len(tokens) and _is(tokens[at], "(") and _is(tokens[at + 1], ")"):
        at += 2
    while at < len(tokens) and _is(tokens[at], "\n"):
        at += 1
    opened: list[str] = []
    while at < len(tokens):
        token = tokens[at]
        text = "" if isinstance(token, Array) else token.text
        begins = _begins_command(tokens, at)
        if opened and text == opened[-1] and (begins or isinstance(token, Operator)):
            opened.pop()
        elif (not opened or begins) and text in _BODIES:
            opened.append(_BODIES[text])
        at += 1
        if not opened:
            break
    return at


_BODIES = {"{": "}", "(": ")"}


_OPENING = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done"}


def _block_end(tokens: Sequence[Token], at: int) -> int:
    """Just behind the word that closes the block which opens at ``at``."""
    stack: list[str] = []
    while at < len(tokens):
        token = tokens[at]
        if isinstance(token, Word) and _begins_command(tokens, at):
            if token.text in _OPENING:
                stack.append(_OPENING[token.text])
            elif stack and token.text == stack[-1]:
                stack.pop()
                if not stack:
                    return at + 1
        at += 1
    return at


def _begins_command(tokens: Sequence[Token], at: int) -> bool:
    if at == 0 or _ends(tokens[at - 1]):
        return True
    before = tokens[at - 1]
    return isinstance(before, Word) and before.text in ("then", "else", "do", "elif")


def _if_parts(tokens: Sequence[Token], at: int) -> tuple[int, list[tuple[str, int]]]:
    """Where an ``if`` ends, and where its own words (if, then, elif, else, fi) are."""
    end = _block_end(tokens, at)
    marks = []
    position = at
    while position < end:
        token = tokens[position]
        if isinstance(token, Word) and _begins_command(tokens, position):
            if position > at and token.text in _OPENING:
                position = _block_end(tokens, position)
                continue
            if token.text in ("if", "then", "elif", "else", "fi"):
                marks.append((token.text, position))
        position += 1
    return end, marks


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda one, other: one == other,
    "-ne": lambda one, other: one != other,
    "-gt": lambda one, other: one > other,
    "-ge": lambda one, other: one >= other,
    "-lt": lambda one, other: one < other,
    "-le": lambda one, other: one <= other,
}


# A word that is nothing but one variable that is set nowhere.
_UNSET = re.compile(r"\x00\$(\{\w+\}|\w+)\x00")


def _test(words: Sequence[str]) -> bool | None:
    """The value of ``[ ... ]`` and its like; a variable that is set nowhere counts as empty."""
    words = ["" if _UNSET.fullmatch(word) else word for word in words]
    if any(not is_known(word) for word in words):
        return None
    bare = [word for word in words if word not in ("[", "[[", "]", "]]")]
    if bare[:1] == ["!"]:
        inner = _test(bare[1:])
        return None if inner is None else not inner
    match bare:
        case ["true"]:
            return True
        case ["false"]:
            return False
        case ["-z", value]:
            return value == ""
        case ["-n", value]:
            return value != ""
        case [one, "=" | "==", other]:
            return _matches(one, other)
        case [one, "!=", other]:
            return not _matches(one, other)
        case [one, comparison, other] if comparison in _COMPARISONS:
            if not (one.lstrip("-").isdigit() and other.lstrip("-").isdigit()):
                return None
            return _COMPARISONS[comparison](int(one), int(other))
        case [value] if len(words) != len(bare):
            return value != ""
        case _:
            return None


def _matches(value: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(value, pattern.strip("'\""))


def _shell_text(words: Sequence[str]) -> str | None:
    """The text of ``bash -c text``, wherever it stands in a command."""
    for index, word in enumerate(words[:-2]):
        name = word.rpartition("/")[2]
        if name in _SHELLS and re.fullmatch(r"-\w*c", words[index + 1]):
            return shown(words[index + 2]) if is_known(words[index + 2]) else words[index + 2]
    return None
