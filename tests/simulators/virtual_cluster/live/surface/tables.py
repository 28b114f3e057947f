"""Runs tables of calls: ``tables.py FOLDER TABLE [TABLE ...]``."""

import importlib
import sys
from pathlib import Path

from ranks import CASES
from record import run

for table in sys.argv[2:]:
    importlib.import_module(table)
run(CASES, Path(sys.argv[1]))
