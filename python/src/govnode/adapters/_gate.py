"""One tool call's way from the hook of a framework to the service and back: what all adapters share.

    passage = gate.enter("shell", {"command": "ls"}, call_id="call-1", run="thread-1")
    if not passage.admitted:
        return passage.text  # for the model
    return passage.run(lambda: tool(passage.arguments))

Whatever happens before the tool runs is an answer for the model: no exception leaves ``enter`` but those that were
asked for (``on_denied="raise"``).
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import hashlib
import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import errors
from .._behind import abandoning, ending
from .._calls import Leases
from .._transport import run
from ..client import AsyncCall, AsyncSession, Session
from ..errors import Denied, LeaseLost, NoAnswer, Rejected

if TYPE_CHECKING:
    from .._core import Live
    from .._options import CallOptions

log = logging.getLogger("govnode")

T = TypeVar("T")
Sessions = Session | AsyncSession | Callable[[str], Session | AsyncSession]

_MOST_KEPT = 10_000  # ids of which it is known how often they passed, and conversations
_MOST_PASSES = 100  # of one id that other processes may have used up
_OF_AGENTS = ("agent", "handoff")  # kinds of calls that name an agent in the place of a tool
_LONGEST = 112  # of the service's 128 characters, so that there is room for the number of a pass

# What the frameworks know the calls by that are under way here: a hook that one call meets twice lets it through the
# second time. It is not the id: the model of an agent in an agent may give the same one to a call of its own.
_under_way: contextvars.ContextVar[tuple[object, ...]] = contextvars.ContextVar("govnode_under_way", default=())


class PolicyViolationError(errors.PolicyViolationError):
    """A call was denied, and the adapter was made with ``on_denied="raise"``."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(str(denied))
        self.denied = denied


class Killed(PolicyViolationError):
    """The session is killed: nothing is admitted in it any more, and its run ends."""


class _View(Leases):
    """A client as it is used from threads, or from event loops: with the same leases, keeper and name."""

    def __init__(self, core: Leases, on_loop: bool) -> None:
        self._of = core
        self._on_loop = on_loop
        self.config = core.config
        self._security = core._security

    @property
    def _live(self) -> Live:  # type: ignore[override]
        return self._of._live

    def live(self) -> Live:
        """Return what there is of the client in this process."""
        return self._of.live()


class _Ways:
    """A session as it is used from threads and from event loops."""

    def __init__(self, session: Session | AsyncSession) -> None:
        given = session._core if isinstance(session, Session) else session
        self.id = given.id
        self.threads = self._on(given, False)
        self.loop = self._on(given, True)
        self.killed: Denied | None = None

    @staticmethod
    def _on(given: AsyncSession, on_loop: bool) -> AsyncSession:
        session = copy.copy(given)
        session._core = _View(given._core, on_loop)
        return session


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
        self._passes: OrderedDict[str, int] = OrderedDict()
        self._interrupted: OrderedDict[str, AsyncCall] = OrderedDict()
        self._undecided: OrderedDict[str, list[str]] = OrderedDict()
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

        ``run_id`` is what makes its id unique: the model gives ids out anew. ``known_by`` is what the framework hands
        to each hook of this one call, where the same hook may be met twice.
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
            base = _named(f"{run_id or self._own_run()}/{call_id or self.draw()}")
            passage.base = base
            session = ways.loop if on_loop else ways.threads
            chosen = {**self._options, **(options or {})}
            name, asked = tool, arguments
            if chosen.get("kind") in _OF_AGENTS:
                # With a tool it would count as a call of that, and not by its kind.
                name, asked, passage.inside = "", {"agent": tool, "input": passage.arguments}, True
            passage.call = await self._begin(session, base, name, asked, chosen)
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
        tool: str,
        arguments: Mapping[str, Any] | str | None,
        options: dict[str, Any],
    ) -> AsyncCall:
        """Begin a call under its id, or, where that was used up, under the id of its next pass."""
        call: AsyncCall | None
        with self._lock:
            call = self._interrupted.get(base)
            if call is not None and call._body["tool"] == tool and call._given == arguments:
                del self._interrupted[base]
            else:
                call = None
        if call is not None and call.state in ("held", "at risk"):
            return call
        for _ in range(_MOST_PASSES):
            id = self._next(base)
            try:
                call = await session.begin(tool, arguments, **{**options, "call_id": id})
            except Rejected as e:
                if e.reason != "ID_REUSED":
                    raise
                continue
            except BaseException as e:
                if not isinstance(e, Exception) or isinstance(e, NoAnswer):
                    session._core.live().keeper.later(abandoning(session.id, id), 60.0)
                raise
            if call.outcome in ("APPROVAL_REQUIRED", "STOPPED"):
                self._again(base, id)
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

    def _next(self, base: str) -> str:
        with self._lock:
            if undecided := self._undecided.pop(base, None):
                id = undecided.pop()
                if undecided:
                    self._undecided[base] = undecided
                return id
            count = self._passes[base] = self._passes.get(base, 0) + 1
            self._passes.move_to_end(base)
            while len(self._passes) > _MOST_KEPT:
                self._passes.popitem(last=False)
        return base if count == 1 else f"{base}:{count}"

    def _again(self, base: str, id: str) -> None:
        """Note an id whose answer was not final: when the call comes once more it has that id."""
        with self._lock:
            self._undecided.setdefault(base, []).append(id)
            while len(self._undecided) > _MOST_KEPT:
                self._undecided.popitem(last=False)

    def _interrupt(self, base: str, call: AsyncCall) -> None:
        with self._lock:
            self._interrupted[base] = call
            while len(self._interrupted) > _MOST_KEPT:
                self._interrupted.popitem(last=False)


class Passage:
    """One call that came to the gate: admitted, or denied with a text for the model."""

    def __init__(self, gate: Gate, arguments: Mapping[str, Any] | str | None) -> None:
        self._gate = gate
        self._given = arguments
        self.ways: _Ways | None = None
        self.base = ""
        self.known_by: object = None
        self.call: AsyncCall | None = None
        self.denied: Denied | None = None
        #: Whether the session is killed, so that the run is to end.
        self.killed = False
        #: Whether this very call is under way already, and was met by a second hook.
        self.through = False
        #: Whether the service sees the arguments within others, beside the name of the agent.
        self.inside = False

    @property
    def admitted(self) -> bool:
        """Whether the tool may run."""
        return self.denied is None

    @property
    def text(self) -> str:
        """What the model is told."""
        return text_of(self.denied) if self.denied is not None else ""

    @property
    def changed(self) -> bool:
        """Whether a guardrail of the policy has changed the arguments."""
        return self.call is not None and self.call.answer.get("modifiedArguments") is not None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments to use."""
        if self.changed and self.call is not None:
            changed = self.call.arguments
            return dict(changed.get("input") or {}) if self.inside else changed
        given = json.loads(self._given) if isinstance(self._given, str) else self._given
        return dict(given or {})

    def run(
        self,
        work: Callable[[], T],
        *,
        failed: Callable[[T], bool] = lambda _: False,
        interrupts: tuple[type[BaseException], ...] = (),
    ) -> T:
        """Run the tool, and end its call as that ended. ``interrupts`` leave it open: the same call comes again."""
        token = _under_way.set((*_under_way.get(), self.known_by))
        try:
            result = work()
        except interrupts:
            self._interrupted()
            raise
        except BaseException as e:
            self.end("failed" if isinstance(e, Exception) else "cancelled")
            raise
        finally:
            _under_way.reset(token)
        self.end("failed" if failed(result) else "succeeded", result)
        return result

    async def arun(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        threaded: bool = False,
        failed: Callable[[T], bool] = lambda _: False,
        interrupts: tuple[type[BaseException], ...] = (),
    ) -> T:
        """Run the tool as ``run`` does.

        With ``threaded`` the tool is a synchronous one in a thread, which runs on when its task is cancelled: then the
        call ends with the thread.
        """
        token = _under_way.set((*_under_way.get(), self.known_by))
        try:
            result = await (self._outlasting(work) if threaded else work())
        except interrupts:
            self._interrupted()
            raise
        except Exception:
            await self.aend("failed")
            raise
        except BaseException:
            self.end_behind("cancelled")
            raise
        finally:
            _under_way.reset(token)
        await self.aend("failed" if failed(result) else "succeeded", result)
        return result

    async def _outlasting(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for a tool in a thread. If the wait is cancelled, the call ends when the tool has."""

        async def whole() -> T:
            return await work()

        task = asyncio.create_task(whole())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            call, self.call = self.call, None  # whoever catches this must not end it
            if call is not None:
                task.add_done_callback(lambda done: _end_with(call, done))
                _outlasting.add(task)
                task.add_done_callback(_outlasting.discard)
            raise

    def end(self, status: str, output: Any = None) -> None:
        """End the call. Only the first end counts."""
        if self.call is not None and self.ways is not None:
            self.call._core = self.ways.threads._core
            run(self._end(self.call, status, output))

    async def aend(self, status: str, output: Any = None) -> None:
        """End the call, as ``end`` does."""
        if self.call is not None and self.ways is not None:
            self.call._core = self.ways.loop._core
            await self._end(self.call, status, output)

    def end_behind(self, status: str) -> None:
        """End the call without waiting for that: where a task is being cancelled it could not."""
        call, self.call = self.call, None
        if call is not None:
            _end_behind(call, status)

    async def _end(self, call: AsyncCall, status: str, output: Any) -> None:
        try:
            await call.end(status, output=None if output is None else _text(output))
        except (NoAnswer, Rejected) as e:
            log.warning("govnode: the end of call %s is not known to have arrived: %s", call.id, e)
        except LeaseLost as e:
            log.warning("govnode: call %s had lost its slots when it ended: %s", call.id, e)
        signal = (call.ended.signal if call.ended is not None else None) or call.signal
        if signal is not None and signal.signal == "KILL" and self.ways is not None:
            self.ways.killed = Denied("SESSION_CLOSED", f"killed: {signal.reason}", signal=signal)

    def _interrupted(self) -> None:
        if self.call is not None:
            self._gate._interrupt(self.base, self.call)


_outlasting: set[asyncio.Task[Any]] = set()  # a loop keeps no hold of its tasks


def _end_with(call: AsyncCall, task: asyncio.Task[Any]) -> None:
    """End a call whose tool has ended; one of which that cannot be known any more is renewed no longer, and lapses."""
    if task.cancelled():
        if call._lease is not None and call._live.keeper.ended(call._lease):
            call._live.keeper.forget(call._lease)
        return
    task.exception()
    _end_behind(call, "cancelled")


def _end_behind(call: AsyncCall, status: str) -> None:
    lease, keeper = call._lease, call._live.keeper
    if lease is None:  # failed open: this asks nothing, it is noted for later
        run(cast("Coroutine[Any, Any, Any]", call._end(status, None, 0, None)))
        return
    if call._settled or call._elsewhere() or not keeper.ended(lease):
        return
    call._settled = True
    keeper.later(ending(call._session.end_body(call.id, status)), max(lease.ttl, 1.0))
    keeper.forget(lease)


def text_of(denied: Denied) -> str:
    """Return a refusal in words for a model."""
    text = f"Denied by govnode: {denied.reason or denied.outcome.lower()}"
    approval = denied.approval
    if approval is not None and approval.id and approval.id not in text:
        text += f" (approval {approval.id})"
    if denied.retry_after > 0:
        text += f" (try again after {denied.retry_after:.3g} s)"
    return text


def missing(framework: str, extra: str) -> ImportError:
    """Return the error of an adapter whose framework is not installed."""
    return ImportError(f"govnode: {framework} is not installed: pip install 'govnode[{extra}]'")


def _is_kill(denied: Denied) -> bool:
    return denied.outcome == "KILLED" or (denied.signal is not None and denied.signal.signal == "KILL")


def _named(id: str) -> str:
    """Return an id as the service takes it."""
    if len(id) <= _LONGEST and re.fullmatch(r"[A-Za-z0-9._:@/-]+", id):
        return id
    return "h:" + hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()


def _text(output: Any) -> str:
    try:
        return output if isinstance(output, str) else str(getattr(output, "content", output))
    except Exception:  # an output that cannot be shown is none for drift
        return type(output).__name__
