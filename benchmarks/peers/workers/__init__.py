"""One module per engine; each runs in that engine's own environment."""
