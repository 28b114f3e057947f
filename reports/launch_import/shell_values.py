"""What shell words expand to, from the assignments of a script and the environment."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

from trainscout.reports.dialects.options import MARK
from trainscout.reports.launch_import.shell_words import bracket_end
from trainscout.simulators.predictor.question.errors import InputError

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_PARAMETER = re.compile(r"(#?)(\w+|[@*])(\[[^\]]*\])?(:?[-=+?])?(.*)", re.DOTALL)
_MOST = 10**15
# Characters that all of a script's words become: launch scripts come to some ten thousand.
_MOST_EXPANDED = 1 << 22


def unknown(source: str) -> str:
    return f"{MARK}{source}{MARK}"


class Variables:
    """Variables as the script has set them so far; others come from the environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._set: dict[str, list[str]] = {}
        self._left = _MOST_EXPANDED

    def assign(self, name: str, words: list[str], *, append: bool, array: bool) -> None:
        before = self._set.get(name, [])
        if append:
            self.spend(*before)
        if array:
            self._set[name] = [*before, *words] if append else words
        else:
            # A plain value is an array's first element.
            text = "".join([*before[:1], *words] if append else words)
            self._set[name] = [text, *before[1:]]

    def spend(self, *words: str) -> None:
        """Count what words become against what a script may.

        Raises:
            InputError: when that is used up.
        """
        self._left -= sum(len(word) + 1 for word in words)
        if self._left < 0:
            problem, allowed = "doubles its variables without end", "a script of its size"
            raise InputError("given", "the script", problem, allowed)

    def elements(self, name: str) -> list[str] | None:
        """The elements of an array, or the one value of a plain variable; None: not set."""
        if name in self._set:
            return self._set[name]
        if name in self._environment:
            return [self._environment[name]]
        return None

    def names(self) -> list[str]:
        """What the script has set."""
        return list(self._set)

    def text(self, name: str) -> str | None:
        """The value of a plain variable, or an array's first element."""
        found = self.elements(name)
        return None if found is None else "".join(found[:1])

    def expand(self, word: str) -> list[str]:
        """The words that one word as written becomes: none, one, or several."""
        return _Expansion(self, word).words()

    def expand_text(self, word: str) -> str:
        """The word as the value of an assignment: expanded, but not split."""
        return _Expansion(self, word, split=False).joined()


class _Expansion:
    """One word on its way to words; ``split`` at spaces of what unquoted variables hold."""

    def __init__(self, variables: Variables, word: str, *, split: bool = True) -> None:
        self.variables, self.word, self.split = variables, word, split
        self.done: list[str] = []
        # None: no word has begun, so that nothing becomes of an empty expansion.
        self.current: list[str] | None = None
        # Quotes around an array without elements make no word, other empty quotes an empty one.
        self.vanished = False

    def words(self) -> list[str]:
        self._read()
        self._end_word()
        return self.done

    def joined(self) -> str:
        return " ".join(self.words())

    def _add(self, text: str) -> None:
        self.variables.spend(text)
        if self.current is None:
            self.current = []
        self.current.append(text)

    def _end_word(self) -> None:
        if self.current is not None:
            self.done.append("".join(self.current))
            self.current = None

    def _add_split(self, text: str) -> None:
        """Add what an unquoted expansion gave."""
        if not self.split:
            self._add(text)
            return
        pieces = re.split(r"[ \t\n]+", text)
        for index, piece in enumerate(pieces):
            if index:
                self._end_word()
            if piece:
                # Quotes inside a value are characters like others.
                self._add(piece)

    def _read(self) -> None:
        word, at, inside = self.word, 0, False
        while at < len(word):
            char = word[at]
            if char == "\\" and at + 1 < len(word):
                if inside and word[at + 1] not in '$`"\\\n':
                    self._add("\\")
                self._add(word[at + 1])
                at += 2
            elif char == "'" and not inside:
                end = _next(word, "'", at + 1)
                self._add(word[at + 1 : end])
                at = end + 1
            elif char == '"':
                if inside and not self.vanished:
                    self._add("")
                inside, self.vanished = not inside, False
                at += 1
            elif char == "`":
                end = _next(word, "`", at + 1)
                self._add(unknown(word[at : end + 1]))
                at = end + 1
            elif char == "$":
                at = self._dollar(at, quoted=inside)
            else:
                self._add(char)
                at += 1

    def _dollar(self, at: int, *, quoted: bool) -> int:
        word = self.word
        if word.startswith("$((", at):
            end = bracket_end(word, at + 1)
            self._add(self._arithmetic(word[at + 3 : end - 1], word[at : end + 1]))
            return end + 1
        if word.startswith("$(", at):
            end = bracket_end(word, at + 1)
            program, _, rest = word[at + 2 : end].strip().partition(" ")
            source = word[at : end + 1]
            # expr is arithmetic of which a shell would take the star.
            counts = program == "expr"
            self._add(
                self._arithmetic(rest.replace("\\*", "*"), source) if counts else unknown(source)
            )
            return end + 1
        if word.startswith("${", at):
            end = bracket_end(word, at + 1)
            self._parameter(word[at + 2 : end], word[at : end + 1], quoted=quoted)
            return end + 1
        name = _NAME.match(word, at + 1)
        if name is None:
            self._add("$")
            return at + 1
        value = self.variables.text(name[0])
        self._put([unknown(f"${name[0]}") if value is None else value], quoted=quoted)
        return name.end()

    def _put(self, elements: list[str], *, quoted: bool) -> None:
        """Add the elements of a variable, each a word of its own."""
        for index, element in enumerate(elements):
            if index:
                self._end_word()
            if quoted:
                self._add(element)
            else:
                self._add_split(element)

    def _parameter(self, inner: str, source: str, *, quoted: bool) -> None:
        match = _PARAMETER.fullmatch(inner)
        if match is None:
            self._add(unknown(source))
            return
        count, name, index, operation, rest = match.groups()
        if not operation and rest:
            self._add(unknown(source))
            return
        elements = self.variables.elements(name)
        if index not in (None, "[@]", "[*]"):
            number = index[1:-1]
            inside = elements is not None and number.isdigit() and int(number) < len(elements)
            elements = [(elements or [])[int(number)]] if inside else None
        elif index is None and elements is not None:
            elements = elements[:1]
        if count:
            self._add(str(len(elements or [])))
            return
        self.vanished |= index == "[@]" and not elements
        empty = not elements or ((operation or "").startswith(":") and elements == [""])
        match (operation or "").removeprefix(":"):
            case "-" | "=" if empty:
                self._nested(rest, quoted=quoted)
            case "+":
                if not empty:
                    self._nested(rest, quoted=quoted)
            case _ if elements is None:
                self._add(unknown(source))
            case _ if index == "[*]" and quoted:
                self._put([" ".join(elements)], quoted=True)
            case _:
                self._put(elements, quoted=quoted)

    def _nested(self, text: str, *, quoted: bool) -> None:
        self._put(_Expansion(self.variables, text, split=self.split).words(), quoted=quoted)

    def _arithmetic(self, text: str, source: str) -> str:
        def value_of(match: re.Match[str]) -> str:
            value = self.variables.text(match[1] or match[2])
            return "?" if value is None or not value.strip("-").isdigit() else value

        # Names count as variables with or without the dollar.
        plain = re.sub(r"\$\{(\w+)\}|\$?\b([A-Za-z_]\w*)", value_of, text)
        if not re.fullmatch(r"[\d\s+*/%()-]*", plain):
            return unknown(source)
        try:
            return str(_evaluate(ast.parse(plain.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return unknown(source)


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _evaluate(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.UnaryOp(op=ast.USub()):
            return -_evaluate(node.operand)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            value = _ARITHMETIC[type(op)](_evaluate(node.left), _evaluate(node.right))
            if abs(value) < _MOST:
                return value
    raise ValueError(ast.dump(node))


def _next(word: str, char: str, at: int) -> int:
    """Where ``char`` is next, or the end."""
    found = word.find(char, at)
    return len(word) if found < 0 else found
