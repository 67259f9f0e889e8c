"""The engine: many requests through one model. A step reads: schedule, run, commit."""
