"""Knobs of the types in which a job computes, reduces and keeps."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.framework import named_framework
from trainscout.simulators.predictor.question.knob import (
    BOUNDARY,
    LAYER_BLOCKS,
    STEP_END,
    Canonical,
    Flag,
    knob,
)
from trainscout.simulators.predictor.question.training import PRECISIONS, QUANTISED

_LOW_PRECISION = Canonical(
    "it means nothing in 16 and 32 bits",
    ("precision",),
    lambda job: job.precision not in QUANTISED,
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Numerics:
    """In which types a job computes, reduces and keeps."""

    precision: str | None = knob(
        None,
        "{}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        choices=PRECISIONS,
        left_out="training's",
        canonical=Canonical(
            "it is the training's when left out",
            (),
            lambda job: job.recipe.precision == job.training.precision,
        ),
        search=("bf16", "fp8"),
    )
    """Of linear layers; None means the training's."""
    grad_dtype: str | None = knob(
        None,
        "grads={}",
        (LAYER_BLOCKS, STEP_END),
        choices=("bf16", "fp32"),
        left_out="framework's",
        topic="numerics",
        canonical=Canonical(
            "it is the framework's when left out, and fp32 where weights are",
            ("framework", "precision", "zero_stage", "tp", "pp", "cp", "ep", "etp"),
            lambda job: (
                job.keeps_fp32
                or (job.recipe.grad_dtype == "fp32")
                == named_framework(job.framework, job.recipe.framework).reduces_fp32
            ),
        ),
        search=(None, "bf16"),
        numerics={"bf16": "16bit"},
        torchtitan=Flag(
            "--training.mixed-precision-reduce", {"fp32": "float32", "bf16": "bfloat16"}
        ),
    )
    """The type in which gradients are kept and reduced; None means the framework's own choice."""
    optimizer_states: str | None = knob(
        None,
        "states={}",
        (STEP_END,),
        choices=("remainders", "bf16"),
        left_out="training's",
        topic="numerics",
        search=(None, "remainders", "bf16"),
        numerics={"bf16": "16bit"},
    )
    """What a precision-aware optimizer keeps: of the fp32 master weights only what the 16-bit
    weights lack, which loses nothing (``remainders``), and its moments in 16 bits besides
    (``bf16``); None: what the training and the framework say."""
    fp8_param_gather: bool | None = knob(
        None,
        "fp8-params={}",
        (LAYER_BLOCKS, STEP_END),
        left_out="framework's",
        topic="numerics",
        canonical=Canonical(
            "it is the framework's when left out, and means nothing in 16 and 32 bits",
            ("framework", "precision"),
            lambda job: (
                job.precision not in QUANTISED
                or job.recipe.fp8_param_gather
                == (
                    job.precision
                    in named_framework(job.framework, job.recipe.framework).fp8_param_gather
                )
            ),
        ),
        search=(None, True),
    )
    """In 8 and 4 bits, weights of linear layers are kept and gathered as they are multiplied
    (Megatron-Core's ``--fp8-param-gather``, torchao's ``enable_fsdp_float8_all_gather``), instead
    of in 16 bits with quantised copies beside; None means the framework's own choice. What is
    computed stays the same: the optimizer's fp32 weights are rounded through 16 bits either
    way."""
    fp8_dot_product_attention: bool = knob(
        False,
        "8bit=attention",
        (LAYER_BLOCKS,),
        topic="numerics",
        canonical=_LOW_PRECISION,
        numerics={True: "any"},
        megatron_bridge="mixed_precision.fp8_dot_product_attention",
    )
    """In 8 and 4 bits, attention multiplies in 8 bits too (Megatron-Core's option of that name):
    queries, keys, values and the output's gradient are quantised for it, and kept so where a
    tensor has one scale."""
    activation_func_fp8_input_store: bool = knob(
        False,
        "8bit=swiglu-input",
        (LAYER_BLOCKS,),
        topic="numerics",
        numerics={True: "any"},
        megatron_bridge="model.activation_func_fp8_input_store",
    )
    """In any precision, what SwiGLU reads is cast to 8 bits for the backward pass, and back there,
    instead of kept in 16 (Megatron-Core's option of that name): a quarter to a half of what a
    layer keeps."""
    fp8_output_proj: bool = knob(
        False,
        "8bit=logits",
        (LAYER_BLOCKS, STEP_END),
        topic="numerics",
        canonical=_LOW_PRECISION,
        numerics={True: "any"},
        megatron_lm="--fp8-output-proj",
        megatron_bridge="model.fp8_output_proj",
    )
    """In MXFP8, the logits are a product of 8 bits as those of the layers are, instead of 16
    (Megatron-Core's option of that name)."""
