"""The interactive page and its API: the same answers as the command line, over HTTP on this machine."""
