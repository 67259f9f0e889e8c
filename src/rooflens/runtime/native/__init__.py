"""Kernels in C for CPUs: weights in tiles, and a decode step as one call.

The sources are plain C, compiled by the system's compiler at first use (`build`) and loaded with ctypes
(`library`). `linear` holds weights so, `program` turns a model into the operators of a step, `step` runs it.
"""
