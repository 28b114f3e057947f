"""Write the pages of the configuration reference: ``python -m trainscout.reference --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainscout.reference.pages import reference_pages
from trainscout.simulators.predictor.io.command_line import OK, explain
from trainscout.simulators.predictor.io.output import write_whole
from trainscout.simulators.predictor.question.errors import InputError


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code (0 done, 2 wrong input)."""
    parser = argparse.ArgumentParser(
        prog="python -m trainscout.reference",
        description="Write docs/reference.md, choices.md and hardware.md from the code and conf/.",
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the pages")
    docs = parser.parse_args(arguments).docs
    try:
        if not docs.is_dir():
            raise InputError("--docs", docs, "is no folder", "the docs folder")
        for name, text in reference_pages().items():
            write_whole(docs / name, text)
    except Exception as error:
        return explain(error, debug=False)
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
