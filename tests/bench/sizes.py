"""How much a run of the figures does: all of it, or so little that only its code is tried."""

from typing import Final

import msgspec


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of everything that is done more than once."""

    starts: int = 7
    requests: int = 300
    seconds: float = 10.0
    rounds: int = 3
    clients: int = 16
    closed_loops: tuple[int, ...] = (1, 16, 64)
    logged: int = 100_000
    listed: int = 1_000
    events: tuple[int, ...] = (100, 10_000, 1_000_000)
    conversations: tuple[int, ...] = (10, 1_000, 100_000)
    page: int = 20
    batch: int = 10
    """Events of one report."""
    event_bytes: int = 300
    writers: int = 8
    streams: int = 1_000
    events_per_second: int = 100
    idle: int = 20
    idle_seconds: float = 60.0
    rested: int = 200
    frozen: int = 60
    wakes: int = 50
    conversation_starts: int = 9
    starts_at_once: int = 16
    agents: int = 7
    agents_at_once: int = 16


FULL: Final = Sizes()
SMALL: Final = Sizes(
    starts=1,
    requests=3,
    seconds=0.2,
    rounds=1,
    clients=2,
    closed_loops=(1, 2),
    logged=100,
    listed=20,
    events=(10, 30),
    conversations=(3, 6),
    page=3,
    writers=2,
    streams=2,
    events_per_second=20,
    idle=1,
    idle_seconds=0.2,
    rested=2,
    frozen=1,
    wakes=2,
    conversation_starts=1,
    starts_at_once=1,
    agents=1,
    agents_at_once=2,
)
