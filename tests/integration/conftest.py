"""What tests of commands share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small checkpoint on disk, as a command is given it."""
    from tiny_checkpoint import write_checkpoint

    return str(write_checkpoint(tmp_path_factory.mktemp("models") / "tiny"))
