"""Numbers as people write them into a cell: with a unit, or with what the column calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NUMBER = re.compile(
    r"[~≈]?\s*(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<rest>.*)"
)
_THOUSAND, _MILLION = (1024, 1000), (1024**2, 10**6)

_BATCH = r"bs|batch[ _-]size|seq(?:uence)?s?|samples?"
# What may stand before the number (``TP=4``, ``mbs 2``) or after it (``4-way TP``, ``2 samples``).
_NAMES = {
    "gpus_per_node": r"gpus?(?:(?: per |/)node)?|per node",
    "num_layers": r"layers?|blocks?",
    "num_heads": r"(?:attention |query |q )?heads?",
    "num_query_groups": r"(?:kv |key-value )?(?:heads?|groups?)|gqa",
    "vocab": r"tokens?|entries",
    "seq_len": r"(?:tokens?|toks?|seq(?:uence)?(?:[ _-]?len(?:gth)?)?|context)",
    "num_experts": r"experts?",
    "topk": r"top(?:[ -]?k)?",
    "tp": r"tp|tensor[ -]parallel(?:ism)?",
    "pp": r"pp|pipeline[ -]parallel(?:ism)?|stages?",
    "dp": r"dp|data[ -]parallel(?:ism)?|replicas?",
    "cp": r"cp|context[ -]parallel(?:ism)?",
    "ep": r"ep|expert[ -]parallel(?:ism)?",
    "etp": r"etp",
    "vpp": r"vpp|vp|chunks?",
    "micro_batch": rf"mbs?|micro[ _-]?batch(?:[ _-]?size)?|{_BATCH}|per (?:gpu|device)",
    "global_batch": rf"gbs?|global[ _-]?batch(?:[ _-]?size)?|{_BATCH}",
    "measured_mfu": r"mfu",
    "params_b": r"param(?:eter)?s",
}
_EACH_STEP = r"(?:\s*(?:/|per )\s*(?:steps?|it|iter|iterations?|updates?))?"
_OF_ONE = r"(?:/(?:gpu|device|card|accelerator))"
_SECONDS = {
    rf"(?:s|secs?|seconds?)(?i:{_EACH_STEP})": 1.0,
    rf"(?:ms|msecs?|milliseconds?)(?i:{_EACH_STEP})": 1e-3,
    rf"(?:min|mins|minutes?)(?i:{_EACH_STEP})": 60.0,
}
_FLOPS = rf"FLOP(?:s|S)?(?:/s(?:ec)?)?(?i:{_OF_ONE})?|FLOP(?:s|S)?(?i:{_OF_ONE})/s"
_RATE = (
    r"(?i:(?:tokens?|toks?)?(?:/s|/sec|/second| per second)?"
    rf"{_OF_ONE}?|(?:tokens?|toks?){_OF_ONE}(?:/s|/sec|/second)|tps|tgs)"
)
# Factors to the unit of the column, by what follows the number. Case tells bits from bytes.
_UNITS: Mapping[str, Mapping[str, float]] = {
    "measured_iter_s": _SECONDS,
    "derived_iter_s": _SECONDS,
    "measured_tokens_per_s_per_gpu": {_RATE: 1.0, rf"[kK] ?(?:{_RATE})": 1e3},
    "measured_tflops_per_gpu": {rf"T(?:{_FLOPS})": 1.0, rf"P(?:{_FLOPS})": 1e3},
    "measured_mfu": {r"(?:%|percent)": 1.0},
    "measured_peak_mem_gib": {"GiB": 1.0, "MiB": 2.0**-10, "GB": 1e9 / 2**30, "MB": 1e6 / 2**30},
    "inter_link_gbps_per_gpu": {
        r"Gb(?:it)?(?:/s|ps)?|G": 1.0,
        r"GB(?:/s|ps)": 8.0,
        r"Tb(?:it)?(?:/s|ps)": 1e3,
    },
    "params_b": {r"(?i:b|bn|billion)": 1.0, r"(?i:m|million)": 1e-3, r"(?i:t|trillion)": 1e3},
    "vocab": {"[kK]": 1e3},
}
_STEPS_A_SECOND = re.compile(r"(?:it|iters?|iterations?|steps?)(?:/s(?:ec)?| per second)", re.I)
_POWERS_OF_TWO = ("seq_len", "global_batch")
_BATCHES = ("micro_batch", "global_batch")
_GPUS = re.compile(
    r"(?:(?P<nodes>\d+)\s*(?:nodes?|hosts?)?\s*[x×*]\s*)?(?P<gpus>\d+)\s*[x×*]?\s*"
    r"(?:(?:nvidia|amd)\s+)?(?:(?:gpu|card|device)s?"
    r"|(?:[a-z]{1,3}\d{2,4}[a-z]?)s?(?:[ -](?:sxm\d?|pcie|nvl|oam|\d+ ?gi?b))*(?:\s+gpus?)?)?",
    re.I,
)


def with_unit(column: str, text: str) -> float | None:
    """The number that ``text`` is in the unit of ``column``; None where it is no such number."""
    if column == "num_gpus":
        found = _GPUS.fullmatch(text)
        return None if found is None else float(found["gpus"]) * int(found["nodes"] or 1)
    number, unit = _parts(column, text)
    if number is None:
        return None
    if unit == "":
        return number
    if column in ("measured_iter_s", "derived_iter_s") and _STEPS_A_SECOND.fullmatch(unit):
        return 1 / number if number else None
    if column in _POWERS_OF_TWO and unit in ("k", "K"):
        return _whole(number, _THOUSAND)
    if column in _POWERS_OF_TWO and unit in ("M", "m"):
        return _whole(number, _MILLION)
    for pattern, factor in _UNITS.get(column, {}).items():
        if re.fullmatch(pattern, unit):
            return number * factor
    return None


def tokens_in(column: str, text: str) -> tuple[float, ...]:
    """What a batch that is given in tokens may be; () for one that is not."""
    found = re.fullmatch(r"(?P<batch>.*?)\s*tok(?:en)?s?", text, re.I)
    if column not in _BATCHES or found is None:
        return ()
    number, unit = _parts(column, found["batch"])
    factors = {"": (1,), "k": _THOUSAND, "m": _MILLION}.get(unit.lower())
    return () if number is None or factors is None else tuple(number * each for each in factors)


def sequences_of(tokens: Sequence[float], seq_len: int) -> int | None:
    """The whole number of sequences in the first of these that are one."""
    return next((round(each / seq_len) for each in tokens if each % seq_len == 0), None)


def _parts(column: str, text: str) -> tuple[float | None, str]:
    """The number in a cell and the unit behind it, without the column's own names."""
    name = _NAMES.get(column)
    if name is not None:
        text = re.sub(rf"^(?:{name})[\s=:_-]*(?=[~≈]?\s*[\d.])", "", text, flags=re.I)
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None, ""
    unit = found["rest"].strip()
    if name is not None:
        unit = re.sub(
            rf"(?:^|(?<=[kKmMbBtT%])|\s|-)(?:way)?[\s-]*(?:{name})?$", "", unit, flags=re.I
        )
    return float(found["number"]), unit


def _whole(number: float, factors: tuple[int, int]) -> float:
    """Counted in powers of two where that is whole, else in tens."""
    binary, decimal = (number * factor for factor in factors)
    return binary if binary == int(binary) else decimal
