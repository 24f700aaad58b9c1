"""One tool call's way from the hook of a framework to the service and back: what all adapters share.

    passage = gate.enter("shell", {"command": "ls"}, call_id="call-1", run="thread-1")
    if not passage.admitted:
        return passage.text  # for the model
    return passage.run(lambda: tool(passage.arguments))

Whatever happens before the tool runs is an answer for the model: no exception leaves ``enter`` but those that were
asked for (``on_denied="raise"``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .. import errors, messages
from .._behind import abandoning
from .._transport import run
from ..client import AsyncCall, AsyncSession, Session
from ..errors import Denied, NoAnswer, Rejected
from ._passage import Passage, _under_way, _Ways, on_loop, text_of

if TYPE_CHECKING:
    from .._options import CallOptions

__all__ = ["Gate", "Killed", "Passage", "PolicyViolationError", "Sessions", "missing", "on_loop", "text_of"]

log = logging.getLogger("govnode")

Sessions = Session | AsyncSession | Callable[[str], Session | AsyncSession]

K = TypeVar("K")
_Place = tuple[str, str]  # a session, and the id of a call in it

_MOST_KEPT = 10_000  # ids of which it is known how often they passed, and conversations
_MOST_PASSES = 100  # of one id that other processes may have used up
_OF_AGENTS = ("agent", "handoff")  # kinds of calls that name an agent in the place of a tool
_LONGEST = 112  # of the service's 128 characters, so that there is room for the number of a pass


class PolicyViolationError(errors.PolicyViolationError):
    """A call was denied, and the adapter was made with ``on_denied="raise"``."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(str(denied))
        self.denied = denied


class Killed(PolicyViolationError):
    """The session is killed: nothing is admitted in it any more, and its run ends."""


class Gate:
    """What a framework's hook asks.

    ``session`` is one of a Client or an AsyncClient (both serve sync and async hooks), or a function that returns the
    session of a conversation by its name. ``wait`` is for slots and rates and for the end of a STOP, ``approval_wait``
    for people: with 0 a call that they are asked about is denied at once, and its text names the approval.
    ``on_denied="raise"`` raises PolicyViolationError in place of telling the model. ``options`` are further ones of
    ``Session.call``, for all calls.
    """

    def __init__(
        self,
        session: Sessions,
        *,
        wait: float = 10.0,
        approval_wait: float = 0.0,
        on_denied: str = "tell",
        options: CallOptions | None = None,
    ) -> None:
        if on_denied not in ("tell", "raise"):
            raise ValueError(f'govnode: on_denied: {on_denied!r} is neither "tell" nor "raise"')
        if wait < 0 or approval_wait < 0:
            raise ValueError("govnode: wait and approval_wait must not be below 0")
        self.on_denied = on_denied
        self._session_of = session if callable(session) else None
        self._ways: OrderedDict[str, _Ways] = OrderedDict()
        if not callable(session):
            self._ways[""] = _Ways(session)
        self._options: dict[str, Any] = {**(options or {}), "wait": wait, "approval_wait": approval_wait}
        self._lock = threading.Lock()
        # By session and id: the calls of one session are none of another, where a model gives out the same id.
        self._passes: OrderedDict[_Place, int] = OrderedDict()
        self._interrupted: OrderedDict[_Place, AsyncCall] = OrderedDict()
        self._undecided: OrderedDict[_Place, list[str]] = OrderedDict()  # ids that come again, the first asked first
        self._nameless: OrderedDict[str, list[str]] = OrderedDict()  # what those are of that a framework gives no id
        #: The prefix of calls whose framework does not name its run.
        self.run = ""

    # For hooks.

    def enter(
        self,
        tool: str,
        arguments: Mapping[str, Any] | str | None,
        *,
        call_id: str = "",
        run_id: str = "",
        conversation: str = "",
        known_by: object = None,
        options: CallOptions | None = None,
    ) -> Passage:
        """Ask whether a call may be made. One of the kind ``agent`` or ``handoff`` names an agent in place of a tool.

        ``run_id`` is what makes its id unique: the model gives ids out anew. A call without an id that waits for people
        and is made again, with the same arguments, is the same call. ``known_by`` is what the framework hands to each
        hook of this one call, where the same hook may be met twice.
        """
        return run(self._enter(False, tool, arguments, call_id, run_id, conversation, known_by, options))

    async def aenter(
        self,
        tool: str,
        arguments: Mapping[str, Any] | str | None,
        *,
        call_id: str = "",
        run_id: str = "",
        conversation: str = "",
        known_by: object = None,
        options: CallOptions | None = None,
    ) -> Passage:
        """Ask as ``enter`` does."""
        return await self._enter(True, tool, arguments, call_id, run_id, conversation, known_by, options)

    def killed(self, conversation: str = "") -> Denied | None:
        """Return what a killed session answered to its last call: a run of it ends at its next hook."""
        with self._lock:
            ways = self._ways.get(conversation if self._session_of else "")
        return ways.killed if ways else None

    async def ascan(self, text: str, *, kind: str, conversation: str = "") -> messages.Scan:
        """Have a text looked at by the policy of a session."""
        return await self._of(conversation).loop.scan(text, kind=kind)

    def draw(self) -> str:
        """Return a name for a run whose framework gives it none."""
        from .._ids import Ids

        return Ids().draw()

    # The way through.

    async def _enter(
        self,
        on_loop: bool,
        tool: str,
        arguments: Mapping[str, Any] | str | None,
        call_id: str,
        run_id: str,
        conversation: str,
        known_by: object,
        options: CallOptions | None,
    ) -> Passage:
        passage = Passage(self, arguments)
        if known_by is not None and any(known_by is x for x in _under_way.get()):
            passage.through = True
            return passage
        passage.known_by = known_by
        try:
            ways = passage.ways = self._of(conversation)
            key = "" if call_id else _key(conversation, run_id, tool, arguments, options)
            base = self._known(key) or _named(f"{run_id or self._own_run()}/{call_id or self.draw()}")
            passage.base = base
            session = ways.loop if on_loop else ways.threads
            chosen = {**self._options, **(options or {})}
            name, asked = tool, arguments
            if chosen.get("kind") in _OF_AGENTS:
                # With a tool it would count as a call of that, and not by its kind.
                name, asked, passage.inside = "", {"agent": tool, "input": passage.arguments}, True
            passage.call = await self._begin(session, base, key, name, asked, chosen)
            if not passage.call.admitted:
                passage.denied = passage.call.denied()
        except Denied as e:
            passage.denied = e
        except Rejected as e:
            passage.denied = Denied(e.reason or "REJECTED", e.message)
        except Exception as e:
            log.exception("govnode: %s is denied: the adapter failed", tool)
            passage.denied = Denied("ADAPTER_ERROR", f"no decision: {type(e).__name__}: {e}")
        denied = passage.denied
        if denied is not None:
            if _is_kill(denied):
                passage.killed = True
                if passage.ways is not None:
                    passage.ways.killed = denied
            if self.on_denied == "raise":
                raise Killed(denied) if passage.killed else PolicyViolationError(denied)
        return passage

    async def _begin(
        self,
        session: AsyncSession,
        base: str,
        key: str,
        tool: str,
        arguments: Mapping[str, Any] | str | None,
        options: dict[str, Any],
    ) -> AsyncCall:
        """Begin a call under its id, or, where that was used up, under the id of its next pass."""
        call: AsyncCall | None
        place = session.id, base
        with self._lock:
            call = self._interrupted.get(place)
            if call is not None and call._body["tool"] == tool and call._given == arguments:
                del self._interrupted[place]
            else:
                call = None
        if call is not None and call.state in ("held", "at risk"):
            return call
        for _ in range(_MOST_PASSES):
            id, asked = self._next(place)
            try:
                call = await session.begin(tool, arguments, **{**options, "call_id": id})
            except BaseException as e:
                if isinstance(e, Rejected) and e.reason == "ID_REUSED":
                    continue
                if isinstance(e, Exception) and (asked or (isinstance(e, NoAnswer) and e.pending)):
                    self._again(place, id, key)  # people may say yes meanwhile
                elif not isinstance(e, Exception) or isinstance(e, NoAnswer):
                    within = session._core.config.attempt_timeout + options.get("wait", 10.0)
                    session._core._live.keeper.later(  # also where the client was closed meanwhile
                        abandoning(session.known({"sessionId": session.id, "callId": id}), within), 60.0
                    )
                raise
            if call.outcome in ("APPROVAL_REQUIRED", "STOPPED"):
                self._again(place, id, key)
            if call.outcome not in ("ALREADY_ENDED", "LEASE_LOST"):
                return call
        raise Denied("ID_REUSED", f"call {base} has passed {_MOST_PASSES} times")

    def _of(self, conversation: str) -> _Ways:
        key = conversation if self._session_of else ""
        with self._lock:
            ways = self._ways.get(key)
        if ways is None:
            assert self._session_of is not None
            ways = _Ways(self._session_of(conversation))
            with self._lock:
                ways = self._ways.setdefault(key, ways)
                while len(self._ways) > _MOST_KEPT:
                    self._ways.popitem(last=False)
        return ways

    def _own_run(self) -> str:
        with self._lock:
            self.run = self.run or self.draw()
            return self.run

    def _known(self, key: str) -> str:
        """Return under what an equal call waits that has no id of its own; empty if none does."""
        with self._lock:
            return _taken(self._nameless, key)

    def _next(self, place: _Place) -> tuple[str, bool]:
        """Return the next id of a call, and whether it was asked about under that before."""
        with self._lock:
            if undecided := _taken(self._undecided, place):
                return undecided, True
            count = self._passes[place] = self._passes.get(place, 0) + 1
            self._passes.move_to_end(place)
            while len(self._passes) > _MOST_KEPT:
                self._passes.popitem(last=False)
        _, base = place
        return base if count == 1 else f"{base}:{count}", False

    def _again(self, place: _Place, id: str, key: str) -> None:
        """Note an id whose answer was not final: when the call comes once more it has that id."""
        with self._lock:
            _put(self._undecided, place, id)
            if key:
                _, base = place
                _put(self._nameless, key, base)

    def _interrupt(self, base: str, call: AsyncCall) -> None:
        with self._lock:
            self._interrupted[call.session_id, base] = call
            while len(self._interrupted) > _MOST_KEPT:
                self._interrupted.popitem(last=False)


def missing(framework: str, extra: str) -> ImportError:
    """Return the error of an adapter whose framework is not installed."""
    return ImportError(f"govnode: {framework} is not installed: pip install 'govnode[{extra}]'")


def _key(*call: Any) -> str:
    """Return what equal calls have in common; empty for one that cannot be compared."""
    try:
        return hashlib.sha256(json.dumps(call, sort_keys=True, default=str).encode()).hexdigest()
    except (TypeError, ValueError):
        return ""


def _put(waiting: OrderedDict[K, list[str]], key: K, id: str) -> None:
    waiting.setdefault(key, []).append(id)
    while len(waiting) > _MOST_KEPT:
        waiting.popitem(last=False)


def _taken(waiting: OrderedDict[K, list[str]], key: K) -> str:
    """Take the id that has waited longest: each is for one caller alone, so that one yes is one call."""
    ids = waiting.get(key, [])
    id = ids.pop(0) if ids else ""
    if not ids:
        waiting.pop(key, None)
    return id


def _is_kill(denied: Denied) -> bool:
    return denied.outcome == "KILLED" or (denied.signal is not None and denied.signal.signal == "KILL")


def _named(id: str) -> str:
    """Return an id as the service takes it."""
    if len(id) <= _LONGEST and re.fullmatch(r"[A-Za-z0-9._:@/-]+", id):
        return id
    return "h:" + hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()
