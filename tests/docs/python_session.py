"""Documented Python, run as a reader types it: a page's blocks or a notebook's cells, one after
another in one namespace.

``python -m tests.docs.python_session examples/quickstart.ipynb`` writes a notebook's outputs anew.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Session:
    """One namespace that code is run in."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, code: str) -> tuple[str, Any]:
        """What the code prints, and the value of the expression it ends with, if it does."""
        statements = ast.parse(code).body
        last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(statements, []), "<page>", "exec"), self.names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<page>", "eval"), self.names)
        return printed.getvalue(), value


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs_of(printed: str, value: Any, number: int) -> list[dict[str, Any]]:
    """A cell's outputs as a notebook keeps them."""
    found: list[dict[str, Any]] = []
    if printed:
        lines = printed.splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        result = {"data": data, "execution_count": number, "metadata": {}}
        found.append({"output_type": "execute_result", **result})
    return found


def run_notebook(notebook: dict[str, Any]) -> None:
    """Run every code cell, and put what it shows in the place of its outputs."""
    session = Session()
    for number, cell in enumerate(code_cells(notebook), start=1):
        printed, value = session.run("".join(cell["source"]))
        cell["execution_count"] = number
        cell["outputs"] = outputs_of(printed, value, number)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        content = json.loads(Path(name).read_text("utf-8"))
        run_notebook(content)
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        Path(name).write_text(text, encoding="utf-8")
