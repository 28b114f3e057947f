"""A recipe's configuration of NeMo AutoModel as a job (``fine_tuners.yaml``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trainscout.reports.dialects.fine_tuning import AUTOMODEL
from trainscout.reports.dialects.options import Options
from trainscout.reports.dialects.torchtune_reader import RecipeReader
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe

_MODEL = "--model._target_"
_NAMES = ("--model.pretrained_model_name_or_path", "--model.config.pretrained_model_name_or_path")
_LENGTHS = ("--dataset.seq_length", "--dataset.seq_len", "--dataset.max_length")
_PACKS = "--packed_sequence.packed_sequence_size"
_BATCHES = ("global", "local")
_PASSES = "--distributed.pipeline.pp_microbatch_size"
# Attention, the MLP and both norms are checkpoints of their own, so that what goes into each is
# kept (components/distributed/parallelizer.py); layers of its own experts are one.
_CHECKPOINTS = "attn_out+core_attn+mlp+qkv"
# How ranks exchange tokens (components/models/common/utils.py); "torch" gathers all.
_DISPATCHERS = {"torch": "allgather", **dict.fromkeys(("deepep", "hybridep"), "deepep")}


class AutomodelReader(RecipeReader):
    """Reads what a file and the command line behind it say (``examples/``, at 36044ad3, 2026)."""

    tool = AUTOMODEL
    known = Path(__file__).parent / "automodel_arguments.yaml"
    meant = (
        *(_MODEL, *_NAMES, *_LENGTHS, _PACKS, "--model.config", "--loss_fn._target_", "--recipe"),
        *("--distributed.strategy", "--peft._target_", "--peft.match_all_linear"),
        *("--peft.target_modules", "--optimizer._target_"),
    )

    def words(self, told: Options, program: str) -> Iterator[str]:
        """The arguments that components stand for."""
        names = (*_NAMES, "--model.config")
        if name := next((text for each in names if (text := told.text(each))), None):
            yield f"--model_name_or_path={name}"
        if (told.text("--distributed.strategy") or "fsdp2") != "ddp":
            yield "--fsdp_version=2"
        packs = told.text(_PACKS)
        lengths = [each for name in _LENGTHS if (each := told.text(name))]
        if packs not in (None, "0") or lengths:
            yield f"--max_seq_length={packs if packs not in (None, '0') else lengths[0]}"
        if "linear_ce" in (told.text("--loss_fn._target_") or ""):
            yield "--cut_cross_entropy=true"
        if told.has("--peft._target_"):
            adapted = told.texts("--peft.target_modules") or ["all-linear"]
            everything = told.on("--peft.match_all_linear")
            named = "all-linear" if everything else ",".join(adapted).replace("*", ".*")
            yield from ("--finetuning_type=lora", f"--lora_target={named}")
        if "Distillation" in (told.text("--recipe") or ""):
            yield "--stage=gkd"
        yield f"--optim={told.text('--optimizer._target_') or 'adam'}"

    def recipe(self, model: Model, world: int) -> Recipe:
        """With the pipeline's and the experts' degrees, of which Trainer's arguments say none."""
        options = self.options
        stages = options.whole("--distributed.pp_size") or 1
        experts = options.whole("--distributed.ep_size") or 1
        self.degrees *= stages
        made = super().recipe(model, world)
        batch, local = (options.whole(f"--step_scheduler.{name}_batch_size") for name in _BATCHES)
        if stages > 1 and batch and local and batch * self.degrees > local * world:
            instead = "micro-batches of a step follow each other without a pipeline running dry"
            options.assume("several local batches a step under a pipeline", instead)
        if made.recompute == "full" and model.moe is None:
            made = replace(made, recompute="selective", recompute_modules=_CHECKPOINTS)
        micro_batch = options.whole(_PASSES) if stages > 1 else None
        if made.zero_stage == 3 and (stages > 1 or not self._reshards(experts)):
            # Under a pipeline a step gathers and reduces once.
            made = replace(made, overlap_grad_reduce=True, overlap_param_gather=True)
            made = replace(made, zero_stage=1 if stages > 1 else 2)
        return replace(
            made,
            pp=stages,
            ep=experts,
            moe_dispatcher=None if model.moe is None else self._dispatcher(),
            sp=bool(options.on("--distributed.sequence_parallel")) and made.tp > 1,
            micro_batch=micro_batch or made.micro_batch,
        )

    def _dispatcher(self) -> str | None:
        named = self.options.text("--model.backend.dispatcher")
        if named not in (None, *_DISPATCHERS):
            self.options.assume(f"--model.backend.dispatcher {named}", "its exchange is DeepEP's")
        return None if named is None else _DISPATCHERS.get(named, "deepep")

    def _reshards(self, experts: int) -> bool:
        """Whether layers are gathered again for the backward pass; where ranks have experts of
        their own (components/moe/parallelizer.py), only if asked for."""
        told = self.options.on("--distributed.reshard_after_forward")
        of_experts = self.options.on("--distributed.moe.reshard_after_forward")
        return (experts == 1 or bool(of_experts)) if told is None else told


def is_automodel(words: list[str]) -> bool:
    """Whether a file's settings name a class of its."""
    return any(word.startswith(f"{_MODEL}=nemo_automodel.") for word in words)
