"""Fuzzed files for what reads one: read, or refused in words; no other exception."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainscout.conf.catalogue import load_catalogue
from trainscout.optimizer.storage.backends import damaged_records, open_storage
from trainscout.optimizer.tracking.spool import read_spool
from trainscout.optimizer.warm_start import read_recipes
from trainscout.reports.launch_import.shell import read_script
from trainscout.simulators.laboratory.published.reading.rows import read_rows
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.moe.popularity import read_histograms
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.uncertainty.calibration import read_calibration
from trainscout.simulators.virtual_cluster.live.messages import read_messages
from trainscout.simulators.virtual_cluster.traces.codec import MalformedError
from trainscout.simulators.virtual_cluster.traces.files import read_trace
from trainscout.simulators.virtual_cluster.traces.kineto import read_kineto

_SCRIPT = """\
GPUS=8; ARGS=(--tensor-model-parallel-size ${TP:-4} --num-layers $((GPUS * 4)))
if [ "$GPUS" = 8 ]; then ARGS+=("--bf16"); fi
case $GPUS in 8*) X="a b" ;; *) X=c ;; esac
torchrun --nproc-per-node $GPUS pretrain_gpt.py "${ARGS[@]}" --seq-length 2048
"""
_PROFILE = {
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2,
         "args": {"External id": 3, "Input Dims": [[4, 5], [5, 6]], "Input type": ["c10::Half"]}},
        {"ph": "X", "cat": "kernel", "name": "ncclKernel", "ts": 3, "dur": 4,
         "args": {"External id": 3, "correlation": 7, "stream": 7, "dtype": "Float",
                  "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8,
                  "Group size": 2, "Process Group Ranks": "[0, 1]"}},
    ],
    "distributedInfo": {"rank": 0, "world_size": 2},
    "deviceProperties": [{"name": "NVIDIA H100"}],
}  # fmt: skip
_RUNS = DECLARATIONS.parent / "simulators/laboratory/data/published_runs.csv"
_JOURNAL = '{"op_code":0,"worker_id":"a","study_name":"s","directions":[1]}\n'
_MESSAGE = b'["figures",0,1.5,1,2,3,4,0]\n["sleep",0.5]'


# By suffix of the file: its content when it is right, and who reads it.
SEEDS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "model.yaml": (
        (DECLARATIONS / "model/mixtral_8x7b.yaml").read_bytes(),
        lambda path: load_catalogue().models.chosen("model", str(path)),
    ),
    "any.yaml": (b"a: &x [1, 2]\nb: {c: *x, d: 1e3}\n", read_yaml),
    "launch.sh": (_SCRIPT.encode(), lambda path: read_script(path.read_text("utf-8"), {})),
    "profile.json": (json.dumps(_PROFILE).encode(), read_kineto),
    "runs.csv": (b"".join(_RUNS.read_bytes().splitlines(True)[:4]), read_rows),
    "experts.csv": (b"layer,expert,tokens\n0,0,5\n0,1,7\n", read_histograms),
    "search.journal": (
        _JOURNAL.encode() * 3,
        lambda path: damaged_records(open_storage(str(path))),
    ),
    "tracking.json": (b'{"format": 2, "uri": "sqlite:///a.db", "artifacts": []}', read_spool),
    "top_recipes.json": (b'[{"recipe": {"tp": 8, "sp": true}}]', lambda p: read_recipes("a", p)),
    "calibration.yaml": (b"format: 1\nfactors: {compute: 1.1}\n", read_calibration),
    "message.json": (_MESSAGE, lambda path: read_messages(path.read_text("utf-8"))),
    "rank_00000.trace.gz": (b'{"format":"trainscout-trace","version":1}\n', read_trace),
}
# What readers may say of a file that is not theirs.
_REFUSED = (InputError, MalformedError, UnicodeDecodeError)
_PIECES: tuple[bytes, ...] = (
    b"[" * 2000, b"{" * 2000, b"\0", b"\xff\xfe", b"1e999", b"9" * 5000, b"\x1b[31m", b"null",
    b"&a [*a]", b"!!python/object:os.system", b"$A$A", b"${", b"$((", b"\"", b"'", b"\n", b"\t",
    b"-1", b"NaN", b"1" + b"0" * 400, b"[]", b"{}", b",", b":", b"\xe2\x80\xae",
)  # fmt: skip


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """What readers raised but a refusal, of ``count`` fuzzed files, a line each."""
    chosen = random.Random(seed)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            name = chosen.choice(list(SEEDS))
            content, read = SEEDS[name]
            file = Path(folder, name)
            file.write_bytes(mutated(content, chosen))
            problem = _raised(read, file)
            if problem is not None:
                wrong.append(f"file {number} of seed {seed}, {name}: {problem}")
    return count, wrong


def mutated(content: bytes, chosen: random.Random) -> bytes:
    """A few bits flipped, parts cut, doubled or replaced by what readers stumble over."""
    data = bytearray(content)
    for _ in range(chosen.randrange(1, 6)):
        at = chosen.randrange(len(data) + 1)
        end = min(len(data), at + chosen.randrange(1, 40))
        match chosen.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << chosen.randrange(8)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end] * chosen.randrange(1, 50)
            case 3:
                data[at:end] = chosen.choice(_PIECES)
            case _:
                data[at:at] = chosen.choice(_PIECES)
    return bytes(data)


def _raised(read: Callable[[Path], Any], file: Path) -> str | None:
    try:
        read(file)
    except _REFUSED:
        return None
    except ValueError as error:  # that of a spooled search says so in words
        return None if "tracking.json" in str(error) else f"ValueError: {str(error)[:200]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None
