"""Elementwise helpers that work on plain numbers and on numpy arrays alike.

numpy is imported only when an array is seen: a single plan never needs it.
"""

from __future__ import annotations

from typing import Any

# A number or a numpy array of numbers; arrays of one call broadcast against each other.
Quantity = Any

_SCALARS = (int, float)


def minimum(a: Quantity, b: Quantity) -> Quantity:
    """The smaller of two quantities, elementwise."""
    if isinstance(a, _SCALARS) and isinstance(b, _SCALARS):
        return a if a <= b else b
    import numpy as np

    return np.minimum(a, b)


def maximum(a: Quantity, b: Quantity) -> Quantity:
    """The larger of two quantities, elementwise."""
    if isinstance(a, _SCALARS) and isinstance(b, _SCALARS):
        return a if a >= b else b
    import numpy as np

    return np.maximum(a, b)


def where_positive(condition: Quantity, value: Quantity) -> Quantity:
    """``value`` where ``condition`` is above zero, else 0, elementwise."""
    if isinstance(condition, _SCALARS):
        return value if condition > 0 else 0 * value
    import numpy as np

    return np.where(np.asarray(condition) > 0, value, 0)


def ceil_div(a: Quantity, b: int) -> Quantity:
    """a / b rounded up, elementwise, exact for integers."""
    return -(-a // b)
