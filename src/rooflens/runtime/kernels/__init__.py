"""What the model calls to compute: one small interface, an eager reference, and faster sets per device."""

from rooflens.runtime.kernels.base import AttentionSettings, Kernels, PackedLinear
from rooflens.runtime.kernels.select import kernels_for

__all__ = ["AttentionSettings", "Kernels", "PackedLinear", "kernels_for"]
