"""Profilers: where the time and the memory of a run go, under the names that the prediction uses."""
