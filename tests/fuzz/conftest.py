"""Fuzzing of the readers. ROOFLENS_FUZZ_EXAMPLES sets the examples per test; the default takes seconds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # the builders of small files

settings.register_profile(
    "rooflens-fuzz",
    max_examples=int(os.environ.get("ROOFLENS_FUZZ_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("rooflens-fuzz")
