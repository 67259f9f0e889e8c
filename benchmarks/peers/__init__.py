"""Rooflens's runtime against the engines people use: same shapes, same machine, interleaved rounds."""
