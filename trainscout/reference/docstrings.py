"""The docstring under each field of a dataclass, in Markdown."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap

_CODE = re.compile(r"``([^`]+)``")


def field_docs(cls: type) -> dict[str, str]:
    """What stands under each field of ``cls`` or of a dataclass that it inherits from; fields
    without a docstring are left out."""
    docs: dict[str, str] = {}
    for each in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        docs |= _own_field_docs(each)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, below in itertools.pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = _markdown(" ".join(text.split()))
    return docs


def _markdown(text: str) -> str:
    # What Python calls None is null in a file and on the command line.
    return re.sub(r"\bNone\b", "`null`", _CODE.sub(r"`\1`", text))
