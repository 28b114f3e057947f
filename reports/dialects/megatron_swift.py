"""ms-swift's ``megatron sft``, ``pt`` and ``rlhf`` as a job: Megatron's arguments with ``_`` in
their names and other defaults, a model of the Hub's, and tuning as ``swift sft`` has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainscout.reports.dialects.fine_tuning import MEGATRON_SWIFT, SWIFT
from trainscout.reports.dialects.huggingface_reader import HuggingFaceReader
from trainscout.reports.dialects.megatron_reader import MegatronReader
from trainscout.reports.dialects.options import Options, Reading, respelled
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training

# swift/megatron/arguments/megatron_args.py, 4.6; a switch that is false is not there.
_DEFAULTS = {
    "--tuner-type": "full",
    "--micro-batch-size": "1",
    "--global-batch-size": "16",
    "--recompute-granularity": "selective",
    "--expert-tensor-parallel-size": "1",
    "--use-distributed-optimizer": "true",
    "--cross-entropy-loss-fusion": "true",
}
_NAMES = {"--max-length": "--seq-length"}
_TYPES = {"bfloat16": "--bf16", "float16": "--fp16"}
_ABSENT = ("false", "none")


class MegatronSwiftReader(MegatronReader):
    """Reads one command: what runs by Megatron's arguments, what is tuned by the Trainer's."""

    title = MEGATRON_SWIFT

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        stated = Options(respelled(word, "_", "-") for word in words)
        names = dict.fromkeys([*_DEFAULTS, *stated.names])
        settings = {name: stated.texts(name) or [] for name in names if stated.has(name)}
        taken = {name: value for name, value in _DEFAULTS.items() if name not in settings}
        settings |= {name: [value] for name, value in taken.items()}
        tuned, own = [], []
        for name, values in settings.items():
            tuned += [name, *values]
            if values[:1] in ([each] for each in _ABSENT):
                continue
            own += [_NAMES.get(name, name), *(values if values != ["true"] else [])]
        dtype = settings.get("--torch-dtype", [""])[0]
        super().__init__([*own, *([_TYPES[dtype]] if dtype in _TYPES else [])], environment)
        self._tuning = HuggingFaceReader(tuned, environment, started=SWIFT)
        self.model_name = self._tuning.model_name
        self.teacher_name = self._tuning.teacher_name
        said = ", ".join(f"{name[2:]} {value}" for name, value in taken.items())
        self.options.notes = [f"{self.title}'s defaults: {said}"] if taken else []
        if self.model_name is None:
            self.options.note("no --model: the model is that of model=")

    def training(self, base: Training, model: Model, recipe: Recipe, replicas: int) -> Training:
        """The training; ``replicas`` is the data-parallel size."""
        tuned = self._tuning.training(base, model, recipe, replicas)
        trained = super().training(base, model, recipe, replicas)
        length = trained.sequence_length or model.sequence_length
        length = self._tuning.length_of_pairs(tuned.dpo, length, self.options)
        return replace(
            trained,
            sequence_length=None if length == model.sequence_length else length,
            lora=tuned.lora,
            dpo=tuned.dpo,
            distillation=tuned.distillation,
            frozen=tuned.frozen,
        )

    def framework(
        self, base: Framework, model: Model, recipe: Recipe, training: Training
    ) -> Framework:
        """The software; each expert has adapters of its own (mcore_bridge/tuners/lora.py)."""
        found = super().framework(base, model, recipe, training)
        return replace(found, shares_expert_adapters=False)

    def reading(self) -> Reading:
        """What became of every argument; call it last."""
        own, tuned = super().reading(), self._tuning.reading()
        alien = {_name(each.argument) for each in own.unknown}
        left = {_name(each.argument) for each in tuned.unknown}
        read = self.options.names - alien
        aside = (each for each in tuned.not_modelled if _name(each[0]) not in read)
        no_effect = (each for each in tuned.no_effect if _name(each) in alien)
        return replace(
            own,
            used=own.used + tuple(each for each in tuned.used if _name(each) in alien),
            no_effect=own.no_effect + tuple(no_effect),
            not_modelled=own.not_modelled + tuple(aside),
            unknown=tuple(each for each in own.unknown if _name(each.argument) in left),
        )


def _name(words: str) -> str:
    """An argument's name as Megatron writes it."""
    return respelled(words.split(" ")[0], "_", "-")
