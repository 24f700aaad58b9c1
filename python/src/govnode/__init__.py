"""Limits, policies and slots that a whole fleet of agents shares: the Python client of govnode.

client = govnode.Client("127.0.0.1:7070")
session = client.session("s1", agent="writer", policy="careful")
with session.call("shell", {"command": "ls"}) as call:  # raises Denied
    call.output = run(call.arguments)
"""

from __future__ import annotations

from . import errors, messages
from .client import AsyncCall, AsyncClient, AsyncSession, AsyncSlot, Call, Client, Session, Slot
from .errors import Denied, Error, LeaseLost, NoAnswer, PermissionDenied, Rejected, Unauthenticated, Unknown

__all__ = [
    "AsyncCall",
    "AsyncClient",
    "AsyncSession",
    "AsyncSlot",
    "Call",
    "Client",
    "Denied",
    "Error",
    "LeaseLost",
    "NoAnswer",
    "PermissionDenied",
    "Rejected",
    "Session",
    "Slot",
    "Unauthenticated",
    "Unknown",
    "errors",
    "messages",
]
