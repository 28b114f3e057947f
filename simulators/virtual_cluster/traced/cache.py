"""Traced layers on disk: one JSON file each, named by everything but the versions it holds.

Reading needs no torch. Where all that layers are traced with is installed, an entry that other
versions made counts as missing; elsewhere it is taken as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from trainscout.simulators.predictor.io.cache_folder import cache_folder
from trainscout.simulators.predictor.io.output import write_whole
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.virtual_cluster.traces.codec import LineCodec, MalformedError

from .layer_spec import LayerSpec

FORMAT = 2
FOLDER = "traced"
TRACED_PACKAGES = ("torch", "megatron-core", "transformer-engine")
# A layer's file is some tens of kilobytes; what is larger was not written here.
MOST_BYTES = 16 * 2**20
_VIRTUAL_CLUSTER = Path(__file__).parent.parent
# Code that a trace goes through before it is a block.
_SOURCES = ("emulation", "traced", "traces")


@dataclass(frozen=True)
class TracedLayer:
    """A layer's blocks and parameters on one rank; ``versions`` maps package to version.

    The head's parameters include an output weight of its own.
    """

    forward: Block
    backward: Block
    parameters: LocalParameters
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "forward": encode_block(self.forward),
            "backward": encode_block(self.backward),
            "parameters": [self.parameters.dense, self.parameters.expert],
            "versions": self.versions,
        }

    @staticmethod
    def from_json(document: object) -> TracedLayer:
        """Raises MalformedError for what ``to_json`` does not write."""
        names = {"forward", "backward", "parameters", "versions"}
        if not isinstance(document, dict) or set(document) != names:
            raise MalformedError(f"a traced spec has {', '.join(sorted(names))}")
        counts, versions = document["parameters"], document["versions"]
        if not isinstance(counts, list) or [type(each) for each in counts] != [int, int]:
            raise MalformedError("parameters are two counts")
        if not isinstance(versions, dict) or not all(
            isinstance(text, str) for text in versions.values()
        ):
            raise MalformedError("versions are texts")
        return TracedLayer(
            decode_block(document["forward"]),
            decode_block(document["backward"]),
            LocalParameters(*counts),
            versions,
        )


@dataclass(frozen=True)
class Refused:
    """What Megatron-Core does not run as configured, and its error."""

    reason: str


def installed_versions() -> dict[str, str] | None:
    """Versions of what layers are traced with, None where something is not installed."""
    try:
        return {name: importlib.metadata.version(name) for name in TRACED_PACKAGES}
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def code_digest() -> str:
    """Hash of the code that makes blocks from a layer."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_VIRTUAL_CLUSTER / folder).rglob("*")):
            if path.suffix in (".py", ".cpp"):
                digest.update(str(path.relative_to(_VIRTUAL_CLUSTER)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


class TracedLayerCache:
    """The directory of traced layers; ``None`` is the user's."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or cache_folder() / FOLDER

    def read(self, spec: LayerSpec) -> TracedLayer | None:
        """The traced layer; None when there is none, or what is there cannot be used."""
        path = self._path(spec)
        try:
            if path.stat().st_size > MOST_BYTES:
                return None
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return None
        # A digest's collision, or a file that somebody renamed.
        if content.get("spec") != _as_json(spec):
            return None
        try:
            traced = TracedLayer.from_json(content.get("traced"))
        except MalformedError:
            return None
        installed = installed_versions()
        return None if installed is not None and traced.versions != installed else traced

    def write(self, spec: LayerSpec, traced: TracedLayer) -> None:
        """Keep it; raises OSError when it cannot be written."""
        content = {"format": FORMAT, "spec": _as_json(spec), "traced": traced.to_json()}
        self._directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
        write_whole(self._path(spec), text)

    @contextlib.contextmanager
    def claimed(self, specs: Iterable[LayerSpec]) -> Iterator[None]:
        """While inside, no other process traces any of ``specs``: it waits for them instead.

        Locks are files' (``flock``), which end with their process, taken in one order.
        """
        import fcntl

        self._directory.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            for name in sorted({_digest(_as_json(spec)) for spec in specs}):
                path = self._directory / f"{name}.lock"
                lock = stack.enter_context(path.open("wb"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _path(self, spec: LayerSpec) -> Path:
        return self._directory / f"{_digest([FORMAT, code_digest(), _as_json(spec)])}.json"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _as_json(spec: LayerSpec) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(spec)))


_OPERATIONS = LineCodec(get_args(ir.Op), {})


def encode_block(block: Block) -> dict[str, Any]:
    return {
        "name": block.name,
        "ops": [list(_OPERATIONS.row(op)) for op in block.ops],
        "peak_bytes": block.peak_bytes,
        "forward_ops": block.forward_ops,
    }


def decode_block(document: object) -> Block:
    """The block that ``encode_block`` wrote.

    Raises:
        MalformedError: for anything else.
    """
    if not isinstance(document, dict) or set(document) != {
        "name",
        "ops",
        "peak_bytes",
        "forward_ops",
    }:
        raise MalformedError("a block has name, ops, peak_bytes and forward_ops")
    name, ops = document["name"], document["ops"]
    counts = document["peak_bytes"], document["forward_ops"]
    if not isinstance(name, str) or not isinstance(ops, list):
        raise MalformedError("name is a text and ops a list")
    if not all(type(count) is int and count >= 0 for count in counts):
        raise MalformedError("peak_bytes and forward_ops are counts")
    return Block(name, tuple(map(_OPERATIONS.value, ops)), *counts)
