"""Programs that a script starts, launchers and shell scripts among them: the first that trains is
the traced rank, its trace that of the run.

Python programs begin with ``startup/sitecustomize.py``. One that imports torch starts anew as a
rank's process; those of other ranks, and all after the first that trained, end at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from pathlib import Path

from trainscout.simulators.predictor.io.cache_folder import cache_folder
from trainscout.simulators.predictor.io.command_line import FAILURE, OK
from trainscout.simulators.predictor.io.own_process import end_with_parent
from trainscout.simulators.virtual_cluster.emulation.vendor import PACKAGES

MASTER_PORT = "29500"
SETTINGS = "TRAINSCOUT_PROGRAMS"
_STARTERS_OF_RANKS = ("srun", "mpirun", "mpiexec")
STARTUP = str(Path(__file__).with_name("startup"))
_BIN = str(Path(sys.executable).parent)
_PYTHON = """#!/bin/sh
PYTHONPATH='{startup}':"$PYTHONPATH" exec '{bin}'/"${{0##*/}}" "$@"
"""
# Whatever stands before the program are options; a value that is a word of its own may be the name
# of one (a job called test) or a folder, and a program that of a folder beside it.
_RANKS = """#!/bin/sh
while [ $# -gt 1 ] && { found=$(command -v -- "$1"); [ -z "$found" ] || [ -d "$found" ]; }; do
    case $1 in *=*) ;; -[JpACweoD]|--job-name|--partition|--account|--qos|--constraint| \
        --nodelist|--output|--error|--chdir|--comment|--reservation| \
        --container-image|--container-name) shift;; esac
    shift
done
export SLURM_PROCID=$RANK SLURM_LOCALID=$LOCAL_RANK SLURM_NTASKS=$WORLD_SIZE
export SLURM_NPROCS=$WORLD_SIZE SLURM_NODEID=$GROUP_RANK
export SLURM_NNODES=$GROUP_WORLD_SIZE SLURM_JOBID=1
export OMPI_COMM_WORLD_RANK=$RANK OMPI_COMM_WORLD_LOCAL_RANK=$LOCAL_RANK
export OMPI_COMM_WORLD_SIZE=$WORLD_SIZE
exec "$@"
"""


def find_program(name: str) -> str | None:
    """The file that a command's first word is, or names, as where this Python is activated."""
    if Path(name).is_file():
        return name
    places = os.pathsep.join((os.environ.get("PATH", ""), _BIN))
    return shutil.which(name, path=places) or (name if name in _STARTERS_OF_RANKS else None)


def torchrun_ranks(words: Sequence[str]) -> int | None:
    """How many ranks torchrun would start; None where it is not before the script, or does not say
    so in numbers. Its own defaults are one node and one rank."""
    if Path(words[0]).name != "torchrun":
        return None
    stated: dict[str, str] = {}
    for word, following in pairwise((*words[1:], "")):
        name, _, value = word.partition("=")
        if not word.startswith("-") and word.endswith(".py"):
            break
        stated[name.replace("_", "-")] = value or following
    counts = [stated.get("--nnodes", "1"), stated.get("--nproc-per-node", "")]
    return prod(map(int, counts)) if all(each.isdigit() for each in counts) else None


def is_python(file: str) -> bool:
    """Whether Python runs a file: nothing that the system runs, or says so itself."""
    if file in _STARTERS_OF_RANKS:
        return False
    with open(file, "rb") as opened:
        head = opened.read(200)
    if head.startswith(b"#!"):
        first, second = (*head.splitlines(), b"")[:2]
        # A long path stands in the second line, after a shell's.
        return b"python" in first or (second.startswith(b"'''exec'") and b"python" in second)
    return not head.startswith(b"\x7fELF") and not file.endswith((".sh", ".bash", ".slurm"))


def waits_for_program(words: Sequence[str]) -> bool:
    """Whether what ``run_main`` runs is no Python code: another process, which is waited for."""
    return words[0] not in ("-m", "-c") and not is_python(words[0])


def run_main(words: Sequence[str]) -> None:
    """Run a script, ``-m`` and a module, ``-c`` and code, or a program, as the main one.

    Raises:
        SystemExit: when a program has ended; whatever a script raises.
    """
    first, *arguments = words
    if first == "-m":
        sys.argv = arguments
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = [first, *arguments[1:]]
        sys.path.insert(0, "")
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    elif is_python(first):
        sys.argv = list(words)
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")
    else:
        sys.exit(start_program(words).wait())


def start_program(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program that is no Python code; it ends with this process."""
    program = shutil.which(words[0]) or os.path.abspath(words[0])
    shell = () if os.access(program, os.X_OK) else ("bash",)
    return subprocess.Popen([*shell, program, *words[1:]], preexec_fn=end_with_parent)


def set_environment(world_size: int, rank: int, local_world_size: int) -> None:
    """The variables torchrun gives a rank."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank % local_world_size),
        LOCAL_WORLD_SIZE=str(local_world_size),
        GROUP_RANK=str(rank // local_world_size),
        GROUP_WORLD_SIZE=str(-(-world_size // local_world_size)),
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(world_size),
        ROLE_NAME="default",
        MASTER_ADDR="localhost",
        MASTER_PORT=MASTER_PORT,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID="emulated",
    )


class Programs:
    """Which process a rank's trace is of: a file says that one has trained, and its exit code.

    ``child``: whether this is one that the script started. ``claim`` is that file; ``claimed``:
    whether this one made it.
    """

    def __init__(self, *, child: bool) -> None:
        self._child, self.claimed = child, False
        if child:
            self.claim = Path(json.loads(os.environ[SETTINGS])["claim"])
        else:
            self.claim = Path(tempfile.gettempdir(), f"trainscout-trained-{uuid.uuid4().hex}")

    def follow(self, command: Sequence[str], local_rank: int) -> None:
        """Let programs that the script starts begin anew with ``command``, after the interpreter's
        name, where they train."""
        settings = {
            "command": list(command),
            "packages": ["torch", *PACKAGES],
            "claim": str(self.claim),
            "local_rank": str(local_rank),
            "pid": None if self._child else os.getpid(),
        }
        os.environ[SETTINGS] = json.dumps(settings)
        put_first("PATH", str(_starters()))

    def have_trace(self, trained: bool) -> bool:
        """Whether the rank's trace is that of this process, which has ``trained``."""
        if not self._child or not trained:
            return not self._child and (trained or not self.claim.exists())
        try:
            self.claim.touch(exist_ok=False)
        except FileExistsError:
            return False
        self.claimed = True
        return True

    def wait_for_rank(self) -> None:
        """Wait until the process whose trace it is has ended."""
        while self.claim.exists() and not self.claim.read_text():
            time.sleep(0.05)

    def ended(self, code: int) -> int:
        """The process whose trace it is has ended with ``code``."""
        if self._child:
            self.claim.write_text(str(code))
        else:
            self.claim.unlink(missing_ok=True)
        return code

    def ended_elsewhere(self, code: int, *, enough: bool) -> int:
        """The exit code of a process without a trace, whose script's is ``code``: that of the one
        which trained and, if nothing ended that after ``enough`` steps, of what came after it."""
        if self._child:
            return code
        trained = int(self.claim.read_text() or FAILURE)
        self.claim.unlink()
        return trained or (OK if enough else code)


def trained_elsewhere() -> bool:
    """Whether a process of the script's has trained."""
    settings = os.environ.get(SETTINGS)
    return settings is not None and os.path.exists(json.loads(settings)["claim"])


def _starters() -> Path:
    """A folder of what scripts are to find before all else: this Python's own programs, though
    they set PYTHONPATH, and what would start ranks on other machines."""
    python = _PYTHON.format(startup=STARTUP, bin=_BIN)
    key = hashlib.sha256((python + _RANKS).encode()).hexdigest()[:16]
    folder = cache_folder() / "native" / f"programs-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys(_STARTERS_OF_RANKS, _RANKS)
    for name in os.listdir(_BIN):
        if os.access(os.path.join(_BIN, name), os.X_OK):
            texts.setdefault(name, python)
    for name in texts.keys() - set(os.listdir(folder)):
        # Ranks may start at the same time.
        own = folder / f".{name}.{os.getpid()}"
        own.write_text(texts[name])
        own.chmod(0o755)
        own.replace(folder / name)
    return folder


def put_first(variable: str, folder: str) -> None:
    """Have a folder be looked in before all others of ``variable``."""
    folders = os.environ.get(variable, "").split(os.pathsep)
    if folder not in folders:
        os.environ[variable] = os.pathsep.join(filter(None, (folder, *folders)))
