"""Conversations in the service: their messages as a list, their sessions as versioned values."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from agent_framework import AgentSession, HistoryProvider, Message, SessionStore

from ...client import AsyncClient, Client
from ...errors import Rejected
from .._gate import on_loop

MONTH = 30 * 24 * 3600.0
_MOST_OF_A_VALUE = 64 * 1024
_PART = 60 * 1024  # of a message, so that there is room for its number
_MOST_AT_ONCE = 128 * 1024  # in one request
_PAGE = 100


class Conflict(ValueError):
    """A session was changed by somebody else since it was read: read it again."""


class GovnodeHistory(HistoryProvider):
    """Keeps the messages of each AgentSession in the service, where the next process finds them.

    A history lasts ``ttl`` seconds beyond its last message, 30 days at most. What one run adds is there whole or not
    at all, up to 128 KiB. It holds 4 MiB: beyond that saving raises Rejected. Two runs of one session at the same time
    are not kept apart. The further arguments are those of HistoryProvider.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        source_id: str = "govnode",
        *,
        ttl: float = MONTH,
        prefix: str = "agent-framework/history/",
        **flags: Any,
    ) -> None:
        super().__init__(source_id, **flags)
        self._client = on_loop(client)
        self._ttl = ttl
        self._prefix = f"{prefix}{_name(source_id)}/"

    async def get_messages(self, session_id: str | None, *, state: Any = None, **unused: Any) -> list[Message]:
        """Return the messages of a session, the oldest first."""
        key, text = self._key(session_id), ""
        found: list[Message] = []
        at = 0
        while True:
            part = await self._client.range(key, at, _PAGE)
            for item in part.items:
                left, _, piece = item.value.partition(":")
                text += piece
                if left == "0":
                    found.append(Message.from_dict(json.loads(text)))
                    text = ""
            at += len(part.items)
            if not part.items or at >= part.length:
                return found

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: Any = None, **unused: Any
    ) -> None:
        """Put messages at the end. Raises Rejected where the list is full, and NoAnswer where that is not known."""
        key, length = self._key(session_id), None
        for items in _together(_parts(messages)):
            length = await self._client.append(key, items, ttl=self._ttl, if_length=length)

    async def delete(self, session_id: str) -> bool:
        """Remove what is kept of a session, and report whether there was anything."""
        return await self._client.delete_list(self._key(session_id))

    def _key(self, session_id: str | None) -> str:
        if not session_id:
            raise ValueError("GovnodeHistory: there is no session: run the agent with session=agent.create_session()")
        return self._prefix + _name(session_id)


class GovnodeSessionStore(SessionStore):
    """Keeps snapshots of sessions in the service for ``ttl`` seconds, 30 days at most.

    ``set`` raises Conflict where somebody else has written a session since this store returned it; one that was not
    read must be new. A snapshot has at most 64 KiB: keep messages in a ``GovnodeHistory``.
    """

    def __init__(
        self, client: Client | AsyncClient, *, ttl: float = MONTH, prefix: str = "agent-framework/sessions/"
    ) -> None:
        super().__init__()
        self._client = on_loop(client)
        self._ttl = ttl
        self._prefix = prefix
        self._versions: weakref.WeakKeyDictionary[AgentSession, dict[str, str]] = weakref.WeakKeyDictionary()

    async def get(self, session_id: str) -> AgentSession | None:
        """Return a session as it was kept, or None."""
        self.validate_session_id(session_id)
        found = await self._client.get(self._prefix + _name(session_id))
        if found is None:
            return None
        session = AgentSession.from_dict(json.loads(found.value))
        self._versions[session] = {session_id: found.version}
        return session

    async def set(self, session_id: str, session: AgentSession) -> None:
        """Keep a session."""
        self.validate_session_id(session_id)
        text = json.dumps(session.to_dict())
        if len(text) > _MOST_OF_A_VALUE:
            raise ValueError(
                f"GovnodeSessionStore: session {session_id!r} takes {len(text)} bytes of {_MOST_OF_A_VALUE}: "
                "keep its messages in a GovnodeHistory"
            )
        known = self._versions.get(session, {}).get(session_id, "0")
        try:
            version = await self._client.set(self._prefix + _name(session_id), text, ttl=self._ttl, if_version=known)
        except Rejected as e:
            if e.reason != "VERSION_CONFLICT":
                raise
            raise Conflict(f"session {session_id!r} was changed since it was read: get it again") from e
        self._versions.setdefault(session, {})[session_id] = version

    async def delete(self, session_id: str) -> None:
        """Remove a session, whoever has changed it."""
        self.validate_session_id(session_id)
        await self._client.delete(self._prefix + _name(session_id))


def _parts(messages: Sequence[Message]) -> Iterator[str]:
    """Give messages as items of a list: how many are left of a message, and a piece of it."""
    for message in messages:
        text = json.dumps(message.to_dict())
        pieces = [text[i : i + _PART] for i in range(0, len(text), _PART)]
        for i, piece in enumerate(pieces):
            yield f"{len(pieces) - 1 - i}:{piece}"


def _together(items: Iterator[str]) -> Iterator[list[str]]:
    """Give items as they go into one request."""
    batch, size = list[str](), 0
    for item in items:
        if batch and (size + len(item) > _MOST_AT_ONCE or len(batch) == _PAGE):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item)
    if batch:
        yield batch


def _name(id: str) -> str:
    """Return an id as a part of a key: any text, none like another's."""
    name = urllib.parse.quote(id, safe="")
    return name if len(name) <= 128 else "~" + hashlib.sha256(id.encode()).hexdigest()
