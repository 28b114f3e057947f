"""Which folder may import which: the arrows of docs/architecture.md."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("conf", "optimizer", "planning", "pruning", "reports", "simulators", "trainscout")
PREDICTOR = "simulators.predictor"
PREDICTING = {PREDICTOR, "simulators"}
# From the ground up: what each house imports besides itself. ``simulators`` are its loose files,
# the registry of simulators, which knows the virtual cluster by name only.
ARROWS: dict[str, set[str]] = {
    PREDICTOR: set(),
    "conf": {PREDICTOR},
    "simulators": {PREDICTOR},
    "simulators.expert_exchange": {PREDICTOR},
    "simulators.virtual_cluster": {PREDICTOR, "conf"},
    "pruning": PREDICTING,
    "optimizer": {*PREDICTING, "conf", "pruning"},
    "planning": {*PREDICTING, "pruning", "optimizer"},
    "reports": {
        *PREDICTING,
        *("conf", "simulators.virtual_cluster", "pruning", "optimizer", "planning"),
    },
    "trainscout": {
        *PREDICTING,
        *("conf", "simulators.virtual_cluster", "pruning", "optimizer", "planning", "reports"),
    },
    # Nobody imports it. Its commands ask and print as the others do.
    "simulators.laboratory": {
        *PREDICTING,
        *("conf", "simulators.virtual_cluster", "pruning", "optimizer", "reports", "trainscout"),
    },
}
# Rooms of the predictor that price one thing each; ``replay`` puts their prices together.
PRICING = ("collectives", "interference", "kernels", "memory", "network")


def house_of(module: str) -> str:
    """The house of a module named from the top, without ``trainscout.``."""
    first, _, rest = module.partition(".")
    second = rest.partition(".")[0]
    if first == "simulators":
        house = f"{first}.{second}"
        return house if house in ARROWS else first
    return first if first in PACKAGES else "trainscout"


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of the product, without ``trainscout.``, and its file."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[0] == "trainscout" and len(parts) > 1 and parts[1] in PACKAGES:
                continue  # the same files by another name
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name.removeprefix("trainscout."), path


def imports(path: Path, *, running: bool = False) -> Iterator[str]:
    """Dotted names that a file imports, wherever in it; those of a package one by one. Without
    those for type checkers alone, where ``running``."""
    return (name for name, runs in imported(path) if runs or not running)


@functools.cache
def imported(path: Path) -> tuple[tuple[str, bool], ...]:
    """Those names, and whether the import is there when the program runs."""
    folder = ("trainscout", *path.relative_to(ROOT).parts[:-1])
    module = ast.parse(path.read_text(encoding="utf-8"))
    of_types = {
        node
        for part in module.body
        if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"
        for each in part.body
        for node in ast.walk(each)
    }
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # ``from .events``: of the file's own folder; ruff lets none be of one above (TID252).
            base = ".".join(filter(None, (*folder, node.module))) if node.level else node.module
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(name, node not in of_types) for name in names]
    return tuple(found)


@functools.cache
def edges() -> list[tuple[str, str]]:
    return [(name, target) for name, path in sources() for target in imports(path)]


@functools.cache
def own() -> list[tuple[str, str]]:
    """Those within the product."""
    return [
        (name, target.removeprefix("trainscout."))
        for name, target in edges()
        if target.startswith("trainscout.")
    ]


@pytest.mark.parametrize("house", ARROWS)
def test_a_house_imports_only_those_below_it(house: str) -> None:
    wrong = {
        f"{name} -> {target}"
        for name, target in own()
        if house_of(name) == house and house_of(target) not in {house, *ARROWS[house]}
    }
    assert not wrong


def test_every_house_has_files() -> None:
    assert {house_of(name) for name, _ in own()} == set(ARROWS)


# What two modules that know each other name for type checkers alone: a knob's rules are of the job
# that holds it, and so on. Nothing is added here: a name moves to where it belongs.
TYPES_OF_CIRCLES = {
    (f"{PREDICTOR}.question.knob", f"{PREDICTOR}.question.job"),
    (f"{PREDICTOR}.question.knobs.recomputation", f"{PREDICTOR}.question.job"),
    ("pruning.bounds.columns", "pruning.bounds.recipe_bounds"),
}


def circles(*, running: bool) -> dict[str, set[str]]:
    """Modules that a circle leads to, with what they import of such."""
    below: dict[str, set[str]] = {name: set() for name, _ in sources()}
    for name, path in sources():
        for target in imports(path, running=running):
            module = target.removeprefix("trainscout.")
            module = module if module in below else module.rpartition(".")[0]
            if running or (name, module) not in TYPES_OF_CIRCLES:
                below[name] |= {module}
    while free := [name for name, modules in below.items() if not modules & below.keys()]:
        for name in free:
            del below[name]
    return {name: modules & below.keys() for name, modules in below.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not circles(running=True)


def test_no_modules_name_each_others_types_in_a_circle() -> None:
    assert not circles(running=False)


def test_types_of_circles_are_still_named() -> None:
    assert not TYPES_OF_CIRCLES - {(name, target.rpartition(".")[0]) for name, target in own()}


def test_everything_is_imported_by_its_full_name() -> None:
    """A user's own ``conf.py`` or ``reports/`` is never taken for ours."""
    bare = set(PACKAGES) - {"trainscout"}
    assert not {f"{name} -> {target}" for name, target in edges() if target.split(".")[0] in bare}


@pytest.mark.parametrize("room", PRICING)
def test_rooms_that_price_one_thing_do_not_know_each_other(room: str) -> None:
    others = {f"{PREDICTOR}.{other}" for other in PRICING if other != room}
    wrong = {
        f"{name} -> {target}"
        for name, target in own()
        if name.startswith(f"{PREDICTOR}.{room}.")
        and any(f"{target}.".startswith(f"{other}.") for other in others)
    }
    assert not wrong


# From the ground up, as the virtual cluster's own map has them.
ROOMS = (
    *("traces", "walk", "allocator", "emulation", "execution"),
    *("live", "traced", "trials", "profiles"),
)


def test_rooms_of_the_virtual_cluster_import_only_those_below_them() -> None:
    house = "simulators.virtual_cluster."
    wrong = set()
    for name, target in own():
        if name.startswith(house) and target.startswith(house):
            room, other = (each.removeprefix(house).split(".")[0] for each in (name, target))
            if ROOMS.index(other) > ROOMS.index(room):
                wrong.add(f"{name} -> {target}")
    assert not wrong


# From the ground up, as the page has them. Modules of the folder itself are the room ``""``.
ROOMS_OF_A_ROOM = {
    f"{PREDICTOR}.workload": (
        *("", "weights", "schedules", "linear_layers", "residual_stream"),
        *("mixers", "feed_forward", "model"),
    ),
    "simulators.laboratory.published": ("reading", "jobs", "", "page"),
}
PUTS_TOGETHER = {f"{PREDICTOR}.workload.megatron"}


@pytest.mark.parametrize("folder", ROOMS_OF_A_ROOM)
def test_rooms_of_a_room_import_only_those_below_them(folder: str) -> None:
    rooms, start = ROOMS_OF_A_ROOM[folder], f"{folder}."
    folders = {path.name for path in (ROOT / folder.replace(".", "/")).glob("[!_]*/")}
    assert folders == {*rooms} - {""}

    def room_of(module: str) -> str:
        first = module.removeprefix(start).partition(".")[0]
        return first if first in rooms else ""

    wrong = {
        f"{name} -> {target}"
        for name, target in own()
        if name.startswith(start) and target.startswith(start) and name not in PUTS_TOGETHER
        if rooms.index(room_of(target)) > rooms.index(room_of(name))
    }
    assert not wrong


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("import trainscout", "numpy|hydra|omegaconf|pandas|numba|yaml"),
        # Every emulated rank is a process that asks it for a GPU.
        (
            "from trainscout.conf.catalogue import load_catalogue; load_catalogue().gpus['h100']",
            "hydra|omegaconf|numba",
        ),
        (
            "import trainscout.simulators.predictor.replay.simulator, "
            "trainscout.simulators.predictor.kernels.measured",
            r"trainscout\..*(laboratory.*|\.fit[^.]*)",
        ),
    ],
)
def test_what_many_start_loads_nothing_heavy(program: str, heavy: str) -> None:
    program = f"import sys; {program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not [name for name in done.stdout.split() if re.fullmatch(heavy, name)]


def test_files_folders_and_names_of_the_page_are_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    top = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    paths = [*top, *(path for each in top for path in each.rglob("*"))]
    ends = {f"/{path.relative_to(ROOT).as_posix()}" for path in paths}
    words = {word for _, path in sources() for word in re.findall(r"\w+", path.read_text("utf-8"))}
    words |= {path.name for path in paths}
    missing = []
    for name in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL)):
        if re.fullmatch(r"[\w/]+(/|\.py|\.ya?ml|\.csv)", name):
            found = any(end.endswith(f"/{name.rstrip('/')}") for end in ends)
        else:
            found = not re.fullmatch(r"[\w.]+", name) or set(name.split(".")) <= words
        missing += [] if found else [name]
    assert not missing


def test_no_file_is_over_500_lines() -> None:
    folders = (*PACKAGES, "benchmarks", "docs", "examples")
    paths = [
        *ROOT.glob("*.py"),
        *(each for name in folders for each in (ROOT / name).rglob("*.py")),
    ]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert not {path: count for path, count in lines.items() if count > 500}
