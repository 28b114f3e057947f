"""What userbuffers make of traced blocks is what the built-in source says of them."""

from __future__ import annotations

import pytest

from tests.simulators.jobs import LLAMA, TINY, make_job
from trainscout.simulators.predictor.question.layers import DENSE_LAYER
from trainscout.simulators.predictor.workload.ir import Block, Collective, Gemm
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.virtual_cluster.traced.simulator import overlap_products
from trainscout.simulators.virtual_cluster.traced.verify import differences, shapes


def communicated(ops: tuple[object, ...]) -> int:
    return sum(op.bytes for op in ops if isinstance(op, Collective))


@pytest.mark.parametrize("model", [TINY, LLAMA], ids=lambda model: str(model.name))
@pytest.mark.parametrize("pass_", [0, 1])
def test_as_the_built_in_source_overlaps(model: object, pass_: int) -> None:
    plain, overlapped = (
        layer_blocks(
            Shard.of(make_job(model, tp=4, sp=True, tp_comm_overlap=on)), DENSE_LAYER, "none"
        )  # type: ignore[arg-type]
        for on in (False, True)
    )
    made = Block("cut", overlap_products(plain[pass_].ops, 4))
    assert differences(shapes(overlapped[pass_]), shapes(made)) == []


def test_only_what_touches_a_product_is_cut() -> None:
    gather = Collective("g", "all_gather", 1000, "tp")
    product = Gemm("p", 8, 8, 8, "bf16")
    apart = (gather, Collective("other", "all_reduce", 8, "tp"), product)
    assert overlap_products(apart, 4) == apart
    beside = overlap_products((gather, product), 4)
    assert communicated(beside) == 1000
    assert [getattr(op, "overlaps", 0) for op in beside] == [0, 1, 0]
