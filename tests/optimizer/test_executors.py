"""One contract over all executors: real processes, real local clusters."""

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import pytest

from tests.optimizer.fake_simulator import FAKE, FakeSimulator, story, toy_question
from tests.optimizer.toy_search import search
from trainscout.optimizer.executors import make_executor
from trainscout.optimizer.executors.base import Executor, Outcome
from trainscout.optimizer.executors.interrupts import interrupts_held, interrupts_ignored
from trainscout.optimizer.executors.pooled import PooledExecutor, affordable_workers, free_bytes
from trainscout.optimizer.executors.short_first import ShortFirstExecutor
from trainscout.optimizer.options import ExecutorOptions
from trainscout.optimizer.registry import EXECUTORS
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe

ROOT = Path(__file__).parents[2]


def installed(name: str) -> bool:
    package = EXECUTORS[name].package
    return package is None or importlib.util.find_spec(package) is not None


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """What Dask and Ray set in it (a seed of hashes, a debugger) ends with these tests: no later
    process of this worker could be a fork of one that was started without."""
    before = os.environ.copy()
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(params=list(EXECUTORS), scope="module")
def options(request, tmp_path_factory):
    if not installed(request.param):
        pytest.skip(f"{request.param} needs its extra")
    slurm = {"cluster": "local", "folder": str(tmp_path_factory.mktemp("jobs"))}
    return ExecutorOptions(
        request.param,
        1 if request.param == "serial" else 2,
        # No recipe takes long, but a worker that is started again on busy cores may.
        trial_timeout_s=60.0,
        options=slurm if request.param == "slurm" else {},
    )


@pytest.fixture(scope="module")
def executor(options):
    """One cluster for the module: starting it takes longer than anything it is asked."""
    with make_executor(options, toy_question(), FAKE) as started:
        yield started


RECIPES = [
    Recipe(tp=tp, pp=pp, micro_batch=micro_batch)
    for tp in (1, 2, 4)
    for pp in (1, 2, 4)
    for micro_batch in (1, 2)
]


def with_simulator(executor, name):
    """The same workers asking another simulator."""
    executor._simulator = FAKE.replace("FakeSimulator", name)
    return executor


def test_outcomes_come_in_the_order_of_the_recipes(executor):
    simulator = FakeSimulator()
    with_simulator(executor, "FakeSimulator")
    for recipes in (RECIPES, RECIPES[::-1], RECIPES[:1], []):
        outcomes = executor.map(recipes)
        assert [o.prediction for o in outcomes] == [
            simulator.simulate(toy_question().job(recipe)) for recipe in recipes
        ]
        assert all(o.error is None and o.duration_s > 0 for o in outcomes)


def test_an_exception_is_an_outcome(executor):
    with_simulator(executor, "SometimesFailing")
    for recipe, outcome in zip(RECIPES, executor.map(RECIPES), strict=True):
        failed = recipe.pp == 4
        assert (outcome.prediction is None) == failed
        assert outcome.error == ("RuntimeError: no route for pp=4" if failed else None)


def test_a_worker_that_dies_once_costs_nothing(executor, options, tmp_path):
    if options.name == "serial":
        pytest.skip("serial has no worker to lose")
    flag = tmp_path / "died"
    recipe = dataclasses.replace(RECIPES[0], recompute_modules=str(flag))
    with_simulator(executor, "KillsItsWorkerOnce")
    outcomes = executor.map([*RECIPES[1:], recipe])
    assert flag.exists()
    assert all(outcome.prediction is not None for outcome in outcomes)


@pytest.mark.parametrize(
    ("name", "culprit", "timeout_s", "stated"),
    [
        ("KillsItsWorker", (4, 2, 2), 60.0, "worker process died, twice"),
        ("Hangs", (2, 2, 1), 1.0, "timed out"),
    ],
)
def test_what_a_recipe_does_to_its_worker_costs_it_alone(
    executor, options, monkeypatch, name, culprit, timeout_s, stated
):
    if options.name == "serial":
        pytest.skip("serial has no worker to lose, and cannot end what it is itself")
    with_simulator(executor, name)
    given = dataclasses.replace(options, trial_timeout_s=timeout_s)
    monkeypatch.setattr(executor, "_options", given)
    for recipe, outcome in zip(RECIPES, executor.map(RECIPES), strict=True):
        lost = (recipe.tp, recipe.pp, recipe.micro_batch) == culprit
        assert (outcome.prediction is None) == lost
        assert (stated in (outcome.error or "")) == lost


@pytest.fixture(scope="module")
def alone():
    return story(search(seed=5))


def test_the_answer_does_not_depend_on_who_simulates(executor, options, alone, monkeypatch):
    with_simulator(executor, "FakeSimulator")
    monkeypatch.setattr(executor, "__class__", Lent(type(executor)))
    monkeypatch.setattr("trainscout.optimizer.study.make_executor", lambda *_: executor)
    assert story(search(executor=options, seed=5)) == alone


# Two are those of the executor above.
@pytest.mark.parametrize("workers", [1, 4])
def test_the_answer_does_not_depend_on_the_number_of_workers(workers, alone):
    assert story(search(executor=ExecutorOptions("loky", workers), seed=5)) == alone


def Lent(cls):  # noqa: N802 - makes a class
    """The same executor, that a search does not close."""
    return type(f"Lent{cls.__name__}", (cls,), {"__enter__": _itself, "__exit__": _nothing})


def _itself(executor):
    return executor


def _nothing(executor, *_):
    return None


def test_an_executor_whose_package_is_missing_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("dask", "ray", "slurm"):
        with pytest.raises(InputError, match=rf"pip install 'trainscout\[{name}\]'"):
            ExecutorOptions(name, 2).check()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"name": "slurm", "n_jobs": -1}, "executor.n_jobs"),
        ({"trial_timeout_s": 0.0}, "executor.trial_timeout_s"),
        ({"address": "tcp://host:1"}, "executor.address"),
        ({"options": {"cpus_per_task": 2}}, "executor.options"),
    ],
)
def test_settings_are_refused_by_field(settings, field):
    with pytest.raises(InputError) as refused:
        ExecutorOptions(**settings).check()
    assert refused.value.field == field


@pytest.mark.skipif(not installed("dask"), reason="needs the dask extra")
def test_a_dask_cluster_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("trainscout.optimizer.executors.dask._CONNECT_S", 0.5)
    options = ExecutorOptions("dask", 2, address="tcp://127.0.0.1:9")
    with pytest.raises(InputError, match="no Dask cluster answers"):
        make_executor(options, toy_question(), FAKE).__enter__()


@pytest.mark.skipif(not installed("dask"), reason="needs the dask extra")
def test_workers_of_a_running_dask_cluster_are_used():
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0", processes=False
        ) as cluster,
        make_executor(
            ExecutorOptions("dask", address=cluster.scheduler_address, trial_timeout_s=None),
            toy_question(),
            FAKE,
        ) as executor,
    ):
        outcomes = executor.map(RECIPES)
        assert all(outcome.prediction is not None for outcome in outcomes)
        assert len(cluster.workers) == 1


@pytest.mark.parametrize("options", ["dask", "slurm"], indirect=True)
def test_a_stranger_cannot_run_code_on_the_workers(executor):
    import distributed

    client = executor._workers._client
    addresses = [client.scheduler.address, *client.scheduler_info()["workers"]]
    own, elsewhere = client.security, distributed.Security.temporary()
    for address in addresses:
        plain = address.replace("tls://", "tcp://")
        assert not _lets_in(plain, distributed.Security())
        assert not _lets_in(address, elsewhere)
        assert _lets_in(address, own)


def _lets_in(address, security):
    """Whether whoever listens at an address answers a peer that shows what ``security`` has."""
    import asyncio

    from distributed import core

    async def ask():
        async with core.rpc(address, timeout=2, **_shown(security)) as peer:
            return await asyncio.wait_for(peer.identity(), 2)

    try:
        return bool(asyncio.run(ask()))
    except (OSError, TimeoutError):
        return False


def _shown(security):
    return {"connection_args": security.get_connection_args("client")}


ASKS_RAY = (
    "import ray, sys; ray._raylet.GcsClient(address=sys.argv[1]).internal_kv_get(b'a', b'b', 3)"
)


@pytest.mark.parametrize("options", ["ray"], indirect=True)
def test_a_stranger_cannot_talk_to_ray(executor):
    import ray

    address = ray.get_runtime_context().gcs_address
    others = {name: each for name, each in os.environ.items() if "RAY_AUTH" not in name}
    for shown in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        asked = [sys.executable, "-c", ASKS_RAY, address]
        done = subprocess.run(asked, env=others | shown, capture_output=True)
        assert b"uthentication" in done.stderr


@pytest.mark.parametrize("options", ["slurm"], indirect=True)
def test_only_its_owner_reads_a_searchs_key(executor):
    certificate = executor._workers._certificate
    assert certificate.stat().st_mode & 0o077 == 0
    jobs = [path for path in certificate.parent.rglob("*") if path.is_file()]
    key = certificate.read_text().splitlines()[1].encode()
    assert [path for path in jobs if key in path.read_bytes()] == [certificate]


class NeverThere:
    """Workers of a machine that starts no more threads: what they are given is never done."""

    deaths = ()
    local = True

    def start(self, count):
        return count

    def submit(self, call, task):
        return Future()

    def close(self):
        """None to end."""


class Refused(NeverThere):
    def start(self, count):
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("workers", [NeverThere, Refused])
def test_a_search_whose_workers_do_not_start_goes_on_alone(workers, monkeypatch):
    monkeypatch.setattr("trainscout.optimizer.executors.pooled._START_S", 0.1)
    pool = PooledExecutor(workers(), toy_question(), FAKE, ExecutorOptions("loky", 2))
    with pool:
        assert all(outcome.prediction is not None for outcome in pool.map(RECIPES))
    assert "one after another" in pool.notes[0]


class TestMemory:
    GIB = 2**30

    def test_all_workers_fit_where_there_is_memory(self):
        assert affordable_workers(8, self.GIB, free=100 * self.GIB) == 8

    def test_workers_shrink_to_what_fits(self):
        # 4 x 2 GiB held and 1 free, of which nine tenths are for workers: 8.1 GiB, 4 workers;
        # at 3 GiB each, 13 x 0.9 = 11.7 GiB hold 3.
        assert affordable_workers(4, 2 * self.GIB, free=self.GIB) == 4
        assert affordable_workers(4, 3 * self.GIB, free=self.GIB) == 3
        assert affordable_workers(4, 30 * self.GIB, free=0) == 3

    def test_one_worker_always_runs(self):
        assert affordable_workers(1, self.GIB, free=0) == 1

    def test_unknown_memory_changes_nothing(self):
        assert affordable_workers(8, self.GIB, free=None) == 8
        assert affordable_workers(8, 0, free=self.GIB) == 8

    def test_a_container_limit_counts(self, tmp_path):
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
        assert free_bytes(meminfo, tmp_path) == 8 * self.GIB
        (tmp_path / "memory.current").write_text(f"{3 * self.GIB}\n")
        (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {self.GIB}\n")
        (tmp_path / "memory.max").write_text("max\n")
        assert free_bytes(meminfo, tmp_path) == 8 * self.GIB
        (tmp_path / "memory.max").write_text(f"{4 * self.GIB}\n")
        assert free_bytes(meminfo, tmp_path) == 2 * self.GIB
        assert free_bytes(tmp_path / "none", tmp_path) is None

    def test_a_search_runs_on_with_fewer_workers(self, monkeypatch):
        monkeypatch.setattr("trainscout.optimizer.executors.pooled.free_bytes", lambda: 0)
        with make_executor(ExecutorOptions("loky", 2), toy_question(), FAKE) as executor:
            assert all(outcome.prediction is not None for outcome in executor.map(RECIPES))
            assert executor.notes[0].startswith("1 of 2 workers")
            assert len(executor.notes) == 1


ORPHANED = """
import os, signal
from trainscout.optimizer.executors.loky import LokyWorkers
from trainscout.optimizer.options import ExecutorOptions
from tests.optimizer.test_executors import pid_of_worker
workers = LokyWorkers(ExecutorOptions())
workers.start(1)
print(workers.submit(pid_of_worker, None).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def pid_of_worker(_):
    return os.getpid()


def test_workers_end_with_a_parent_that_was_killed():
    done = subprocess.run([sys.executable, "-c", ORPHANED], cwd=ROOT, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    worker = int(done.stdout)
    for _ in range(100):
        if not running(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


PINNED = """
import os
from trainscout.optimizer.executors.worker import pin_to_a_core
core = pin_to_a_core()
assert os.sched_getaffinity(0) == {core}
print(core, flush=True)
input()
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs a system that pins, and two cores",
)
def test_pinned_processes_take_different_cores(tmp_path):
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", PINNED],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    cores = {int(worker.stdout.readline()) for worker in workers}
    for worker in workers:
        worker.communicate("\n")
    assert len(cores) == 2


def test_processes_started_with_interrupts_held_never_see_ctrl_c():
    ask = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with interrupts_held():
        held = subprocess.check_output([sys.executable, "-c", ask])
    free = subprocess.check_output([sys.executable, "-c", ask])
    assert (held.strip(), free.strip()) == (b"True", b"False")


def test_ctrl_c_does_not_interrupt_the_ending_of_workers():
    # A shell's background jobs start with interrupts ignored for good.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts_ignored():
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_workers_start_only_where_work_lasts() -> None:
    class Counting(Executor):
        entered = simulated = 0

        def run(self, recipes: Sequence[Recipe]) -> Iterator[tuple[int, Outcome]]:
            for position, recipe in enumerate(recipes):
                self.simulated += 1
                yield position, Outcome(None, str(recipe.tp))

        def __enter__(self) -> Self:
            self.entered += 1
            return self

    recipes = [Recipe(tp=tp) for tp in range(1, 9)]
    for pays_s, started in ((1e6, 0), (0.0, 1), (1e-9, 1)):
        alone, workers = Counting(), Counting()
        with ShortFirstExecutor(alone, [workers].pop, pays_s) as executor:
            outcomes = [*executor.map(recipes[:4]), *executor.map(recipes[4:])]
        assert [outcome.error for outcome in outcomes] == [str(recipe.tp) for recipe in recipes]
        assert (workers.entered, alone.simulated + workers.simulated) == (started, 8)
