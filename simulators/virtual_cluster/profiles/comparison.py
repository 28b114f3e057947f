"""A profile beside the prediction of the same rank's step."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Gemm
from trainscout.simulators.virtual_cluster.traces.comparison import ClassComparison

from .matching import Anchor, Match, Matched, align, anchor_of, lane_of
from .measured import FIELD, MeasuredOperation, MeasuredProfile
from .predicted import END, PASSES, PredictedOperation, class_of, shape_text
from .rows import SHAPED, CollectiveRow, OperationRow, class_rows, collective_rows, operation_rows

# A profile of which less than this share of products and attention is in the prediction is of
# something else.
LEAST_MATCHED = 0.5
_MOST_NAMED = 3
# Kernels of one GPU are faster or slower than priced by less than this, against each other.
MOST_APART = 2.0


@dataclass(frozen=True)
class Comparison:
    """A profile beside the prediction of its rank's step; seconds are those of a step.

    ``by_shape``, ``by_turn`` and ``by_place``: shares of the measured device time that were
    matched with a predicted operation of the same shape, or (of unknown shape) in the same turn,
    and that lie in a block where time of their kind is predicted. ``passes`` are those that the
    profile holds, ``absent`` blocks of these passes that it does not (a model without its head),
    which are left out of what is compared. ``host_s``: what launching the rest is predicted to
    take the host.
    """

    profile: MeasuredProfile
    rank: int
    stage: int
    passes: tuple[str, ...]
    absent: tuple[str, ...]
    by_shape: float
    by_turn: float
    by_place: float
    operations: tuple[OperationRow, ...]
    classes: tuple[ClassComparison, ...]
    collectives: tuple[CollectiveRow, ...]
    prediction: Prediction
    host_s: float

    @property
    def whole(self) -> bool:
        """Whether the profile holds all that is predicted, so that the steps compare."""
        return self.passes == PASSES and not self.absent


def compare_step(
    profile: MeasuredProfile,
    place: tuple[int, int],
    predicted: Sequence[PredictedOperation],
    prediction: Prediction,
) -> Comparison:
    """Match a profile with a prediction; ``place``: its rank and pipeline stage.

    Raises:
        InputError: for a profile that is of another model, layout or batch, with what differs.
    """
    measured, steps = profile.operations, profile.steps
    matched = _match(measured, predicted)
    passes = _passes(measured, predicted, matched)
    _refuse_another(profile.path, measured, predicted, matched)
    absent = _absent(predicted, matched, passes)
    kept = [each for each in predicted if each.pass_ in passes and each.block not in absent]
    total_s = sum(each.seconds for each in measured)
    turn_s = sum(measured[at].seconds for at in matched.in_turn)
    by_shape = matched.predicted_of.keys() - matched.in_turn
    shaped_s = sum(measured[at].seconds for at in by_shape)
    rows, placed_s = operation_rows(profile, kept, matched, predicted)
    return Comparison(
        profile=profile,
        rank=place[0],
        stage=place[1],
        passes=passes,
        absent=absent,
        by_shape=shaped_s / total_s,
        by_turn=turn_s / total_s,
        by_place=placed_s / total_s,
        operations=rows,
        classes=class_rows(measured, kept, steps),
        collectives=collective_rows(measured, kept, steps),
        prediction=prediction,
        host_s=sum(each.host_s for each in kept),
    )


def _match(
    measured: Sequence[MeasuredOperation], predicted: Sequence[PredictedOperation]
) -> Matched:
    """Anchors of each step against those of the predicted one, lane by lane."""
    anchors = [anchor_of(each.kernels) for each in measured]
    products = [each for each in anchors if isinstance(each, Gemm)]
    # Without strides every product looks like the gradient of an input.
    layouts = any(each.layout != "NN" for each in products)
    theirs: dict[str, list[tuple[int, Anchor]]] = defaultdict(list)
    for at, each in enumerate(predicted):
        anchor = anchor_of([each.op]) if class_of(each.op) in SHAPED else None  # type: ignore[list-item]
        if anchor is not None:
            theirs[lane_of(anchor, layouts)].append((at, anchor))
    ours: dict[tuple[int, str], list[tuple[int, Anchor]]] = defaultdict(list)
    for at, anchor in enumerate(anchors):
        if anchor is not None:
            ours[measured[at].step, lane_of(anchor, layouts)].append((at, anchor))
    pairs = []
    for (_, lane), own in ours.items():
        others = theirs[lane]
        for match in align([each for _, each in own], [each for _, each in others]):
            mine = tuple(own[position][0] for position in match.measured)
            pairs.append(Match(mine, tuple(others[position][0] for position in match.predicted)))
    in_turn = [
        pair
        for step in dict.fromkeys(each.step for each in measured)
        for pair in _in_turn(step, measured, predicted, pairs)
    ]
    predicted_of = {at: pair.predicted[0] for pair in [*pairs, *in_turn] for at in pair.measured}
    return Matched(
        (*pairs, *in_turn), predicted_of, frozenset(at for p in in_turn for at in p.measured)
    )


def _in_turn(
    step: int,
    measured: Sequence[MeasuredOperation],
    predicted: Sequence[PredictedOperation],
    pairs: Sequence[Match],
) -> Iterator[Match]:
    """Operations of one step whose shapes were not recorded, as gradients of vendors' modules, in
    turn with what is predicted and not yet matched, where there are as many of a class: in all
    passes, or in one."""
    taken = {
        at for pair in pairs if measured[pair.measured[0]].step == step for at in pair.predicted
    }
    for kind in ("gemm", "attention"):
        ours = [
            at
            for at, each in enumerate(measured)
            if (each.step, each.kernel_class) == (step, kind) and not each.kernels
        ]
        theirs = [
            at
            for at, each in enumerate(predicted)
            if at not in taken and class_of(each.op) == kind
        ]
        for passes in (PASSES, *((name,) for name in PASSES)):
            own = [at for at in theirs if predicted[at].pass_ in passes]
            if ours and len(own) == len(ours):
                yield from (Match((a,), (b,)) for a, b in zip(ours, own, strict=True))
                break


def _passes(
    measured: Sequence[MeasuredOperation],
    predicted: Sequence[PredictedOperation],
    matched: Matched,
) -> tuple[str, ...]:
    """The passes that something measured belongs to."""
    found = {predicted[at].pass_ for at in matched.predicted_of.values()}
    if any(each.kernel_class == "optimizer" for each in measured):
        found.add(END)
    return tuple(each for each in PASSES if each in found)


def _absent(
    predicted: Sequence[PredictedOperation], matched: Matched, passes: Sequence[str]
) -> tuple[str, ...]:
    """Blocks whose products are predicted, and none of them measured."""
    seen = {predicted[at].block for at in matched.predicted_of.values()}
    expected = {
        each.block: None
        for each in predicted
        if each.pass_ in passes and class_of(each.op) in SHAPED
    }
    return tuple(block for block in expected if block not in seen)


def _refuse_another(
    path: Path,
    measured: Sequence[MeasuredOperation],
    predicted: Sequence[PredictedOperation],
    matched: Matched,
) -> None:
    shaped = [(at, each) for at, each in enumerate(measured) if each.kernel_class in SHAPED]
    total_s = sum(each.seconds for _, each in shaped)
    if not total_s:
        problem = "holds no matrix products or attention of a known shape"
        raise InputError(FIELD, path, problem, "a profile of training steps on a GPU")
    known = [
        (at, each)
        for at, each in shaped
        if anchor_of(each.kernels) is not None or at in matched.in_turn
    ]
    share = sum(each.seconds for at, each in known if at in matched.predicted_of) / total_s
    if share >= LEAST_MATCHED:
        _refuse_other_turns(path, measured, predicted, matched)
        return
    if not any(each.kernels for _, each in shaped):
        problem = f"records no shapes of its {len(shaped)} products, and as many are not predicted"
        allowed = "torch.profiler.profile(record_shapes=True, ...)"
        raise InputError(FIELD, path, problem, allowed)
    left = {shape_text(each.kernels): each for at, each in known if at not in matched.predicted_of}
    largest = sorted(left, key=lambda shape: -left[shape].seconds)[:_MOST_NAMED]
    problem = (
        f"is of another model, batch or layout: {share:.0%} of its time in products and attention "
        f"has a predicted shape; not so {', '.join(largest)}"
    )
    raise InputError(FIELD, path, problem, _advice(known, predicted))


def _refuse_other_turns(
    path: Path,
    measured: Sequence[MeasuredOperation],
    predicted: Sequence[PredictedOperation],
    matched: Matched,
) -> None:
    """Where shapes are unknown, times must at least grow and shrink together."""
    logs = {
        at: math.log(measured[at].seconds / predicted[matched.predicted_of[at]].seconds)
        for at in matched.in_turn
        if measured[at].seconds and predicted[matched.predicted_of[at]].seconds
    }
    if not logs:
        return
    usual = statistics.median(logs.values())
    total_s = sum(measured[at].seconds for at in logs)
    apart = [at for at, ratio in logs.items() if abs(ratio - usual) > math.log(MOST_APART)]
    if sum(measured[at].seconds for at in apart) > (1 - LEAST_MATCHED) * total_s:
        problem = (
            f"records no shapes of {len(logs)} products, and in turn they take other times than "
            "predicted"
        )
        allowed = "the model that was profiled, or a profile with record_shapes=True"
        raise InputError(FIELD, path, problem, allowed)


def _advice(
    known: Sequence[tuple[int, MeasuredOperation]], predicted: Sequence[PredictedOperation]
) -> str:
    """What would make shapes meet: the same weights with other tokens is another batch."""
    ours = {
        (each.n, each.k): each.m
        for _, operation in known
        for each in operation.kernels
        if isinstance(each, Gemm) and each.layout == "TN" and each.batch == 1
    }
    theirs = {
        (each.op.n, each.op.k): each.op.m
        for each in predicted
        if isinstance(each.op, Gemm) and each.op.layout == "TN" and each.op.batch == 1
    }
    common = ours.keys() & theirs.keys()
    tokens = {(ours[weights], theirs[weights]) for weights in common}
    if len(tokens) == 1:
        ((had, meant),) = tokens
        if had != meant:
            return (
                f"{had} tokens a product as profiled, not {meant}: recipe.micro_batch= times "
                "model.sequence_length=, over recipe.cp="
            )
    shapes = dict.fromkeys(
        shape_text([each.op])
        for each in predicted
        if isinstance(each.op, Gemm) and each.pass_ == PASSES[0]
    )
    return f"the model and layout that were profiled; predicted are {', '.join([*shapes][:4])}"
