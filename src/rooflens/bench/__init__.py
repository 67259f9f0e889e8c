"""Measured runs of the native runtime: one prompt with its profile, and grids of many."""
