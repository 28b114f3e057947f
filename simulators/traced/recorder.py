"""Traces pieces of models on an emulated GPU: ``python -m simulators.traced.recorder``.

Reads one piece a line on standard input, as ``Piece.to_json`` writes it, and answers each with a
line: ``{"traced": ...}``, or ``{"failed": reason}`` where Megatron-Core does not run it so.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, TextIO

from simulators.traced.cache import TracedPiece, installed_versions
from simulators.traced.passage import blocks_of
from simulators.traced.piece import Piece


def main() -> int:
    answers = _own_stdout()
    for line in sys.stdin:
        answers.write(json.dumps(answer(Piece.from_json(json.loads(line)))) + "\n")
        answers.flush()
    return 0


def answer(piece: Piece) -> dict[str, Any]:
    """The piece's trace, or why there is none."""
    try:
        return {"traced": trace(piece).to_json()}
    except Exception as error:  # one piece that Megatron refuses must not cost the others
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"}


def trace(piece: Piece) -> TracedPiece:
    """Trace one piece in this process."""
    from simulators.traced.piece_run import record

    versions = installed_versions()
    assert versions is not None
    recording, parameters = record(piece)
    return TracedPiece(*blocks_of(recording), parameters, versions)


def _own_stdout() -> TextIO:
    """Standard output for answers alone: what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


if __name__ == "__main__":
    sys.exit(main())
