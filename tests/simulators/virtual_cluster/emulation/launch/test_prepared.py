import os

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.launch.prepared import ended_with, fork_rank


def test_wrong_input_ends_a_rank_without_a_traceback(capfd):
    def run() -> int:
        raise InputError("trace", "t.gz", "cannot be written: File too large")

    _, status = os.waitpid(fork_rank(run), 0)
    assert ended_with(status, 0) == 2
    assert capfd.readouterr().err == "error: trace=t.gz: cannot be written: File too large\n"
