"""Who simulates a batch of recipes: this process, its worker processes, or a cluster's.

One interface (``base.Executor``), one file per way. Nothing that decides happens here: an
executor only turns recipes into outcomes, so that choosing another never changes an answer.
"""

from __future__ import annotations

from trainscout.optimizer.executors.base import Executor, Outcome
from trainscout.optimizer.executors.pooled import PooledExecutor, Workers
from trainscout.optimizer.executors.serial import SerialExecutor
from trainscout.optimizer.options import ExecutorOptions
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.registry import SimulatorSpec

__all__ = ["Executor", "Outcome", "make_executor"]


def make_executor(
    options: ExecutorOptions, declared: Question, simulator: SimulatorSpec | str
) -> Executor:
    """The executor that ``options`` name, for one question and simulator.

    Raises:
        InputError: for an unknown executor, a bad setting, or a package that is missing.
    """
    options.check()
    if options.name == "serial":
        return SerialExecutor(declared, simulator)
    return PooledExecutor(_workers(options), declared, simulator, options)


def _workers(options: ExecutorOptions) -> Workers:
    if options.name == "dask":
        from trainscout.optimizer.executors.dask import DaskWorkers

        return DaskWorkers(options.address)
    if options.name == "ray":
        from trainscout.optimizer.executors.ray import RayWorkers

        return RayWorkers(options.address)
    if options.name == "slurm":
        from trainscout.optimizer.executors.slurm import SlurmWorkers

        return SlurmWorkers(options.options)
    from trainscout.optimizer.executors.loky import LokyWorkers

    return LokyWorkers()
