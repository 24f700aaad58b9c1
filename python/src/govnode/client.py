"""The clients: ``Client`` for threads, and ``AsyncClient`` for event loops. Both do the same.

    client = govnode.Client("127.0.0.1:7070")
    session = client.session("s1", agent="writer", policy="careful")
    with session.call("shell", {"command": "ls"}) as call:
        call.output = run(call.arguments)
    with client.slot("gpu", wait=10):
        ...

A client decides nothing: the service does, and without its answer there is no admission.
"""

from __future__ import annotations

import atexit
import functools
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from . import messages
from ._behind import void
from ._calls import HeldCall, HeldSlot, LazySession, Leases
from ._core import Config
from ._credentials import Token
from ._operations import Operations
from ._options import CallOptions, SlotOptions
from ._transport import run
from .errors import LeaseLost

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Sequence

    from typing_extensions import Self, Unpack

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound="Call | Slot")
A = TypeVar("A", bound="AsyncCall | AsyncSlot")


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a method of a sync class that does what an async one does."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run(method(self._core, *args, **kwargs))

    return call


class Call(HeldCall):
    """A call that was begun, or refused: see ``admitted``. One that was admitted must be ended."""

    def end(
        self,
        status: str | None = None,
        *,
        output: Any = None,
        tokens: int | None = None,
        spent: Mapping[str, str | int | float | Decimal] | None = None,
    ) -> messages.Ended | None:
        """Report how the call ended (succeeded, failed or cancelled), and free its slots. Only the first end counts.

        Raises LeaseLost if the lease ran out before: the service has then settled the call as executed, with an
        unknown result. Raises Unknown or NoAnswer where no node answers; it is tried further then, in the background.
        """
        return run(self._end(status, output, tokens, spent))


class AsyncCall(HeldCall):
    """A call that was begun, or refused: see ``admitted``. One that was admitted must be ended."""

    async def end(
        self,
        status: str | None = None,
        *,
        output: Any = None,
        tokens: int | None = None,
        spent: Mapping[str, str | int | float | Decimal] | None = None,
    ) -> messages.Ended | None:
        """Report how the call ended, as ``Call.end`` does."""
        return await self._end(status, output, tokens, spent)


class Slot(HeldSlot):
    """A share of a pool, held under a lease. It must be released."""

    def release(self) -> None:
        """Give the slot back. Once or several times makes no difference. Raises LeaseLost if it was no longer held."""
        run(self._release())


class AsyncSlot(HeldSlot):
    """A share of a pool, held under a lease. It must be released."""

    async def release(self) -> None:
        """Give the slot back, as ``Slot.release`` does."""
        await self._release()


class Block(Generic[H]):
    """A ``with`` block in which a call or a slot is held. It raises Denied where it may not be entered."""

    def __init__(self, enter: Callable[[], Coroutine[Any, Any, H]]) -> None:
        self._enter = enter
        self._held: H | None = None

    def __enter__(self) -> H:
        held = self._held = run(self._enter())
        if not held.admitted:
            raise held.denied()
        return held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held is not None:
            run(self._held._leave(kind))


def _refuse_cancel(options: CallOptions | SlotOptions) -> None:
    if options.get("cancel_on_lost"):
        raise ValueError("govnode: cancel_on_lost: a thread cannot be cancelled: use on_lost, or check() in the block")


class AsyncBlock(Generic[A]):
    """An ``async with`` block in which a call or a slot is held. It raises Denied where it may not be entered."""

    def __init__(self, enter: Callable[[], Coroutine[Any, Any, A]], cancels: bool) -> None:
        self._enter = enter
        self._cancels = cancels
        self._held: A | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    async def __aenter__(self) -> A:
        held = await self._enter()
        if not held.admitted:
            raise held.denied()
        self._held = held
        if self._cancels and held._lease is not None:
            import asyncio

            self._task = asyncio.current_task()
            loop = asyncio.get_running_loop()
            held._lease.told.append(lambda _: void(loop.call_soon_threadsafe(self._cancel)))
        return held

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._held is None:
            return
        if self._cancelled and kind is not None and not issubclass(kind, Exception):
            if task is not None and hasattr(task, "uncancel"):
                task.uncancel()
            raise LeaseLost(f"govnode: {self._held.id}: the lease was lost, and its block cancelled") from error
        await self._held._leave(kind)


class AsyncSession(LazySession):
    """A session by its id, in which calls are begun. It is created by the first one, if its policy is given."""

    def call(
        self, tool: str, arguments: Mapping[str, Any] | str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncBlock[AsyncCall]:
        """Return a block in which a call is made. Entering it raises Denied where the call may not be made."""
        core = self._core
        cancels = options.get("cancel_on_lost", False)
        return AsyncBlock(lambda: core._begin(self, AsyncCall, tool, arguments, options), cancels)

    async def begin(
        self, tool: str, arguments: Mapping[str, Any] | str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncCall:
        """Ask whether a call may be made, and return the answer: see ``admitted``. Raises where there is none."""
        return await self._core._begin(self, AsyncCall, tool, arguments, options)

    async def open(self) -> None:
        """Create the session now, unless it is there."""
        await self._open()

    async def read(self) -> messages.SessionInfo:
        """Return the session as it stands."""
        return await self._core.get_session(self.id)

    async def close(self) -> int:
        """End the session, and return how many leases in pools that ended."""
        return await self._core.close_session(self.id)

    async def evaluate(
        self,
        tool: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        context: Mapping[str, Any] | str | None = None,
        order: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        output: Any = None,
    ) -> messages.Evaluation:
        """Tell what a call would come to, without changing or counting anything."""
        await self._open()
        return await self._core.evaluate(
            tool, arguments, session_id=self.id, context=context, order=order, metadata=metadata, output=output
        )

    async def scan(self, text: str, *, kind: str = "input", tool: str = "") -> messages.Scan:
        """Judge a text (input, output, memory or message) by the policy of the session."""
        await self._open()
        return await self._core.scan(text, session_id=self.id, kind=kind, tool=tool)

    async def signal(self, signal: str, *, reason: str = "") -> messages.Signalled:
        """STOP, CONTINUE or KILL the session."""
        await self._open()
        return await self._core.signal(signal, session_id=self.id, reason=reason)


class Session:
    """A session by its id, in which calls are begun. It is created by the first one, if its policy is given."""

    def __init__(self, session: AsyncSession) -> None:
        self._core = session

    @property
    def id(self) -> str:
        """The id of the session."""
        return self._core.id

    @property
    def secret(self) -> str:
        """What calls of the session bring, for another process that makes some; empty if they need none."""
        return self._core.secret

    def call(
        self, tool: str, arguments: Mapping[str, Any] | str | None = None, **options: Unpack[CallOptions]
    ) -> Block[Call]:
        """Return a block in which a call is made. Entering it raises Denied where the call may not be made."""
        session = self._core
        _refuse_cancel(options)
        return Block(lambda: session._core._begin(session, Call, tool, arguments, options))

    def begin(
        self, tool: str, arguments: Mapping[str, Any] | str | None = None, **options: Unpack[CallOptions]
    ) -> Call:
        """Ask whether a call may be made, and return the answer: see ``admitted``. Raises where there is none."""
        return run(self._core._core._begin(self._core, Call, tool, arguments, options))

    open = _blocking(AsyncSession.open)
    read = _blocking(AsyncSession.read)
    close = _blocking(AsyncSession.close)
    evaluate = _blocking(AsyncSession.evaluate)
    scan = _blocking(AsyncSession.scan)
    signal = _blocking(AsyncSession.signal)


_open: weakref.WeakSet[Leases] = weakref.WeakSet()


@atexit.register
def _give_back_all() -> None:
    """Give back what is held at the end of the process."""
    for core in list(_open):
        _close(core)


def _close(core: Leases) -> None:
    from ._calls import generation

    live = core._live
    if live.closed or live.generation != generation():
        return
    live.closed = True
    live.keeper.close()
    if live.threads is not None:
        live.threads.transport.close()  # type: ignore[union-attr]


class AsyncClient(Leases):
    """Talks to one cluster from event loops. Made without ``addresses`` it takes those of GOVNODE_ADDRESSES.

    It may be used on several loops, one after another or at once. What it holds is renewed by a thread, so that a tool
    that blocks the loop does not lose its slots.

    ``name`` is the name under which the service knows this process; it is drawn if it is not given. ``timeout`` bounds
    an operation on top of the time it waits for a slot, ``attempt_timeout`` the answer of one node. ``fail_open``
    allows calls that no node answers for, says so in the log, and counts them when the service is back; which of them
    it refuses then, the log says too. ``on_lost`` and ``on_signal`` (with the id of the session) are called on threads
    of their own.
    """

    _on_loop = True

    def __init__(
        self,
        addresses: str | Sequence[str] | None = None,
        *,
        namespace: str = "",
        name: str = "",
        timeout: float = 10.0,
        attempt_timeout: float = 5.0,
        fail_open: bool = False,
        token: Token | None = None,
        tls: ssl.SSLContext | None = None,
        ca: str = "",
        cert: str = "",
        key: str = "",
        on_lost: Callable[[messages.Loss], None] | None = None,
        on_signal: Callable[[messages.Signal, str], None] | None = None,
    ) -> None:
        super().__init__(
            addresses,
            namespace=namespace,
            name=name,
            timeout=timeout,
            attempt_timeout=attempt_timeout,
            fail_open=fail_open,
            token=token,
            tls=tls,
            ca=ca,
            cert=cert,
            key=key,
            on_lost=on_lost,
            on_signal=on_signal,
        )
        _open.add(self)

    @property
    def name(self) -> str:
        """The name under which the service knows this client in this process."""
        return self.live().name

    def session(
        self,
        session_id: str | None = None,
        *,
        agent: str | None = None,
        policy: str | None = None,
        idle_ttl: float | None = None,
        parent: str | None = None,
        attributes: Mapping[str, str] | None = None,
        secret: bool | str = False,
    ) -> AsyncSession:
        """Return a session by its id; nothing is asked of the service.

        With an agent and a policy (its name, or the digest of one tree) the session is created by its first call. With
        ``secret`` one is drawn that its calls bring, and nobody else's are admitted; of a session that was created
        elsewhere it is the secret itself.
        """
        return AsyncSession(self, session_id, agent, policy, idle_ttl, parent, attributes, secret)

    def slot(self, pool: str, **options: Unpack[SlotOptions]) -> AsyncBlock[AsyncSlot]:
        """Return a block in which a slot is held. Entering it raises Denied where the pool gives none."""
        return AsyncBlock(lambda: self._acquire(AsyncSlot, pool, options), options.get("cancel_on_lost", False))

    async def acquire(self, pool: str, **options: Unpack[SlotOptions]) -> AsyncSlot:
        """Take a slot, or wait for one. Raises Denied where the pool gives none."""
        return await self._acquire(AsyncSlot, pool, options)

    def events(
        self,
        types: Iterable[str] = (),
        *,
        session_id: str = "",
        agent: str = "",
        after: str = "",
        from_oldest: bool = False,
        cluster: bool = False,
    ) -> AsyncIterator[messages.Event]:
        """Yield governance events as they occur: of one node, or of all with ``cluster``.

        Raises NoAnswer when the node goes away, or the token runs out and another one was drawn; give the last
        ``cursor`` as ``after`` to go on behind it.
        """
        return self._follow(types, session_id, agent, after, from_oldest, cluster)

    async def close(self) -> None:
        """Give back everything the client holds, and end it. It takes 5 seconds at most.

        What is under way ends: with RuntimeError, or with Unknown where it may have had its effect. A call or a slot
        that comes yet is given back.
        """
        import asyncio

        loops = list(self._live.loops.items())
        await asyncio.get_running_loop().run_in_executor(None, _close, self)
        for loop, io in loops:
            if loop is asyncio.get_running_loop():
                await io.transport.aclose()  # type: ignore[union-attr]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Threads(AsyncClient):
    """Does what an AsyncClient does, on the thread that calls it."""

    _on_loop = False


class Client:
    """Talks to one cluster from any number of threads. Made without ``addresses`` it takes those of GOVNODE_ADDRESSES.

    See ``AsyncClient`` for the arguments; the methods are the same too.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] | None = None,
        *,
        namespace: str = "",
        name: str = "",
        timeout: float = 10.0,
        attempt_timeout: float = 5.0,
        fail_open: bool = False,
        token: Token | None = None,
        tls: ssl.SSLContext | None = None,
        ca: str = "",
        cert: str = "",
        key: str = "",
        on_lost: Callable[[messages.Loss], None] | None = None,
        on_signal: Callable[[messages.Signal, str], None] | None = None,
    ) -> None:
        self._core = _Threads(
            addresses,
            namespace=namespace,
            name=name,
            timeout=timeout,
            attempt_timeout=attempt_timeout,
            fail_open=fail_open,
            token=token,
            tls=tls,
            ca=ca,
            cert=cert,
            key=key,
            on_lost=on_lost,
            on_signal=on_signal,
        )

    @property
    def name(self) -> str:
        """The name under which the service knows this client in this process."""
        return self._core.name

    @property
    def config(self) -> Config:
        """How the client was made."""
        return self._core.config

    def session(
        self,
        session_id: str | None = None,
        *,
        agent: str | None = None,
        policy: str | None = None,
        idle_ttl: float | None = None,
        parent: str | None = None,
        attributes: Mapping[str, str] | None = None,
        secret: bool | str = False,
    ) -> Session:
        """Return a session by its id; nothing is asked of the service.

        With an agent and a policy (its name, or the digest of one tree) the session is created by its first call. With
        ``secret`` one is drawn that its calls bring, and nobody else's are admitted; of a session that was created
        elsewhere it is the secret itself.
        """
        return Session(AsyncSession(self._core, session_id, agent, policy, idle_ttl, parent, attributes, secret))

    def slot(self, pool: str, **options: Unpack[SlotOptions]) -> Block[Slot]:
        """Return a block in which a slot is held. Entering it raises Denied where the pool gives none."""
        _refuse_cancel(options)
        return Block(lambda: self._core._acquire(Slot, pool, options))

    def acquire(self, pool: str, **options: Unpack[SlotOptions]) -> Slot:
        """Take a slot, or wait for one. Raises Denied where the pool gives none."""
        return run(self._core._acquire(Slot, pool, options))

    def events(
        self,
        types: Iterable[str] = (),
        *,
        session_id: str = "",
        agent: str = "",
        after: str = "",
        from_oldest: bool = False,
        cluster: bool = False,
    ) -> Iterator[messages.Event]:
        """Yield governance events as they occur: of one node, or of all with ``cluster``.

        Raises NoAnswer when the node goes away, or the token runs out and another one was drawn; give the last
        ``cursor`` as ``after`` to go on behind it.
        """
        events: Any = self._core._follow(types, session_id, agent, after, from_oldest, cluster)
        try:
            while True:
                try:
                    yield run(events.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            run(events.aclose())

    put_policy = _blocking(Operations.put_policy)
    get_policy = _blocking(Operations.get_policy)
    list_policies = _blocking(Operations.list_policies)
    delete_policy = _blocking(Operations.delete_policy)
    evaluate = _blocking(Operations.evaluate)
    scan = _blocking(Operations.scan)
    put_hash = _blocking(Operations.put_hash)
    list_hashes = _blocking(Operations.list_hashes)
    delete_hash = _blocking(Operations.delete_hash)
    explain = _blocking(Operations.explain)
    get_session = _blocking(Operations.get_session)
    list_sessions = _blocking(Operations.list_sessions)
    close_session = _blocking(Operations.close_session)
    signal = _blocking(Operations.signal)
    list_signals = _blocking(Operations.list_signals)
    request_approval = _blocking(Operations.request_approval)
    get_approval = _blocking(Operations.get_approval)
    list_approvals = _blocking(Operations.list_approvals)
    approve = _blocking(Operations.approve)
    deny = _blocking(Operations.deny)
    cancel_approval = _blocking(Operations.cancel_approval)
    put_standing_approval = _blocking(Operations.put_standing_approval)
    list_standing_approvals = _blocking(Operations.list_standing_approvals)
    delete_standing_approval = _blocking(Operations.delete_standing_approval)
    put_pool = _blocking(Operations.put_pool)
    get_pool = _blocking(Operations.get_pool)
    list_pools = _blocking(Operations.list_pools)
    delete_pool = _blocking(Operations.delete_pool)
    list_slots = _blocking(Operations.list_slots)
    force_release = _blocking(Operations.force_release)
    get = _blocking(Operations.get)
    get_many = _blocking(Operations.get_many)
    set = _blocking(Operations.set)
    delete = _blocking(Operations.delete)
    increment = _blocking(Operations.increment)
    append = _blocking(Operations.append)
    range = _blocking(Operations.range)
    delete_list = _blocking(Operations.delete_list)
    put_rate = _blocking(Operations.put_rate)
    get_rate = _blocking(Operations.get_rate)
    list_rates = _blocking(Operations.list_rates)
    delete_rate = _blocking(Operations.delete_rate)
    take_rate = _blocking(Operations.take_rate)
    put_budget = _blocking(Operations.put_budget)
    get_budget = _blocking(Operations.get_budget)
    list_budgets = _blocking(Operations.list_budgets)
    adjust_budget = _blocking(Operations.adjust_budget)
    delete_budget = _blocking(Operations.delete_budget)
    status = _blocking(Operations.status)

    def close(self) -> None:
        """Give back everything the client holds, and end it. It takes 5 seconds at most.

        What is under way ends: with RuntimeError, or with Unknown where it may have had its effect. A call or a slot
        that comes yet is given back.
        """
        _close(self._core)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
