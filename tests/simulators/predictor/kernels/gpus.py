"""Every declared GPU, read the way a fit reads it, and the operations the tests share."""

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Attention, Gemm

GPUS: dict[str, Gpu] = load_catalogue().gpus


def gemm(m: int, n: int, k: int, dtype: str = "bf16", **rest: object) -> Gemm:
    return Gemm("gemm", m, n, k, dtype, **rest)


def attention(
    seq: int,
    heads: int = 16,
    batch: int = 1,
    kv_heads: int | None = None,
    head_dim: int = 128,
    head_dim_v: int | None = None,
    causal: bool = True,
    pass_: str = "fwd",
    dtype: str = "bf16",
) -> Attention:
    return Attention(
        name="attention",
        batch=batch,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        seq_q=seq,
        seq_k=seq,
        head_dim=head_dim,
        head_dim_v=head_dim if head_dim_v is None else head_dim_v,
        causal=causal,
        pass_=pass_,
        dtype=dtype,
    )


def attention_flops(op: Attention) -> float:
    flops = 2.0 * op.batch * op.heads * op.seq_q * op.seq_k * (op.head_dim + op.head_dim_v)
    return flops * (0.5 if op.causal else 1.0) * (2.5 if op.pass_ == "bwd" else 1.0)
