"""What the docstring of a dataclass says about each of its fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass

_CODE = re.compile(r"``([^`]+)``")
# "With ``x``", "``x``/``y``", "``x`` and ``y``": what a clause is about.
_LEAD = re.compile(r"(?:[A-Z][a-z]* )?(``[^`]+``(?:(?:/|, | and | or )``[^`]+``)*)")


@dataclass(frozen=True)
class _Clause:
    """A sentence or a part of one, the fields it begins with, and those it mentions."""

    text: str
    lead: tuple[str, ...]
    mentioned: tuple[str, ...]


def field_docs(cls: type) -> dict[str, str]:
    """Each field of dataclass ``cls`` and what the class's docstring says of it, in Markdown.

    A docstring is read clause by clause, up to semicolons and periods. A clause that begins with
    fields in double backticks is about these; a clause without any field, or one that begins with
    another name in backticks (a value), goes on with what came before. A field that no clause
    begins with is explained by those that mention it, and left out when there is none.
    """
    names = [field.name for field in dataclasses.fields(cls)]
    clauses = _clauses(inspect.getdoc(cls) or "", names)
    docs = {}
    for name in names:
        about = [clause.text for clause in clauses if name in clause.lead]
        said = about or [clause.text for clause in clauses if name in clause.mentioned]
        if said:
            # The name itself stands beside what is said.
            named = re.compile(rf"^``{name}``(?:: | is | are | says )")
            docs[name] = " ".join(_sentence(named.sub("", text)) for text in said)
    return docs


def _clauses(doc: str, names: list[str]) -> list[_Clause]:
    clauses: list[_Clause] = []
    for paragraph in doc.split("\n\n"):
        continues = False
        for text in _split(" ".join(paragraph.split())):
            mentioned = tuple(name for name in _CODE.findall(text) if name in names)
            lead = _LEAD.match(text)
            first = _CODE.findall(lead[1]) if lead else []
            leading = tuple(name for name in first if name in names)
            if continues and (not mentioned or (first and not leading)):
                before = clauses[-1]
                joined = f"{before.text} {text}"
                clauses[-1] = _Clause(joined, before.lead, before.mentioned + mentioned)
            elif mentioned:
                clauses.append(_Clause(text, leading, mentioned))
                continues = True
    return clauses


def _split(text: str) -> list[str]:
    """Clauses of a paragraph. What stands in parentheses is not split, nor does a period end a
    clause that goes on with a small letter or a digit (``et al. 2021``)."""
    pieces, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        ends = letter == ";" or (letter == "." and re.match(r"\s+[A-Z`(]", text[at + 1 :]))
        if depth == 0 and ends and text[at + 1 : at + 2] in (" ", ""):
            pieces.append(text[start : at + 1].strip())
            start = at + 1
    return [piece for piece in (*pieces, text[start:].strip()) if piece]


def _sentence(text: str) -> str:
    """A clause that can stand alone, in Markdown."""
    ended = text.rstrip(";.") + ("" if text.endswith(":") else ".")
    capital = ended[0].upper() + ended[1:]
    # What Python calls None is null in a file and on the command line.
    return re.sub(r"\bNone\b", "`null`", _CODE.sub(r"`\1`", capital))
