"""Adapters of low rank as Transformers' Trainer, PEFT and the tools around them call them."""

from __future__ import annotations

import re

from trainscout.reports.dialects.options import Options
from trainscout.simulators.predictor.question.tuning import LORA_TARGETS, TARGET_OF, Lora

# How adapters of low rank are called (``lora_llm``: towers are trained whole beside them), and
# what else keeps all weights as they are and trains what stands beside them.
_ADAPTS = ("lora", "qlora", "lora_llm", "dora")
_ADAPTS_OTHERWISE = (
    *("adalora", "adapter", "boft", "bone", "fourierft", "hra", "ia3", "llama-adapter", "loha"),
    *("lokr", "longlora", "oft", "p_tuning", "prefix_tuning", "prompt_tuning", "randlora"),
    *("reft", "vera"),
)
_ALL = ("all", "all-linear")
_TUNES = ("full", "freeze", "llamapro", *_ADAPTS, *_ADAPTS_OTHERWISE)
# Where Transformers' models keep their layers, alone and beside towers; an expression for names of
# modules may choose one layer of so many.
_STEMS = ("model.", "model.language_model.", "language_model.model.", "model.text_model.")
_MOST_PERIOD = 8


def adapters_of(
    options: Options, declared: Lora | None, everything: tuple[str, ...] = LORA_TARGETS
) -> Lora | None:
    """The adapters that arguments say, of ``everything`` where they say all; those declared where
    they say none."""
    ranks = ("--lora_r", "--lora_rank")
    rank, ranked = options.first_whole(*ranks), any(map(options.has, ranks))
    options.refuse_slip("--finetuning_type", _TUNES)
    kind = options.text("--finetuning_type") or options.text("--peft_type")
    for name in ("--lora_alpha", "--lora_task_type"):
        options.has(name)
    dropout = options.number("--lora_dropout") or 0.0
    asked = bool(options.on("--use_peft")) or bool(options.on("--use_lora")) or ranked
    if kind in _ADAPTS_OTHERWISE:
        options.assume(f"fine-tuning called {kind}", "adapters are plain ones of low rank")
    elif kind not in (None, "full", *_ADAPTS):
        options.assume(f"fine-tuning called {kind}", "every weight is trained")
    if not (asked if kind is None else kind in (*_ADAPTS, *_ADAPTS_OTHERWISE)):
        return declared
    named = options.texts("--lora_target_modules") or options.texts("--lora_target") or []
    names = [name for word in named for name in re.split(r"[,\s]+", word) if name]
    names += ["all-linear"] if options.on("--lora_target_linear") else []
    found = {name: _adapted_by(name) for name in names if name not in _ALL}
    targets = {target for each in found.values() for target in each}
    other = [name for name, each in found.items() if not each]
    if other:
        instead = "none are there" if targets else "all linear layers have some"
        options.assume(f"adapters of {', '.join(other)}", instead)
    if not names:
        targets = {"linear_qkv"}
        options.note("no --lora_target_modules: adapters of queries and values, as PEFT's default")
    chosen = tuple(name for name in LORA_TARGETS if name in targets)
    chosen = chosen or (everything if {*_ALL} & {*names} else LORA_TARGETS)
    kept, dora = _frozen_weights(options, kind), options.on("--use_dora") or kind == "dora"
    return Lora(8 if rank is None else rank, chosen, dropout, kept, dora=bool(dora))


def _frozen_weights(options: Options, kind: str | None) -> str:
    """What weights beside adapters are kept in: as bitsandbytes has them, or nearly so."""
    bits = options.first_whole("--quant_bits", "--quantization_bit") or None
    loaded = [each for each in (8, 4) if options.on(f"--load_in_{each}bit")]
    if bits is None and (loaded or kind == "qlora"):
        bits = loaded[0] if loaded else 4
    if bits is None:
        return "16bit"
    for method in map(options.text, ("--quant_method", "--quantization_method")):
        if method not in (None, "bnb"):
            options.assume(f"weights quantised by {method}", "they lie as bitsandbytes' do")
    if bits == 8:
        return "int8"
    if bits != 4:
        options.assume(f"weights in {bits} bits", "they are kept in 4")
    # FP4 lies as NF4 does.
    for name in ("--bnb_4bit_quant_type", "--quantization_type"):
        options.has(name)
    return "nf4_double" if options.on("--bnb_4bit_use_double_quant") else "nf4"


def _adapted_by(name: str) -> set[str]:
    """The layers that a module's name ends in, or that an expression for names matches (PEFT)."""
    try:
        matches = re.compile(name).fullmatch
    except re.error:
        return set()
    found = set()
    for module, target in TARGET_OF.items():
        group = "self_attn" if target in ("linear_qkv", "linear_proj") else "mlp"
        own = f"{group}.{module}"
        paths = (f"{stem}layers.{at}.{own}" for stem in _STEMS for at in range(_MOST_PERIOD))
        if f".{own}".endswith(f".{name}") or any(map(matches, paths)):
            found.add(target)
    return found
