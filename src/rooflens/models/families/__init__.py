"""One adapter per model family: a config in, a ModelSpec out. Unknown families are refused by name."""
