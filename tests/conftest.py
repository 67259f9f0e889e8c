"""Tests look up no prices on the network: gpuhunt reads the catalogues that come with the tests."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("GPUHUNT_CATALOG_DIR", str(Path(__file__).parent / "data" / "prices"))
