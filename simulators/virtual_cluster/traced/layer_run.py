"""One layer on the emulated device: a forward and a backward pass, recorded event by event.

Imported only where the emulator runs.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.pipeline_parallel.schedules import custom_backward, deallocate_output_tensor
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.transformer_config import TransformerConfig

from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.virtual_cluster.traces.events import Group

from . import megatron_job
from .layer_spec import EMBEDDING, HEAD, LayerSpec
from .trace_to_blocks import EventList, Recording, dimensions_of, live_storages, watching_modules


class _Origin(torch.autograd.Function):
    """An input that, like a layer's output, lives only as long as somebody needs it."""

    @staticmethod
    def forward(ctx: Any, seed: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=seed.dtype, device=seed.device)

    @staticmethod
    def backward(ctx: Any, *gradient: torch.Tensor) -> tuple[None, None]:
        return None, None


def record(spec: LayerSpec, events: EventList) -> tuple[Recording, LocalParameters]:
    """Both passes of a layer, after a first round that leaves caches and buffers made.

    Raises:
        ValueError, AssertionError: where Megatron-Core refuses the configuration.
    """
    megatron_job.join_ranks(spec)
    groups = [event for event in events.events if isinstance(event, Group)]
    config = megatron_job.transformer_config(spec)
    run = _Run(spec, config)
    with watching_modules(events):
        run.both_passes(events)
        before = live_storages(events.events)
        events.clear()
        start, given_up = run.both_passes(events)
    everything = list(events.events)
    recording = Recording(
        name=spec.kind,
        before=before,
        forward=everything[:start],
        between=everything[start:given_up],
        backward=everything[given_up:],
        output_bytes=run.output_bytes,
        again=frozenset(i - given_up for i in events.in_forward if i >= given_up),
        communicators=dimensions_of(groups),
    )
    return recording, run.parameters()


class _Run:
    def __init__(self, spec: LayerSpec, config: TransformerConfig) -> None:
        self.spec = spec
        self.config = config
        ends = {"pre_process": spec.kind == EMBEDDING, "post_process": spec.kind == HEAD}
        layers = [] if spec.kind in (EMBEDDING, HEAD) else [spec.model.moe is not None]
        self.model = (
            megatron_job.gpt_model(spec, config, layers, **ends)
            if spec.model.layers is None
            else megatron_job.hybrid_model(spec, config, **ends)
        )
        # As Megatron converts it, without its wrapper, which also converts what enters and leaves
        # a pipeline.
        Float16Module(config, self.model.cuda())
        self.whole = megatron_job.replicated(spec, config, self.model)
        self.tokens = megatron_job.token_tensors(spec)
        self.seed = torch.empty(1, dtype=config.params_dtype, device="cuda", requires_grad=True)
        self.output_bytes = 0

    def parameters(self) -> LocalParameters:
        counts = {True: 0, False: 0}
        for parameter in self.model.parameters():
            counts[getattr(parameter, "allreduce", True)] += parameter.numel()
        return LocalParameters(counts[True], counts[False])

    def both_passes(self, events: EventList) -> tuple[int, int]:
        """Run forward and backward; how many ``events`` there were when the output was complete,
        and when the backward pass began."""
        output = self._forward()
        # The block holds what it was given until the next micro-batch; the graph decides here.
        self.model.decoder.input_tensor = None
        self.output_bytes = output.untyped_storage().nbytes()
        complete = len(events.events)
        if self.spec.kind == HEAD:
            with self.whole.no_sync():
                output.backward()
            return complete, complete
        shape, kind = output.shape, output.dtype
        deallocate_output_tensor(output, True)
        gradient = torch.empty(shape, dtype=kind, device="cuda")
        given_up = len(events.events)
        with self.whole.no_sync():
            custom_backward(output, gradient)
        return complete, given_up

    def _forward(self) -> torch.Tensor:
        spec, tokens = self.spec, self.tokens
        if spec.model.moe is not None:
            # What the schedule sets for every micro-batch (``forward_step_calc_loss``).
            MoEAuxLossAutoScaler.set_loss_scale(torch.ones(1, device="cuda"))
        if spec.kind == EMBEDDING:
            return self.whole(tokens["tokens"], tokens["position_ids"], None)
        local = spec.sequence_length // spec.cp // (spec.tp if spec.sp else 1)
        shape = (local, spec.micro_batch, spec.model.hidden_size)
        self.model.set_input_tensor(_Origin.apply(self.seed, shape))
        if spec.kind != HEAD:
            return self.whole(None, None, None)
        losses = self.whole(None, tokens["position_ids"], None, labels=tokens["labels"])
        loss, _, _ = megatron_job.masked_loss(tokens["loss_mask"], losses)
        return loss
