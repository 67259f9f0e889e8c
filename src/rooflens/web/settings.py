"""What the page's server allows: where it listens, what it may fetch, and how much work one visitor is."""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.units import MIB
from rooflens.web.loopback import is_loopback


@dataclass(frozen=True)
class WebSettings:
    """Limits of one server. Seconds and bytes; counts are of what one request may ask for.

    ``allow_hub`` lets model ids be looked up on the Hub (metadata only). ``workers`` threads compute;
    ``most_waiting`` requests may wait for them, further ones are refused at once.
    """

    host: str = "127.0.0.1"
    port: int = 8710
    allow_hub: bool = False
    workers: int = 2
    most_waiting: int = 1000
    most_body_bytes: int = 2 * MIB
    body_timeout_s: float = 10.0
    answer_timeout_s: float = 30.0
    most_points: int = 4096
    most_cells: int = 24

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)
