"""Ids that the service knows the age of, those that are remembered here, and the name of a process."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator, MutableSet

MOST_KEPT = 10_000  # ids that are remembered
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# How far ahead of its own clock a client makes ids: as far as the nodes take them.
_MOST_AHEAD = 3600_000


class Ids:
    """Draws ULIDs whose time never falls: that of the clock, or just above what the service has forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._least = 0
        self._tail = int.from_bytes(os.urandom(10), "big") >> 1

    def draw(self) -> str:
        """Return a new id."""
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._least:
                self._least = now
                self._tail = int.from_bytes(os.urandom(10), "big") >> 1  # half of the room is left to count in
            else:
                self._tail += 1
            n = self._least << 80 | self._tail
        return "".join([_DIGITS[n >> shift & 31] for shift in range(125, -1, -5)])

    def raise_to(self, newer_than: int) -> None:
        """Make ids newer than a time in Unix milliseconds, unless that is too far ahead of the clock."""
        now = time.time_ns() // 1_000_000
        if newer_than - now >= _MOST_AHEAD:
            raise ValueError(
                f"the service takes ids only that are newer than {newer_than} (Unix ms), and the clock here says "
                f"{now}: set this clock right if it is behind; else an operator has to repair the namespace "
                "(govnode repair)"
            )
        with self._lock:
            self._least = max(self._least, newer_than + 1)


class Latest(MutableSet[str]):
    """The ids that were added last: the oldest are forgotten, lest they become ever more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, None] = {}  # the oldest first

    def __contains__(self, id: object) -> bool:
        return id in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, id: str) -> None:
        """Remember an id."""
        with self._lock:
            self._all.pop(id, None)
            self._all[id] = None
            while len(self._all) > MOST_KEPT:
                del self._all[next(iter(self._all))]

    def discard(self, id: str) -> None:
        """Forget an id."""
        with self._lock:
            self._all.pop(id, None)


def process_name(ids: Ids) -> str:
    """Name this process: for those who look at the holders of a pool, and with a part that no other one draws."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64]
    return f"{host}:{os.getpid()}:{ids.draw()}"
