"""In which types a rank keeps the weights that it multiplies, and what making those takes.

Transformer Engine multiplies 8 and 4 bits, laid out along either dimension for one product or the
other: two copies of a weight, of which Blackwell's tensor cores read one both ways where a tensor
has one scale. Beside 16-bit parameters it makes them once a step and keeps them
(``is_first_microbatch``). Parameters that are themselves quantised (``fp8_param_gather``) come
from fp32 shards and travel in 8 or 4 bits, with the other copy made on arrival; those with blocks
of 32 travel in 16 bits through the gradients' buffer and are quantised behind it
(Megatron-Core's ``reuse_grad_buf_for_mxfp8_param_ag``), except under FSDP.
"""

from __future__ import annotations

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.training import QUANTISED
from trainscout.simulators.predictor.question.tuning import PACKED
from trainscout.simulators.predictor.workload.ir import Op, Streaming
from trainscout.simulators.predictor.workload.parameters import LocalParameters

# One copy of a value with its share of a block's scale.
_MXFP8, _NVFP4 = 1 + 1 / 32, 1 / 2 + 1 / 16


def parameter_bytes(job: Job) -> int:
    """Bytes of one parameter that is not quantised, as a rank keeps it."""
    return 4 if job.keeps_fp32 else 2


def kept_weight_bytes(job: Job) -> float:
    """Bytes of a quantised weight on a rank that holds it whole: of its copies, and of 16 bits
    beside where those are the parameter."""
    if (frozen := PACKED.get(job.frozen_weights)) is not None:
        return frozen.packed + frozen.scales
    if job.keeps_quantised:
        return _copies_bytes(job)
    return parameter_bytes(job) + (0 if job.framework.quantises_each_pass else _copies_bytes(job))


def gathered_weight_bytes(job: Job) -> float:
    """Bytes of a quantised parameter that replicas gather."""
    if (frozen := PACKED.get(job.frozen_weights)) is not None:
        return frozen.packed
    if not job.keeps_quantised:
        return parameter_bytes(job)
    if job.precision == "mxfp8":
        return _MXFP8 if job.recipe.zero_stage == 3 else parameter_bytes(job)
    return _NVFP4 if job.precision == "nvfp4" else 1


def weight_casts(job: Job, parameters: LocalParameters) -> list[Op]:
    """What quantises a step's new weights, once, where a rank holds them whole."""
    weights = 0 if parameters.quantised is None else parameters.quantised.total
    zero_3 = job.recipe.zero_stage == 3
    if not weights or zero_3 or (job.framework.quantises_each_pass and not job.keeps_quantised):
        return []
    arrived, copies = gathered_weight_bytes(job), _copies_bytes(job)
    # What arrived quantised is one of the copies, and read only for another.
    made = copies - arrived if arrived < parameter_bytes(job) else copies
    if not made:
        return []
    kind = "cast_fp4" if job.precision == "nvfp4" else "cast"
    return [Streaming("weights_cast", kind, int(weights * (arrived + made)), launches=2)]


def _copies_bytes(job: Job) -> float:
    """Bytes of a weight's quantised copies; torchao's has one."""
    if job.precision not in QUANTISED:
        return 0
    if job.precision == "mxfp8":
        return 2 * _MXFP8
    if job.precision == "nvfp4":
        return 2 * _NVFP4
    by_tensor = job.precision in ("fp8", "fp8_current")
    one = job.framework.quantises_each_pass or not job.gpu.architecture.fp8_transposes
    return 1 if by_tensor and one else 2
