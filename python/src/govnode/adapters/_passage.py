"""One call on its way through a gate: what it may do, and how it ends."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .._behind import ending
from .._calls import Leases
from .._review import text_of as _text
from .._transport import run
from ..client import AsyncCall, AsyncClient, AsyncSession, Client, Session
from ..errors import Denied, LeaseLost, NoAnswer, Rejected

if TYPE_CHECKING:
    from .._core import Live
    from ._gate import Gate

log = logging.getLogger("govnode")

T = TypeVar("T")


def _as_it_is(result: Any) -> Any:
    return result


def _alone(result: Any, shown: Any) -> Any:
    return shown


# What the frameworks know the calls by that are under way here: a hook that one call meets twice lets it through the
# second time. It is not the id: the model of an agent in an agent may give the same one to a call of its own.
_under_way: contextvars.ContextVar[tuple[object, ...]] = contextvars.ContextVar("govnode_under_way", default=())


class _View(Leases):
    """A client as it is used from threads, or from event loops: with the same leases, keeper and name."""

    def __init__(self, core: Leases, on_loop: bool) -> None:
        self._of = core
        self._on_loop = on_loop
        self.config = core.config

    @property
    def _live(self) -> Live:  # type: ignore[override]
        return self._of._live

    def live(self) -> Live:
        """Return what there is of the client in this process."""
        return self._of.live()


def on_loop(client: Client | AsyncClient) -> Leases:
    """Return a client as it is used from event loops."""
    return _View(client._core if isinstance(client, Client) else client, True)


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
        #: What is to be shown in place of what the tool returned, once its call is ended; None for that itself.
        self.shown: Any = None

    @property
    def reviews(self) -> bool:
        """Whether rules look at what the tool returns, so that nobody may see of it before the call is ended."""
        return self.call is not None and self.call.reviews

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

    def refuse_unfit(self, *, changes: bool = False, shows: bool = False) -> str:
        """Deny a call of a caller who cannot do what it wants, give it back, and return why; empty if it may be made.

        ``changes`` is whether changed arguments can be handed to what runs, ``shows`` whether what that returns can be
        shown to rules, and what they leave of it in its place.
        """
        why = ""
        if self.changed and not changes:
            why = "a guardrail has changed the arguments, which cannot be changed here"
        elif self.reviews and not shows:
            why = "rules look at what it returns, which cannot be shown to them here"
        if why:
            self.refuse(why)
        return why

    def refuse(self, why: str) -> None:
        """Deny a call that was admitted and is not made, and give it back."""
        self.end_behind("cancelled")
        self.denied = Denied("ADAPTER_ERROR", why)

    def run(
        self,
        work: Callable[[], T],
        *,
        failed: Callable[[T], bool] = lambda _: False,
        interrupts: tuple[type[BaseException], ...] = (),
        seen: Callable[[T], Any] = _as_it_is,
        told: Callable[[T, Any], Any] = _alone,
    ) -> T:
        """Run the tool, and end its call as that ended. ``interrupts`` leave it open: the same call comes again.

        Raises Denied for a call that was not admitted.

        ``seen`` returns what the framework shows a model of a result, all of it and no more: that is what rules judge.
        ``told`` makes a result of what they leave, of which a model sees nothing else.
        """
        self._require_admitted()
        token = _under_way.set((*_under_way.get(), self.known_by))
        try:
            result = work()
            output = self.output(seen, result)
        except interrupts:
            self._interrupted()
            raise
        except BaseException as e:
            self.fail(e)
            raise
        finally:
            _under_way.reset(token)
        self.end("failed" if failed(result) else "succeeded", output)
        return result if self.shown is None else cast("T", told(result, self.shown))

    async def arun(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        threaded: bool = False,
        failed: Callable[[T], bool] = lambda _: False,
        interrupts: tuple[type[BaseException], ...] = (),
        seen: Callable[[T], Any] = _as_it_is,
        told: Callable[[T, Any], Any] = _alone,
    ) -> T:
        """Run the tool as ``run`` does.

        With ``threaded`` the tool is a synchronous one in a thread, which runs on when its task is cancelled: then the
        call ends with the thread.
        """
        self._require_admitted()
        token = _under_way.set((*_under_way.get(), self.known_by))
        try:
            result = await (self._outlasting(work) if threaded else work())
            output = self.output(seen, result)
        except interrupts:
            self._interrupted()
            raise
        except Exception as e:
            await self.afail(e)
            raise
        except BaseException:
            self.end_behind("cancelled")
            raise
        finally:
            _under_way.reset(token)
        await self.aend("failed" if failed(result) else "succeeded", output)
        return result if self.shown is None else cast("T", told(result, self.shown))

    def _require_admitted(self) -> None:
        if self.denied is not None:
            raise self.denied

    def fail(self, error: BaseException) -> None:
        """End the call of a tool that raised an error. Raises what may be shown of that, if it is not the error."""
        self.end("failed" if isinstance(error, Exception) else "cancelled", self._error_of(error))
        self._raise_shown(error)

    async def afail(self, error: BaseException) -> None:
        """End the call, as ``fail`` does."""
        await self.aend("failed" if isinstance(error, Exception) else "cancelled", self._error_of(error))
        self._raise_shown(error)

    def output(self, seen: Callable[[T], Any], result: T) -> Any:
        """Return what a model would see, where anybody looks at it. Raises where rules do and it cannot be told."""
        if self.call is None or not self.call._wants_output:
            return None
        try:
            return seen(result)
        except Exception:
            if self.reviews:
                raise
            return None

    def _error_of(self, error: BaseException) -> str | None:
        """Return the text of an error where rules look at it: to them it is what the tool returned."""
        return _text(error) or None if self.reviews and isinstance(error, Exception) else None

    def _raise_shown(self, error: BaseException) -> None:
        """Raise what may be shown of an error, where that is not the error itself."""
        if self.shown is None:
            return
        text = str(self.shown)
        try:
            allowed = type(error)(text)
        except Exception:
            allowed = RuntimeError(text)
        raise (allowed if str(allowed) == text else RuntimeError(text)) from None

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
        if output is not None and not call.reviews:
            output = _text(output) if call._wants_output else None
        try:
            await call.end(status, output=output)
        except (NoAnswer, Rejected) as e:
            log.warning("govnode: the end of call %s is not known to have arrived: %s", call.id, e)
        except LeaseLost as e:
            log.warning("govnode: call %s had lost its slots when it ended: %s", call.id, e)
        except Exception:  # the tool has run: what may be shown of it is said below
            log.exception("govnode: call %s did not end as it should", call.id)
        self.shown = call._left()
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
        run(cast("Coroutine[Any, Any, Any]", call._end(status, None, None, None)))
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
