"""Write the pages of the configuration reference: ``python -m trainscout.reference --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra import initialize_config_module
from omegaconf import OmegaConf

from trainscout.commands.hydra_setup import run_directory
from trainscout.commands.schemas import register_commands
from trainscout.reference.choices_page import choices_page
from trainscout.reference.hardware_page import hardware_page
from trainscout.reference.settings_page import settings_page
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


def reference_pages() -> dict[str, str]:
    """What the generated pages of ``docs/`` have to contain."""
    register_commands()
    OmegaConf.register_new_resolver("run_directory", run_directory, replace=True)
    with initialize_config_module("trainscout.conf", version_base="1.3"):
        return {
            "reference.md": settings_page(),
            "choices.md": choices_page(),
            "hardware.md": hardware_page(),
        }
