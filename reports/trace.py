"""An operation timeline as Chrome trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json

from simulators.replay.timeline import NO_MICRO_BATCH, STREAMS, Timeline


def chrome_trace(timeline: Timeline) -> str:
    """The timeline as one JSON object; one process a stage, one thread a stream.

    Times are microseconds, the unit of the format.
    """
    events: list[dict[str, object]] = []
    for stage in sorted({int(stage) for stage in timeline.stage}):
        events.append(_label("process_name", stage, 0, f"stage {stage}"))
        events += [_label("thread_name", stage, i, name) for i, name in enumerate(STREAMS)]
    columns = (
        timeline.name.tolist(),
        timeline.stage.tolist(),
        timeline.stream.tolist(),
        timeline.micro_batch.tolist(),
        timeline.start_s.tolist(),
        timeline.end_s.tolist(),
    )
    for name, stage, stream, micro_batch, start_s, end_s in zip(*columns, strict=True):
        event: dict[str, object] = {
            "name": timeline.names[name],
            "ph": "X",
            "pid": stage,
            "tid": stream,
            "ts": round(start_s * 1e6, 3),
            "dur": round((end_s - start_s) * 1e6, 3),
        }
        if micro_batch != NO_MICRO_BATCH:
            event["args"] = {"micro_batch": micro_batch}
        events.append(event)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _label(kind: str, stage: int, stream: int, text: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": stage, "tid": stream, "args": {"name": text}}
