"""From the best recipe's step to a rival's: what it spends less and more time on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainscout.reports.wording import format_part

# Differences below this share of the step are summed up in one bar.
NOTABLE_SHARE = 0.001
REST = "rest"


def waterfall(best_s: Mapping[str, float], rival_s: Mapping[str, float]) -> list[dict[str, Any]]:
    """Bars that lead from the best's step time to the rival's, largest first.

    Each is ``{"part", "label", "seconds"}``, where seconds are the rival's less the best's, of one
    part of the critical path; small ones are summed up in the last. They sum to the difference of
    the two step times.
    """
    gaps = {
        name: rival_s.get(name, 0.0) - best_s.get(name, 0.0)
        for name in dict.fromkeys((*best_s, *rival_s))
    }
    least_s = NOTABLE_SHARE * sum(best_s.values())
    notable = sorted(
        ((name, gap) for name, gap in gaps.items() if abs(gap) >= least_s),
        key=lambda pair: -abs(pair[1]),
    )
    bars = [{"part": name, "label": format_part(name), "seconds": gap} for name, gap in notable]
    rest_s = sum(gaps.values()) - sum(gap for _, gap in notable)
    if len(notable) < len(gaps):
        bars.append({"part": REST, "label": "all else", "seconds": rest_s})
    return bars
