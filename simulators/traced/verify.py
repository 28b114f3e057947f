"""Re-checks a recipe: real Megatron-Core runs one rank of its stages, and the traces are replayed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simulators.errors import InputError
from simulators.job import Job
from simulators.traced.answers import ask
from simulators.traced.job_file import job_json
from simulators.traced.piece import check_traceable
from simulators.traces.events import Trace
from simulators.traces.files import read_trace

# Adam's state comes into being in the first step; the second is like all that follow.
STEPS = 2
# Rounds of the pipeline that are traced: one to fill it, one to show its period.
ROUNDS = 2
