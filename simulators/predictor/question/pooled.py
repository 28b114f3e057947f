"""One vector a sequence in place of logits of its words: classes, or pairs of texts and images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .errors import InputError, require_choice, require_positive
from .tower import Convolution, Tower

# Texts and images that a contrastive loss compares: a rank's own, or those of all ranks.
OWN, ALL = "own", "all"
_MOST = 10**7


@dataclass(frozen=True)
class Pooled:
    """What goes in and comes out where no word is predicted (ViT, CLIP, a classifier of texts)."""

    widths: tuple[int, ...]
    """Widths of the linear layers behind one token's state, the model's (of several vectors that
    are joined a multiple of it) and the last (classes, or what texts and images have in common)
    included."""
    patch_size: int = 0
    """Values of a patch of an image, which goes in where words do (0: words go in)."""
    stem: tuple[Convolution, ...] = ()
    """Convolutions in front of the patches, which are frames of sound then (wav2vec 2.0)."""
    every_token: bool = False
    """Every token's state goes through them, not one a sequence (named entities, answers in a
    text)."""
    contrastive: str | None = None
    """Each text is compared with every image: with those of its rank (``own``, Transformers'
    loss) or, gathered with their gradients, of all ranks (``all``, OpenCLIP's ``--local-loss
    --gather-with-grad``); null: the loss is of classes."""

    @property
    def weights(self) -> int:
        """Of the linear layers behind, biases included."""
        return sum((one + 1) * other for one, other in pairwise(self.widths))

    def replicas(self, dp: int) -> int:
        """Ranks out of ``dp`` whose sequences are compared."""
        return dp if self.contrastive == ALL else 1

    def flops(self, sequence: int, compared: int) -> float:
        """FLOPs of one sequence behind its layers, forward, which is compared with so many."""
        pairs = 2 * compared * self.widths[-1] if self.contrastive else 0
        rows = sequence if self.every_token else 1
        return 2.0 * (rows * sum(one * other for one, other in pairwise(self.widths)) + pairs)

    def check(self) -> None:
        """Refuse impossible sizes."""
        require_positive("model.pooled.patch_size", self.patch_size, allow_zero=True, most=_MOST)
        for number, each in enumerate(self.stem):
            each.check(f"model.pooled.stem.{number}")
        if self.stem and not self.patch_size:
            raise InputError("model.pooled.stem", "...", "is of no patches", "patch_size")
        for width in self.widths:
            require_positive("model.pooled.widths", width, most=_MOST)
        if self.contrastive is not None and self.every_token:
            problem = "is of vectors, one a sequence"
            raise InputError("model.pooled.contrastive", self.contrastive, problem, "null")
        if self.contrastive is not None:
            require_choice("model.pooled.contrastive", self.contrastive, (OWN, ALL))

    def check_for(self, hidden_size: int, towers: tuple[Tower, ...]) -> None:
        """Refuse what does not begin with the model's width, nor end with the other tower's."""
        if len(self.widths) < 2 or self.widths[0] % hidden_size:
            widths = f"[{', '.join(map(str, self.widths))}]"
            problem, allowed = "does not begin with the model's width", f"[{hidden_size}, ...]"
            raise InputError("model.pooled.widths", widths, problem, allowed)
        ends = [tower.output_width for tower in towers]
        if self.contrastive is not None and ends != [self.widths[-1]]:
            problem = "compares with one tower, which ends in the same width"
            raise InputError("model.pooled.contrastive", self.contrastive, problem, "one tower")
        if self.contrastive is None and towers:
            raise InputError("model.pooled", "...", "is beside towers", "model.pooled.contrastive")
