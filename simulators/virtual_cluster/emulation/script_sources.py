"""What a C++ function of an extension that a script compiles returns, as its source says.

Such functions check arguments, make tensors for results (``torch::empty({n, 4}, x.options())``)
and launch kernels on pointers. The statements that make values are read and done in Python;
kernels and checks are passed over. Whatever cannot be read makes what depends on it unknown, and a
function whose result is unknown is refused.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainscout.simulators.virtual_cluster.emulation.native import compiler
from trainscout.simulators.virtual_cluster.emulation.script_tensors import NAMESPACES

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<[^>]*>).*$', re.MULTILINE)
_OPENING, _CLOSING = "([{", ")]}"
_ASSIGNED = re.compile(r"^(?:[\w:<>,&*\s]*[\w>&*]\s)?\s*&?(\w+)\s*=(?!=)\s*(.+)$", re.DOTALL)
_UNPACKED = re.compile(
    r"^(?:const\s+)?(?:auto\s*&*\s*\[([^]]*)\]|std::tie\s*\(([^)]*)\))\s*=\s*(.+)$", re.DOTALL
)
_DECLARED = re.compile(
    r"^(?:const\s+)?([\w:]+(?:<[^=;]*>)?)\s+(\w+)\s*(?:\((.*)\)|(\{.*\}))?$", re.DOTALL
)
_PUSHED = re.compile(r"^(\w+)\s*\.\s*(?:push_back|emplace_back)\s*\((.*)\)$", re.DOTALL)
_SPELLINGS = (
    (r"\b(?:static|reinterpret|const)_cast\s*<[^<>]*>", ""),
    (
        r"\(\s*(?:const\s+)?(?:unsigned\s+)?(?:int|long|int64_t|int32_t|size_t|uint)\s*\)\s*(?=[\w(])",
        "",
    ),
    (r"\b(\d+)[uUlL]+\b", r"\1"),
    (r"\b(\d+\.\d*|\d*\.\d+)[fF]\b", r"\1"),
    (r"->", "."),
    (r"::", "."),
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"!(?!=)", " not "),
    (r"\btrue\b", "True"),
    (r"\bfalse\b", "False"),
    (r"\bnullptr\b|\bstd\.nullopt\b", "None"),
    (r"(?<!/)/(?!/)", "//"),
)


class Unread(Exception):  # noqa: N818 - no error yet: what depends on it may never be asked for
    """A statement or value that this reading of C++ does not understand."""


@dataclass(frozen=True)
class Function:
    """A function's parameters by name, and the text between its braces."""

    parameters: tuple[str, ...]
    body: str


@dataclass
class Source:
    """C++ sources as the compiler would see them: with their own headers, macros replaced.

    ``files``: texts and the folders that they include from; ``flags``: the compiler's, of which
    definitions count.
    """

    files: Sequence[tuple[str, Path | None]]
    flags: Sequence[str] = ()
    _text: str | None = field(default=None, init=False)

    @property
    def text(self) -> str:
        """All of them, preprocessed when they are first asked for."""
        if self._text is None:
            seen: set[Path] = set()
            self._text = "\n".join(
                self._preprocessed("".join(_included(text, folder, seen)))
                for text, folder in self.files
            )
        return self._text

    def _preprocessed(self, text: str) -> str:
        words = [flag for flag in self.flags if flag.startswith(("-D", "-U"))]
        command = [compiler(), "-E", "-P", "-w", "-x", "c++", *words, "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unread(f"{command[0]} does not take it: {done.stderr.strip()[-200:]}")
        return done.stdout

    def function(self, name: str) -> Function | None:
        """The definition of a function or, ``Class::name``, of a method."""
        owner, _, plain = name.rpartition("::")
        text = self.text
        places = [(0, len(text))]
        if owner:
            outside = _defined(text, rf"\b{re.escape(owner.rpartition('::')[2])}\s*::\s*{plain}")
            if outside is not None:
                return outside
            places = [
                (found.end(), _closed(text, found.end() - 1))
                for found in re.finditer(rf"\b(?:class|struct)\s+{owner}\b[^;{{]*\{{", text)
            ]
        for start, end in places:
            found = _defined(text[start:end], rf"(?<![\w.>])\b{re.escape(plain)}")
            if found is not None:
                return found
        return None

    def call(self, name: str, given: Sequence[Any], known: dict[str, Any] | None = None) -> Any:
        """What the function returns for these arguments.

        Raises:
            Unread: where its source is not understood.
        """
        function = self.function(name)
        if function is None:
            raise Unread(f"no definition of {name} was found")
        scope = _Scope(
            self, {**(known or {}), **dict(zip(function.parameters, given, strict=False))}
        )
        for statement in _statements(function.body):
            ended, value = _run(statement, scope)
            if ended:
                return value
        return None


class _Scope(dict[str, Any]):
    """Names as an expression finds them: variables, namespaces, functions of the sources."""

    def __init__(self, source: Source, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.source = source

    def __getitem__(self, name: str) -> Any:
        if name in self:
            value = super().__getitem__(name)
            if isinstance(value, Unread):
                raise value
            return value
        if name in NAMESPACES:
            return NAMESPACES[name]
        if self.source.function(name) is not None:
            return lambda *given: self.source.call(name, given)
        raise Unread(f"{name} is not known")


def _run(statement: str, scope: _Scope) -> tuple[bool, Any]:
    """Whether the function returns here, and what."""
    head = re.match(r"(if|else|for|while|do|switch|return)\b\s*(?:constexpr)?\s*", statement)
    if statement.startswith("{"):
        return _run_all(_statements(statement[1:-1]), scope)
    if head is None:
        _assign(statement.rstrip(";").strip(), scope)
        return False, None
    if head[1] == "return":
        value = statement[head.end() :].rstrip(";").strip()
        return True, _value(value, scope) if value else None
    if head[1] == "if":
        end = _closed(statement, head.end()) + 1
        yes, no = _branches(statement[end:])
        try:
            return _run_all((yes,) if _value(statement[head.end() : end], scope) else no, scope)
        except Unread as reason:
            if re.search(r"\breturn\b", statement):
                raise
            _forget(statement, scope, reason)
            return False, None
    if re.search(r"\breturn\b", statement):
        raise Unread(f"a result of a loop: {' '.join(statement.split())[:60]}")
    _forget(statement, scope, Unread(f"made in a loop: {' '.join(statement.split())[:60]}"))
    return False, None


def _run_all(statements: Sequence[str] | Iterator[str], scope: _Scope) -> tuple[bool, Any]:
    for each in statements:
        ended, value = _run(each, scope)
        if ended:
            return ended, value
    return False, None


def _branches(text: str) -> tuple[str, tuple[str, ...]]:
    first, *rest = _statements(text)
    if not rest:
        return first, ()
    return first, (re.sub(r"^else\b\s*", "", rest[0]),)


def _assign(text: str, scope: _Scope) -> None:
    """A declaration, an assignment or something added to a list; all else is passed over."""
    unpacked, pushed = _UNPACKED.match(text), _PUSHED.match(text)
    if unpacked:
        names = [each.strip() for each in (unpacked[1] or unpacked[2]).split(",")]
        try:
            values = list(_value(unpacked[3], scope))
        except Unread as reason:
            values = [reason] * len(names)
        scope.update(zip(names, values, strict=False))
    elif pushed:
        try:
            scope[pushed[1]].append(_value(pushed[2], scope))
        except Unread as reason:
            scope[pushed[1]] = reason
    elif assigned := _ASSIGNED.match(text):
        # Several of one type may be declared at once.
        value, *further = _split(assigned[2], ",")
        scope[assigned[1]] = _or_reason(value, scope)
        for each in further:
            _assign(each.strip(), scope)
    elif (declared := _DECLARED.match(text)) and declared[1] not in ("return", "using", "throw"):
        kind, name, given, listed = declared.groups()
        if given is None and listed is None:
            scope[name] = [] if "vector" in kind else None
        else:
            made = given if given is not None and "Tensor" not in kind else f"{kind}({given})"
            scope[name] = _or_reason(listed or made, scope)


def _or_reason(text: str, scope: _Scope) -> Any:
    try:
        return _value(text, scope)
    except Unread as reason:
        return reason


def _forget(text: str, scope: _Scope, reason: Unread) -> None:
    """What is written somewhere in here is not known from now on."""
    for name in re.findall(r"(?<![\w.>])(\w+)\s*=(?!=)", text):
        scope[name] = reason
    for name in re.findall(r"\b(\w+)\s*\.\s*(?:push_back|emplace_back|resize)\b", text):
        scope[name] = reason


def _value(text: str, scope: _Scope) -> Any:
    """An expression's value, done as Python spells it."""
    try:
        return eval(_python(text), {"__builtins__": {}}, scope)
    except Unread:
        raise
    except Exception as error:
        raise Unread(f"{' '.join(text.split())[:80]}: {error}") from error


def _python(text: str) -> str:
    # A function of a type alone, as ``CppTypeToScalarType<T>()``, is asked for the type's name.
    text = re.sub(r"[\w:]+\s*<\s*([\w:]+)\s*>\s*\(\s*\)", r'of_type("\1")', text.strip())
    text = re.sub(r"(?<=\w)\s*<[\w:,\s]*>(?=\s*[({])", "", text)
    # A list in braces, whatever type it is made of.
    text = re.sub(r"[\w:]+\s*(?=\{)", "", text).replace("{", "[").replace("}", "]")
    text = _choices(text)
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    return " ".join(text.split())


def _choices(text: str) -> str:
    """``condition ? this : that``, in brackets or not, in Python's order."""
    parts = []
    for part in _split(text, ","):
        open_at, made = 0, ""
        for place in re.finditer(r"[(\[]", part):
            if place.start() >= open_at:
                end = _closed(part, place.start())
                made += part[open_at : place.end()] + _choices(part[place.end() : end])
                open_at = end
        made += part[open_at:]
        question = next(_at_top(made, "?"), None)
        if question is not None:
            colons = (each for each in _at_top(made, ":") if each > question)
            colon = next(each for each in colons if "::" not in made[each - 1 : each + 2])
            then, other = made[question + 1 : colon], _choices(made[colon + 1 :])
            made = f"(({_choices(then)}) if ({made[:question]}) else ({other}))"
        parts.append(made)
    return ",".join(parts)


def _included(text: str, folder: Path | None, seen: set[Path]) -> Iterator[str]:
    """The text with the headers beside it in place, each once; others are left out."""
    end = 0
    for found in _INCLUDE.finditer(text):
        yield text[end : found.start()]
        end = found.end()
        file = None if folder is None or not found[1] else (folder / found[1]).resolve()
        if file is not None and file not in seen and file.is_file():
            seen.add(file)
            yield from _included(file.read_text(errors="replace"), file.parent, seen)
    yield text[end:]


def _defined(text: str, name: str) -> Function | None:
    for found in re.finditer(rf"{name}\s*\(", text):
        end = _closed(text, found.end() - 1)
        brace = re.compile(r"\)\s*(?:const|noexcept|override|\s)*\{").match(text, end)
        if brace is not None:
            body = text[brace.end() : _closed(text, brace.end() - 1)]
            return Function(tuple(_parameters(text[found.end() : end])), body)
    return None


def _parameters(text: str) -> Iterator[str]:
    for each in _split(text, ","):
        words = re.findall(r"\w+", each.partition("=")[0])
        if words:
            yield words[-1]


def _closed(text: str, start: int) -> int:
    """Where the bracket at ``start`` is closed."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in _OPENING) - (text[place] in _CLOSING)
        if not depth:
            return place
    raise Unread("a bracket is not closed")


def _at_top(text: str, sign: str) -> Iterator[int]:
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if not depth and letter == sign:
            yield place


def _split(text: str, sign: str) -> Iterator[str]:
    start = 0
    for place in (*_at_top(text, sign), len(text)):
        yield text[start:place]
        start = place + 1


def _statements(text: str) -> Iterator[str]:
    """Statements in order; what belongs to ``if``, ``for`` and so on, with it."""
    place = 0
    while place < len(text):
        if text[place].isspace() or text[place] == ";":
            place += 1
            continue
        end = _end(text, place)
        yield text[place:end].strip()
        place = end


def _end(text: str, place: int) -> int:
    """Where the statement that begins here ends."""
    place += len(text[place:]) - len(text[place:].lstrip())
    if text.startswith("{", place):
        return _closed(text, place) + 1
    head = re.compile(r"(if|for|while|switch)\b\s*(?:constexpr\s*)?|(?:else|do)\b").match(
        text, place
    )
    if head is None:
        found = next(_at_top(text[place:], ";"), len(text) - place - 1)
        return place + found + 1
    begin = _closed(text, head.end()) + 1 if head[1] else head.end()
    end = _end(text, begin)
    following = re.compile(r"\s*else\b").match(text, end)
    return _end(text, following.end()) if head[1] == "if" and following else end
