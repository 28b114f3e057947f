"""Take the picture of a timeline in Perfetto, for the documentation::

python -m docs.timeline_picture      # pip install -e '.[browser,plots]'
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.question import job
from docs.screenshots import compressed
from tests.browser import chromium
from tests.perfetto import open_trace, query
from trainscout.reports.timeline.files import write_timeline_files
from trainscout.simulators.predictor.io.output import replacing_bytes
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.timeline_choice import TimelineChoice
from trainscout.simulators.registry import SimulatorSpec

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURE = Path(__file__).parent / "images" / "timeline.png"
QUESTION = ("model=mixtral_8x7b", "cluster=h100_64", "training.global_batch_size=128")
RECIPE = Recipe(tp=2, pp=2, ep=8, sp=True)
SIZE = (1366, 1000)
# The user interface says nowhere when it has drawn everything.
SETTLED_MS = 3000
_EXPAND = "() => [...app.trace.workspace.children][0].expand()"
_SELECT = "(id) => app.trace.selection.selectSqlEvent('slice', id, {scrollToSelection: true})"
_KERNEL = "select id from slice where name = 'expert_fc1_fwd' order by ts limit 1"


def timeline_picture(browser: Browser) -> bytes:
    """The first experts of a step, their arguments below."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        choice = TimelineChoice(file=str(path), micro_batches=4, ranks=[0, 1])
        question = job(RECIPE, *QUESTION)
        write_timeline_files(question, SimulatorSpec(), ReplaySimulator(), choice)
        with open_trace(browser, path, SIZE) as page:
            page.wait_for_timeout(SETTLED_MS)
            page.evaluate(_EXPAND)
            ((kernel,),) = query(page, _KERNEL)
            page.evaluate(_SELECT, kernel)
            page.wait_for_timeout(SETTLED_MS)
            return page.screenshot()


if __name__ == "__main__":
    with chromium() as started:
        picture = timeline_picture(started)
    PICTURE.parent.mkdir(exist_ok=True)
    with replacing_bytes(PICTURE) as file:
        file.write(compressed(picture))
