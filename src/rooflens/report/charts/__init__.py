"""Charts: one Altair specification each, for files, notebooks and the page alike (extra ``plot``)."""
