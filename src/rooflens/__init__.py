"""Rooflens: how fast could a language model go, how fast does it go, and what is in the way."""

__version__ = "0.1.0"
