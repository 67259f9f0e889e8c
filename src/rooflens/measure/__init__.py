"""Measuring: a timer and its statistics, the probe of this device's real roofline, and its records.

Nothing here imports torch until a probe runs.
"""
