"""The modules a decoder is built from; each holds its weights and asks the kernels to compute."""
