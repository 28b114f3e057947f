"""Layers that Megatron-Core 0.16 has beside attention and an MLP or experts, written and read.

``--hybrid-override-pattern`` has a letter for each half of a layer: ``M`` (Mamba-2), ``*``
(attention), ``-`` (MLP), ``E`` (experts). Since 0.17 it is ``--hybrid-layer-pattern``, in which
``|`` ends a chunk of a stage and ``/`` the layers before those that predict further tokens.
``--window-size`` is of the layers that
``--window-attn-skip-freq`` lists, and ``--softmax-type learnable`` gives all heads a sink.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from trainscout.reports.dialects.megatron_layers import layer_list, layers_with_experts
from trainscout.reports.dialects.options import Options
from trainscout.reports.dialects.shape import untold
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layer_pattern import format_layers
from trainscout.simulators.predictor.question.layers import (
    ATTENTION,
    DENSE,
    MOE,
    NONE,
    AttentionMixer,
    Layer,
    Mamba2,
    Mixer,
)
from trainscout.simulators.predictor.question.model import Model

PATTERN, WINDOW, WINDOWED = (
    "--hybrid-override-pattern",
    "--window-size",
    "--window-attn-skip-freq",
)
SINKS = "--softmax-type"
# Megatron's mixer takes no other.
_CHUNK, _TAPS = 128, 4
_LETTERS = {"M": ("mamba", NONE), "*": (ATTENTION, NONE), "-": (NONE, DENSE), "E": (NONE, MOE)}
_MLPS = {DENSE: "-", MOE: "E", NONE: ""}


def is_hybrid(model: Model) -> bool:
    """Whether layers are said by letters."""
    halves = any(NONE in (layer.mixer, layer.mlp) for layer in model.layer_kinds)
    return halves or any(mixer.mamba2 is not None for mixer in model.kinds.values())


def state_space(model: Model) -> Mamba2 | None:
    """The state-space mixer of a model that has one."""
    return next((each.mamba2 for each in model.kinds.values() if each.mamba2 is not None), None)


def letters(model: Model) -> str | None:
    """The pattern of a hybrid model."""
    return (
        "".join(_of_layer(model, layer) for layer in model.pattern) if is_hybrid(model) else None
    )


def _of_layer(model: Model, layer: Layer) -> str:
    mixer = model.mixer(layer)
    half = "" if mixer is None else "M" if mixer.mamba2 is not None else "*"
    return half + _MLPS[layer.mlp]


def window(model: Model) -> int | None:
    """Tokens of the sliding window, where layers have one."""
    return next(iter(_windows(model)), None)


def _windows(model: Model) -> set[int]:
    found = (each.attention for each in model.kinds.values())
    return {each.window for each in found if each is not None and each.window is not None}


def windowed_layers(model: Model) -> str | None:
    """Which layers have the window, equal ones folded."""
    if window(model) is None:
        return None
    mixers = [model.kinds.get(layer.mixer) for layer in model.pattern]
    flags = [int(bool(each and each.attention and each.attention.window)) for each in mixers]
    runs = (f"[{flag}]*{len(list(run))}" for flag, run in itertools.groupby(flags))
    return f"({'+'.join(runs)})"


def sinks(model: Model) -> str | None:
    """The softmax of heads with sinks, where they have."""
    attention = [each.attention for each in model.kinds.values()]
    return "learnable" if any(each and each.sinks for each in attention) else None


def impossible(job: Job) -> tuple[str, ...]:
    """What of a job's layers Megatron-LM has no arguments for, in words."""
    model, recipe = job.model, job.recipe
    words = [*model.special_parts, *untold(model, clamped=True, turned_in_part=True)]
    hybrid = is_hybrid(model)
    words += [
        f"layers of kind {name}"
        for name, mixer in model.kinds.items()
        if not _has_arguments(mixer, hybrid=hybrid)
    ]
    if len({mixer for mixer in model.kinds.values() if mixer.mamba2 is not None}) > 1:
        words.append("state-space mixers of several sizes")
    mixers = filter(None, map(model.mixer, model.layer_kinds))
    if len({each.attention.sinks for each in mixers if each.attention is not None}) > 1:
        words.append("sinks in some layers only")
    if len(_windows(model)) > 1:
        words.append("windows of several sizes")
    reasons = [f"model: {each}" for each in words]
    if hybrid:
        if model.num_mtp_layers:
            reasons.append("multi-token prediction behind layers said by letters")
        if recipe.vpp > 1:
            reasons.append(f"vpp={recipe.vpp} (layers said by letters have no virtual stages)")
        counts = [len(_of_layer(model, layer)) for layer in model.pattern]
        ends = list(itertools.accumulate(job.layers_per_stage))
        starts = [0, *ends[:-1]]
        held = {sum(counts[a:b]) for a, b in zip(starts, ends, strict=True)}
        if len(held) > 1:
            reasons.append(f"pp={recipe.pp} (it deals letters out evenly, as layers are not here)")
    return tuple(reasons)


def _has_arguments(mixer: Mixer, *, hybrid: bool) -> bool:
    attention, ssm = mixer.attention, mixer.mamba2
    if set(mixer.parts) not in ({"attention"}, {"mamba2"}):
        return False
    if ssm is not None:
        return ssm.norm and ssm.conv == _TAPS and not ssm.fixed_decay
    assert attention is not None
    limited = attention.chunk is not None or attention.index is not None or attention.gated
    limited |= not attention.causal or attention.has_own_heads
    limited |= attention.head_gates or attention.keys_are_values or attention.reuses_kv
    return not limited and not (hybrid and attention.window is not None)


def unsupported(job: Job) -> tuple[str, ...]:
    """What Megatron-Core does otherwise, in words."""
    ssm = state_space(job.model)
    if ssm is None or ssm.chunk == _CHUNK:
        return ()
    return (f"scans in chunks of {ssm.chunk} tokens (its are of {_CHUNK})",)


def read_chunks(options: Options) -> list[str]:
    """Letters of each chunk of a pipeline, all in one where the pattern has no bounds; none where
    no letters say the layers."""
    text = options.text(PATTERN)
    if text is None:
        return []
    return text.partition("/")[0].split("|")


def read_layers(options: Options, hidden: int, layers: int, experts: bool) -> dict[str, Any]:
    """Fields of a model that the arguments say of its layers.

    Raises:
        InputError: for a pattern that Megatron would refuse.
    """
    text = "".join(read_chunks(options))
    if text:
        if not re.fullmatch(r"[M*E-]+", text) or len(text) != layers:
            problem = f"does not say what each of {layers} layers is"
            raise InputError(options.written(PATTERN), text, problem, "a letter of M*-E a layer")
        if "/" in (whole := options.text(PATTERN) or ""):
            argument = f"{options.written(PATTERN)} {whole}"
            options.assume(argument, "no further tokens are predicted")
        dim = options.whole("--mamba-head-dim") or 64
        ssm = Mamba2(
            options.whole("--mamba-num-heads") or 2 * hidden // dim,
            dim,
            options.whole("--mamba-state-dim") or 128,
            options.whole("--mamba-num-groups") or 8,
            _TAPS,
            _CHUNK,
        )
        kinds = {"mamba": Mixer(mamba2=ssm)} if "M" in text else {}
        return {"layers": format_layers(Layer(*_LETTERS[each]) for each in text), "kinds": kinds}
    size, softmax = options.text(WINDOW), options.text(SINKS)
    sink = softmax == "learnable"
    if size is None and not sink:
        return {}
    flags = _windowed(options, layers) if size is not None else [False] * layers
    mlps = [MOE if flag else DENSE for flag in layers_with_experts(options, layers, experts)]
    kinds = {"full": Mixer(attention=AttentionMixer(sinks=True))} if sink else {}
    if size is not None:
        found = re.match(r"\(?(\d+)", size)
        if found is None:
            raise InputError(WINDOW, size, "is no size of a window", "two whole numbers, as 127,0")
        attention = AttentionMixer(window=int(found[1]) + 1, sinks=sink)
        kinds["window"] = Mixer(attention=attention)
    whole = "full" if sink else ATTENTION
    names = ["window" if flag else whole for flag in flags]
    used = {name: kinds[name] for name in kinds if name in names}
    return {"layers": format_layers(map(Layer, names, mlps)), "kinds": used}


def _windowed(options: Options, layers: int) -> list[bool]:
    text = options.text(WINDOWED)
    if text is None:
        return [True] * layers
    if text.isdigit() and int(text) > 0:
        return [bool((at + 1) % int(text)) for at in range(layers)]
    return [bool(each) for each in layer_list(WINDOWED, text, layers)]
