"""Who simulates a batch of recipes: this process, its worker processes, or a cluster's.

One interface (``base.Executor``), one file per way. Nothing that decides happens here: an
executor only turns recipes into outcomes, so that choosing another never changes an answer.
"""

from __future__ import annotations

from trainscout.optimizer.executors.base import Executor
from trainscout.optimizer.executors.pooled import PooledExecutor, Workers
from trainscout.optimizer.executors.serial import SerialExecutor
from trainscout.optimizer.executors.short_first import (
    WORKERS_PAY_S,
    WORKERS_PAY_WITH_NETWORK_S,
    ShortFirstExecutor,
)
from trainscout.optimizer.options import ExecutorOptions
from trainscout.optimizer.registry import EXECUTORS, imported
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.registry import SimulatorSpec


def make_executor(
    options: ExecutorOptions, question: Question, simulator: SimulatorSpec | str
) -> Executor:
    """The executor that ``options`` name, for one question and simulator.

    Raises:
        InputError: for an unknown executor, a bad setting, or a package that is missing.
    """
    options.check()
    entry = EXECUTORS[options.name]
    path, alone = entry.path, SerialExecutor(question, simulator)
    if path is None:
        return alone

    def pooled() -> PooledExecutor:
        workers: Workers = imported("executors", path)(options)
        return PooledExecutor(workers, question, simulator, options)

    # Nobody asked for so many workers or a limit, and what simulates is ours: it neither hangs nor
    # dies.
    spec = SimulatorSpec.of(simulator)
    set_by_user = (
        options.n_jobs != -1 or options.trial_timeout_s != ExecutorOptions.trial_timeout_s
    )
    if entry.local and options.address is None and spec.name == "replay" and not set_by_user:
        pay_s = WORKERS_PAY_S if spec.network is None else WORKERS_PAY_WITH_NETWORK_S
        return ShortFirstExecutor(alone, pooled, pay_s)
    return pooled()
