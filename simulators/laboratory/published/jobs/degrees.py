"""Among what kinds of parallelism a row divides its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.laboratory.published.reading.rows import Row, given

from .outcome import CannotReplayError


@dataclass(frozen=True)
class Degrees:
    """How many GPUs, and how they are divided among tensor, pipeline, context and data."""

    num_gpus: int
    tp: int
    pp: int
    cp: int
    dp: int


def degrees_of(row: Row) -> tuple[Degrees, tuple[str, ...]]:
    """The row's parallel degrees; one that is missing follows from the others.

    Raises:
        CannotReplayError: when more than one is missing, or they contradict each other.
    """
    assumed: list[str] = []
    known = {"tp": row.tp, "pp": row.pp, "cp": given(row.cp, 1), "dp": row.dp}
    missing = [name for name, value in known.items() if value is None]
    if row.num_gpus is None:
        missing.insert(0, "num_gpus")
    if len(missing) > 1:
        raise CannotReplayError(f"{', '.join(missing)} not published")
    product = 1
    for value in known.values():
        product *= given(value, 1)
    if not missing:
        if product != row.num_gpus:
            raise CannotReplayError(
                f"tp x pp x cp x dp = {product} contradicts the {row.num_gpus} GPUs printed"
            )
    elif missing == ["num_gpus"]:
        assumed.append(f"GPU count not published: {product} by the layout")
    else:
        total = given(row.num_gpus, 0)
        if total % product:
            raise CannotReplayError(f"the printed degrees do not divide {total} GPUs")
        known[missing[0]] = total // product
        if missing[0] != "dp":
            assumed.append(f"{missing[0]} not published: {total // product} by the GPU count")
    tp, pp, cp, dp = (given(known[name], 1) for name in ("tp", "pp", "cp", "dp"))
    return Degrees(tp * pp * cp * dp, tp, pp, cp, dp), tuple(assumed)
