"""``trainscout init``: a model and a cluster of one's own to start from, as commented YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import make_folder, show_text, write_output
from trainscout.simulators.predictor.question.errors import InputError

_TEMPLATES = Path(__file__).parents[1] / "templates"


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = command_parser(
        "init",
        "Write a model and a cluster to start from: commented YAML files in a folder of yours, "
        "MODEL and CLUSTER below. Nothing is asked, no file is replaced.",
        "trainscout init\n"
        "trainscout init ours --name our_30b\n"
        "trainscout optimize --config-dir mine model=ours cluster=ours",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("mine"), metavar="FOLDER", help="(mine)"
    )
    parser.add_argument("--name", default="ours", help="name of both (default ours)")
    options = parser.parse_args(arguments)
    if not options.name.replace("_", "").replace("-", "").isalnum():
        raise InputError("--name", options.name, "is no name", "letters, digits, _ and -")
    files = {
        options.folder / group / f"{options.name}.yaml": _TEMPLATES / f"{group}.yaml"
        for group in ("model", "cluster")
    }
    for path in files:
        refuse_existing("folder", path)
    for path, template in files.items():
        text = template.read_text("utf-8").replace(" ours ", f" {options.name} ", 1)
        write_new("folder", path, text)
    show_text(
        "".join(f"Wrote {path}\n" for path in files)
        + f"Edit them, then: trainscout optimize --config-dir {options.folder} "
        f"model={options.name} cluster={options.name}\n"
    )
    return OK


def refuse_existing(option: str, path: Path) -> None:
    """Raises InputError for a file that would be lost."""
    if path.exists():
        raise InputError(option, path, "exists already and is not replaced", "another name")


def write_new(option: str, path: Path, text: str) -> None:
    """Write a file and the folders it is in."""
    make_folder(option, path.parent)
    write_output(option, path, text)
