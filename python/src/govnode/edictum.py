"""Edictum's counters in the service: its guard counts once for a whole fleet.

    from edictum import Edictum
    from govnode.edictum import GovnodeStorage

    guard = Edictum.from_yaml("rules.yaml", backend=GovnodeStorage(client))

Agents that are to share limits run under one ``session_id``. Edictum itself needs no change: this is a backend of its
kind, and so is its own ``ServerBackend`` with the address of a node (see docs/edictum.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from .adapters._gate import on_loop
from .client import AsyncClient, Client
from .errors import Rejected


class GovnodeStorage:
    """A ``StorageBackend`` of Edictum.

    What has no answer is an exception, which Edictum takes for a denial. An increment is repeated under one id, so it
    counts once whatever is lost on the way; where that is not known, Unknown is raised.
    """

    def __init__(self, client: Client | AsyncClient, *, prefix: str = "") -> None:
        self._client = on_loop(client)
        self._prefix = prefix

    async def get(self, key: str) -> str | None:
        """Return the value of a key, or None."""
        found = await self._client.get(self._prefix + key)
        return found.value if found is not None else None

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        """Set a key to a text, for ``ttl`` seconds where that is given."""
        await self._client.set(self._prefix + key, value, ttl=ttl)

    async def delete(self, key: str) -> None:
        """Remove a key."""
        await self._client.delete(self._prefix + key)

    async def increment(self, key: str, amount: float = 1) -> float:
        """Add to a counter, and return the sum. Raises ValueError where the key holds a text."""
        try:
            return float(await self._client.increment(self._prefix + key, amount))
        except Rejected as e:
            if e.reason == "NOT_A_NUMBER":
                raise ValueError(f"{key} holds a text, to which nothing can be added") from e
            raise

    async def batch_get(self, keys: Iterable[str]) -> dict[str, str | None]:
        """Return the values of keys as they stood at one instant; None for those that have none."""
        wanted = list(keys)
        found = await self._client.get_many([self._prefix + k for k in wanted]) if wanted else {}
        return {k: found[self._prefix + k].value if self._prefix + k in found else None for k in wanted}
