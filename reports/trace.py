"""An operation timeline as Chrome trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import io

from simulators.replay.timeline import NO_MICRO_BATCH, STREAMS, Timeline
from simulators.traces.chrome import ChromeTrace


def chrome_trace(timeline: Timeline) -> str:
    """The timeline as one JSON object; one process a stage, one thread a stream."""
    text = io.StringIO()
    trace = ChromeTrace(text)
    for stage in sorted({int(stage) for stage in timeline.stage}):
        trace.process(stage, f"stage {stage}")
        for stream, name in enumerate(STREAMS):
            trace.thread(stage, stream, name)
    columns = (
        timeline.name.tolist(),
        timeline.stage.tolist(),
        timeline.stream.tolist(),
        timeline.micro_batch.tolist(),
        timeline.start_s.tolist(),
        timeline.end_s.tolist(),
    )
    for name, stage, stream, micro_batch, start_s, end_s in zip(*columns, strict=True):
        args = None if micro_batch == NO_MICRO_BATCH else {"micro_batch": micro_batch}
        trace.slice(timeline.names[name], stage, stream, start_s, end_s, args)
    trace.finish()
    return text.getvalue()
