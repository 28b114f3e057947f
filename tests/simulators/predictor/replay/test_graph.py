"""What runs side by side slows each other: kernels and communication, and what shares NICs."""

from dataclasses import replace

import numpy as np
import pytest

from tests.simulators.jobs import MOE, make_job
from tests.simulators.predictor.collectives.machines import H100
from trainscout.simulators.predictor.interference.overlap import KERNEL_CLASSES
from trainscout.simulators.predictor.replay.graph import NEUTRAL_KIND, Kinds
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

PRODUCTS = np.array([[1.0, *[0.0] * (len(KERNEL_CLASSES) - 1)], np.zeros(len(KERNEL_CLASSES))])


def slowdowns(pass_share: float, wire_share: float) -> np.ndarray:
    kinds = Kinds()
    kinds.compute(0.5, PRODUCTS, pass_share)
    kinds.communication(0.0, 0.0, wire_share)
    return kinds.slowdowns(H100, 1.0)


@pytest.mark.parametrize(("of_pass", "of_wire"), [(0.0, 1.0), (0.4, 0.0), (0.4, 1.0), (0.3, 0.5)])
def test_what_sends_at_once_divides_the_nics(of_pass: float, of_wire: float) -> None:
    matrix = slowdowns(of_pass, of_wire)
    assert matrix[1, 2] == matrix[2, 1] == pytest.approx(1 + of_pass * of_wire)
    assert (matrix[NEUTRAL_KIND] == 1).all()


def test_bytes_of_both_take_the_nics_their_time() -> None:
    # Of a pass of 1 s 0.4 s are its own messages; gradients of 1 s fill the NICs beside it.
    factor = float(slowdowns(0.4, 1.0)[1, 2])
    assert factor * 1.0 == pytest.approx(0.4 + 1.0)


def test_gathers_do_not_hide_behind_exchanges_over_the_same_nics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = replace(
        MOE, hidden_size=4096, num_heads=32, ffn_hidden_size=4096, sequence_length=4096
    )
    moe = replace(model.moe, num_experts=16, ffn_hidden_size=14336)
    job = make_job(replace(model, moe=moe), nodes=4, batch=32, zero_stage=3, ep=16)

    def step() -> tuple[float, float]:
        found = ReplaySimulator().simulate(job)
        return found.step_time_s, found.breakdown_s["ep_communication"]

    sharing_s, exchanged_s = step()
    monkeypatch.setattr(Pricer, "nic_share", lambda *_: 0.0)
    apart_s, _ = step()
    assert apart_s * 1.02 < sharing_s <= apart_s + exchanged_s
