"""Suites that others wrote: each module has `prepare(options) -> Suite` (table.py)."""

import sys
from pathlib import Path

# They start programs and MPIs as our own tests do.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))
