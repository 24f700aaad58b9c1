"""Which node to ask, and how often to ask again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from ._transport import Late

_SHUN = 1.0  # seconds; a node that could not be reached is left alone for so long, then for twice as long, and so on
_SHUN_MOST = 30.0
_LOOK_AGAIN = 10.0  # how old the knowledge of who is in the cluster may be
_LOOK_SOON = 0.5  # the same after a node gave no answer


class Node:
    """One address of the service."""

    __slots__ = ("failures", "heard", "shunned", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.failures = 0  # in a row
        self.heard = 0.0  # when it answered last
        self.shunned = 0.0


def checked(address: str, *, secure: bool = False) -> str:
    """Return an address with its scheme, or raise ValueError that says what is wrong with it."""
    url = address if "://" in address else f"{'https' if secure else 'http'}://{address}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise ValueError(f"govnode: {address!r} is no address: {e}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"govnode: {address!r}: the scheme must be http or https")
    if not parts.hostname or (port is None and "://" not in address):
        raise ValueError(f"govnode: {address!r}: write host:port or http://host:port")
    if parts.username or parts.query or parts.fragment:
        raise ValueError(f"govnode: {address!r}: must have neither a user, nor a query, nor a fragment")
    return url.rstrip("/")


class Routes:
    """Knows the nodes, and which of them to ask: the one that leads if it is known and answers, else any that does."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._scheme = urlsplit(urls[0]).scheme
        self._nodes = {url: Node(url) for url in urls}
        self._configured = list(self._nodes)
        self._current = next(iter(self._nodes.values()))
        self._leader = ""
        self._look_at = 0.0

    def pick(self) -> Node:
        """Return the node to ask next."""
        return self._current

    def answered(self, node: Node, leader: str) -> None:
        """Note that a node answered, and who leads by what it says."""
        node.failures = 0
        node.heard = time.monotonic()
        if leader == self._leader and node is self._current:
            return
        with self._lock:
            named = self._node(leader) if leader else None
            if named is not None and time.monotonic() >= named.shunned:
                self._leader, self._current = leader, named

    def members(self, addresses: Sequence[str]) -> None:
        """Note who is in the cluster."""
        with self._lock:
            named = [self._node_of(url) for url in self._configured] + [self._node(a) for a in addresses]
            self._nodes = {node.url: node for node in [*named, self._current] if node is not None}

    def looks(self) -> bool:
        """Report whether the caller is to find out now who is in the cluster."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        with self._lock:
            due = now >= self._look_at
            self._look_at = now + _LOOK_AGAIN
            return due

    def lost(self, node: Node, sent: float, why: Exception) -> None:
        """Move on from a node that gave no answer. One that has answered others meanwhile is there, and busy."""
        self.failed(node, unreachable=not isinstance(why, Late) or node.heard < sent)

    def failed(self, node: Node, *, unreachable: bool) -> None:
        """Move on from a node that gave no answer, or that could not do what it was asked."""
        with self._lock:
            now = time.monotonic()
            if unreachable:
                node.shunned = now + min(_SHUN * 2**node.failures, _SHUN_MOST)
                node.failures = min(node.failures + 1, 10)
            self._look_at = min(self._look_at, now + _LOOK_SOON)
            if self._current is not node:
                return  # somebody else has moved on already
            ring = list(self._nodes.values())
            at = ring.index(node) + 1 if node in ring else 0
            others = [n for n in ring[at:] + ring[:at] if n is not node]
            self._current = next((n for n in others if now >= n.shunned), others[0] if others else node)
            self._leader = ""

    def _node(self, address: str) -> Node | None:
        try:
            url = checked(address if "://" in address else f"{self._scheme}://{address}")
        except ValueError:
            return None
        return self._node_of(url)

    def _node_of(self, url: str) -> Node:
        return self._nodes.get(url) or self._nodes.setdefault(url, Node(url))


class Budget:
    """Bounds what is sent again, so that a cluster in trouble is not buried by its clients.

    A bucket of 100 that starts full: each operation adds a tenth of a token, each second one, and each repetition
    takes one. The renewal of leases is outside of it.
    """

    _BURST, _RATIO, _PER_SECOND = 100.0, 0.1, 1.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = self._BURST
        self._at = time.monotonic()

    def earn(self) -> None:
        """Note that an operation was begun."""
        self._tokens = min(self._BURST, self._tokens + self._RATIO)

    def take(self) -> float:
        """Take a token and return 0, or return how long the next one needs."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._BURST, self._tokens + self._PER_SECOND * (now - self._at))
            self._at = now
            if self._tokens >= 1:
                self._tokens -= 1
                return 0.0
            return (1 - self._tokens) / self._PER_SECOND


def jitter(attempt: int) -> float:
    """Return a random part of a pause that doubles."""
    return random.random() * min(0.05 * (1 << min(attempt, 10)), 1.0)
