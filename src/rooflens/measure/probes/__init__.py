"""The probes themselves, in torch: import them only after ``require_torch``."""

from __future__ import annotations

from importlib.util import find_spec

from rooflens.errors import DependencyError


def require_torch() -> None:
    """Raise DependencyError naming the extra that brings torch, if it is not installed."""
    if find_spec("torch") is None:
        raise DependencyError(
            "measuring needs PyTorch, which is not installed",
            next="install it with: pip install 'rooflens[runtime]'",
        )
