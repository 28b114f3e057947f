"""What an exact search proved, in words: the account of every point, and how far off it may be."""

from __future__ import annotations

from trainscout.optimizer.certificate import Certificate
from trainscout.optimizer.choices import CLEARLY_LESS, NEARLY_BEST
from trainscout.simulators.predictor.memory.bands import FITS, NO


def format_proof(certificate: Certificate) -> str:
    """One paragraph: what is proved, then where the points went."""
    return f"{format_claim(certificate)} {_format_account(certificate)}"


def format_claim(certificate: Certificate) -> str:
    """What is proved, or by how much it is not yet."""
    what = f"these {certificate.top_k} best" if len(certificate.objectives) == 1 else "this front"
    if certificate.proved:
        if certificate.best is None:
            return "No recipe fits: all were simulated, or their bounds rule them out."
        if certificate.recipes == 1:
            return "It is the only recipe of the space."
        margin = f" by more than {certificate.epsilon:.3%}" if certificate.epsilon else ""
        claim = f"No other recipe of the space beats one of {what}{margin}, under this model."
        if certificate.layouts:
            claim += (
                f" The best of each of the {certificate.layouts} best layouts, the best with "
                f"{CLEARLY_LESS:.0%} more of the memory free and the simplest within "
                f"{NEARLY_BEST:.0%} are proved as well."
            )
        if certificate.failed:
            claim += f" Nothing is said about {certificate.failed} that failed."
        return claim
    if certificate.gap is None:
        return f"Nothing proved yet: {certificate.open:,} recipes are open and none known fits."
    return (
        f"Not proved yet: {certificate.open:,} recipes are open; by their bounds, one may be up "
        f"to {certificate.gap:.2%} better than the best known."
    )


def _format_account(certificate: Certificate) -> str:
    def share(count: int) -> str:
        return f"{count:,} ({count / certificate.recipes:.1%})"

    points = f"Of {certificate.points:,} points"
    gone = [f"{count:,} break {rule}" for rule, count in _most_first(certificate.not_launchable)]
    if certificate.equal:
        rules = ", ".join(rule for rule, _ in _most_first(certificate.equal_by_rule))
        gone.append(f"{certificate.equal:,} mean the same as another ({rules})")
    rest = f"{certificate.recipes:,} launchable recipes"
    return (
        f"{points}, {', '.join(gone)}; of the {rest}, " if gone else f"{points}, all {rest}, "
    ) + (
        f"{share(certificate.out_of_memory)} are beyond doubt out of memory by their bound "
        f"(a probability under {certificate.reading[NO]:.0%}), "
        f"{share(certificate.out_of_reach)} cannot be among the best by their time bound, "
        f"{share(certificate.simulated)} were simulated"
        f"{f', {certificate.tight:,} of them tight' if certificate.tight else ''}. "
        f"A recipe fits that does with a probability of {certificate.reading[FITS]:.0%} or more."
    )


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
