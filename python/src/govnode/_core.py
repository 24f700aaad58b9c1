"""How an operation is sent: to one node after another, with pauses, for as long as it may take.

Everything here is written once, as coroutines, for threads and for event loops: see ``_transport``.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _batch
from ._batch import Answer, Item, LoopBatch, ThreadBatch
from ._credentials import Credentials, Token, settings, trust
from ._ids import Ids, process_name
from ._keeper import Keeper
from ._routes import Budget, Node, Routes, checked, jitter
from ._transport import LoopTransport, Lost, NotSent, Reply, Security, ThreadTransport, answer_of, message_of
from ._wire import dumps, duration
from .errors import NoAnswer, PermissionDenied, Rejected, Unauthenticated, Unknown
from .messages import Loss, Signal, seconds

if TYPE_CHECKING:
    import asyncio
    import ssl

_REDRAWS = 3
REPEATS = 3  # how often an answer is asked for again that does not stand, until it is taken as it is
_ATTEMPT_LEAST = 1.0  # seconds: less is not worth asking a node, since an election takes about that long
_OVERLOADED = 1.0  # how long a node is left alone that has no room and does not say for how long

# What is known of a change that was sent. What one attempt may have done no other one takes back.
UNTOUCHED, UNCERTAIN = 0, 1


class Config(NamedTuple):
    """How a client was made."""

    urls: list[str]
    namespace: str
    name: str
    timeout: float
    attempt_timeout: float
    fail_open: bool
    tls: ssl.SSLContext | None
    on_lost: Callable[[Loss], None] | None
    on_signal: Callable[[Signal, str], None] | None


class Failure(Exception):
    """One attempt had no answer. ``fate`` says what became of it."""

    def __init__(self, fate: str, code: str, reason: str, message: str, metadata: dict[str, str], after: float) -> None:
        super().__init__(message)
        self.fate = fate  # final, not applied, unknown or stale
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = metadata
        self.after = after  # not to be sent again before so many seconds have passed

    @property
    def again(self) -> bool:
        """Whether another node, or the same one later, may answer."""
        return self.fate in ("not applied", "unknown")


def judge(code: str, reason: str, message: str, metadata: dict[str, str], after: float = 0.0) -> Failure:
    """Tell what an error that a node answered with means for its request."""
    fate = "final"
    if reason == "STALE_ID":
        fate = "stale"
    elif reason == "OVERLOADED":  # other than the caps of the service it passes by itself
        fate, after = "not applied", after or _OVERLOADED
    elif (reason == "QUOTA_EXCEEDED" and after) or (code == "unavailable" and reason == "NOT_APPLIED"):
        fate = "not applied"
    elif reason == "OUTCOME_UNKNOWN" or code in ("unavailable", "deadline_exceeded", "canceled"):
        fate = "unknown"
    return Failure(fate, code, reason, message, metadata, after)


def _failed(e: Exception) -> Failure:
    """Tell what it means that there is no answer from a node."""
    if isinstance(e, Failure):  # each operation of a request has one of its own, to which it adds what it knows
        return Failure(e.fate, e.code, e.reason, e.message, dict(e.metadata), e.after)
    return Failure("not applied" if isinstance(e, NotSent) else "unknown", "unavailable", "", str(e), {}, 0.0)


def failure_of(reply: Reply) -> Failure:
    """Read the error that a node answered with."""
    message = message_of(reply.content)
    code = message.get("code")
    if not isinstance(code, str):
        if reply.status == 400 and b"HTTPS server" in reply.content:  # Go's words to who speaks no TLS to one that does
            return Failure(
                "final", "unknown", "", "the node speaks TLS; give its authority as ca, or in GOVNODE_TLS_CA", {}, 0.0
            )
        fate = "final" if reply.status in (401, 403, 404, 405, 415, 501) else "unknown"
        return Failure(fate, "unknown", "", f"HTTP {reply.status}, and not from a govnode", {}, 0.0)
    metadata: dict[str, str] = {}
    reason, after = reply.reason, 0.0
    for detail in message.get("details", ()):
        debug = detail.get("debug") if isinstance(detail, dict) else None
        if not isinstance(debug, dict):
            continue
        metadata.update(debug.get("metadata") or {})
        reason = reason or debug.get("reason", "")
        if "retryDelay" in debug:
            after = max(float(str(debug["retryDelay"]).rstrip("s")), 0.0)
    return judge(code, reason, str(message.get("message", "")), metadata, after)


class Operation:
    """One thing that is asked for, however often it is sent."""

    __slots__ = (
        "batched", "body", "farewell", "id", "id_field", "method", "reads", "sent", "timeout", "touched", "wait",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        body: dict[str, Any],
        id: str = "",
        *,
        id_field: str = "",
        wait: float = 0.0,
        reads: bool = False,
        batched: str = "",
        timeout: float | None = None,
        farewell: bool = False,
    ) -> None:
        self.method = method
        self.body = body
        self.id = id  # under which sending it again has no second effect
        self.id_field = id_field  # of the body, if the id is the client's own to choose
        self.wait = wait  # for which a node may hold back its answer
        self.reads = reads  # it changes nothing
        self.batched = batched  # its name in BatchCalls, if it goes there
        self.timeout = timeout  # in place of the client's
        self.farewell = farewell  # it gives something back, and goes on when the client is closed
        self.touched = UNTOUCHED
        self.sent = 0.0  # when the attempt was sent that was answered


class Io(NamedTuple):
    """What sends: of the threads of a process, or of one event loop."""

    transport: ThreadTransport | LoopTransport
    batch: ThreadBatch | LoopBatch


_generation = 0  # of this process: one more after each fork
_making = threading.Lock()


def _forked() -> None:
    global _generation, _making
    _generation += 1
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forked)


class Live:
    """What a client has in one process. After a fork the child makes its own, and leaves this as it is."""

    def __init__(self, config: Config, security: Security, inherited: Live | None) -> None:
        self.generation = _generation
        self.ids = Ids()
        # A name that was given is the parent's: two processes of one name would end each other's leases.
        own = f"{config.name}:{os.getpid()}:{self.ids.draw()}" if inherited is not None else config.name
        self.name = own if config.name else process_name(self.ids)
        self.budget = Budget()
        self.routes = Routes(config.urls)
        self.security = security
        self.keeper = Keeper(config, self.name, self.routes, security)
        self.threads: Io | None = None
        self.loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Io] = weakref.WeakKeyDictionary()
        self.inherited = inherited  # kept, since closing its connections would end those of the parent
        self.closed = False


def closed() -> RuntimeError:
    """Return the error for whatever is asked of a client that is closed."""
    return RuntimeError("govnode: the client is closed")


class Core:
    """Sends the operations of a client."""

    _on_loop = False

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
        on_lost: Callable[[Loss], None] | None = None,
        on_signal: Callable[[Signal, str], None] | None = None,
    ) -> None:
        if addresses is None:
            addresses = os.environ.get("GOVNODE_ADDRESSES", "127.0.0.1:7070")
        if isinstance(addresses, str):
            addresses = [a.strip() for a in addresses.split(",") if a.strip()]
        if not addresses:
            raise ValueError("govnode: addresses: name at least one node, for instance 127.0.0.1:7070")
        if timeout <= 0 or attempt_timeout <= 0:
            raise ValueError("govnode: timeout and attempt_timeout must be above 0")
        if tls is not None and (ca or cert or key):
            raise ValueError("govnode: tls: stands beside ca, cert or key; give one of the two")
        if tls is None and not (ca or cert or key):
            ca, cert, key = settings()
        secure = tls is not None or bool(ca or cert)
        urls = [checked(a, secure=secure) for a in addresses]
        if tls is None and any(u.startswith("https:") for u in urls):
            tls = trust(ca, cert, key)
        shown = Credentials(token)
        own = shown.namespace()
        if own and namespace and own != namespace:
            raise ValueError(f"govnode: namespace: it is {namespace}, and the token is of {own}; leave namespace out")
        # Where what is drawn says the namespace, the node is left to read it there.
        headers = {} if callable(token) and not namespace else {"Govnode-Namespace": namespace or own or "default"}
        namespace = namespace or own or "default"
        self.config = Config(urls, namespace, name, timeout, attempt_timeout, fail_open, tls, on_lost, on_signal)
        self._live = Live(self.config, Security(tls, headers, shown), None)

    # What there is of it in this process.

    def live(self) -> Live:
        """Return what there is of the client in this process."""
        live = self._live
        if live.generation != _generation:
            with _making:
                if self._live.generation != _generation:
                    self._live = Live(self.config, self._live.security.forked(), self._live)
                live = self._live
        if live.closed:
            raise closed()
        return live

    def _io(self, live: Live) -> Io:
        """Return what sends here."""
        if not self._on_loop:
            if live.threads is None:
                with _making:
                    if live.threads is None:
                        transport = ThreadTransport(live.security)
                        live.threads = Io(transport, ThreadBatch(self._sender(live, transport)))
            return live.threads
        import asyncio

        loop = asyncio.get_running_loop()
        io = live.loops.get(loop)
        if io is None:
            with _making:
                on_loop = LoopTransport(live.security)
                io = live.loops[loop] = Io(on_loop, LoopBatch(self._sender(live, on_loop)))
        return io

    # Operations.

    async def _read(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask for something that changes nothing."""
        return await self._perform(Operation(method, body, reads=True))

    async def _change(
        self, method: str, body: dict[str, Any], request_id: str | None = None, *, wait: float = 0.0
    ) -> dict[str, Any]:
        """Change something, under the id of a request."""
        live = self.live()
        op = Operation(method, body, request_id or live.ids.draw(), wait=wait)
        op.id_field = "" if request_id else "requestId"
        body["requestId"] = op.id
        body["client"] = live.name
        return await self._perform(op)

    async def _send(self, method: str, body: dict[str, Any], id: str) -> dict[str, Any]:
        """Change something that has an id of its own."""
        return await self._perform(Operation(method, body, id))

    async def _perform(self, op: Operation) -> dict[str, Any]:
        """Ask one node after another until there is an answer, or the time of the operation is up."""
        live = self._live if op.farewell else self.live()
        io = self._io(live)
        live.budget.earn()
        start = time.monotonic()
        until = start + (self.config.timeout if op.timeout is None else op.timeout) + op.wait
        wait_until = start + op.wait
        attempt = redrawn = 0
        renewed = False
        try:
            await io.transport.token(until - start)
        except NotSent as e:
            raise NoAnswer(op.method, op.id, str(e)) from None
        last = earlier = ""  # the last attempt is often cut off by the time: what was said before tells more
        while True:
            if live.closed and not op.farewell:
                if op.touched != UNTOUCHED and not op.reads:
                    raise Unknown(op.method, op.id, f"the client is closed; before that: {last}")
                raise closed()
            now = time.monotonic()
            if op.wait > 0:
                op.body["wait"] = duration(max(wait_until - now, 0.001))
            most = self.config.attempt_timeout + op.wait
            if op.wait == 0:  # half of the time is left for another node, lest one that hangs should take all of it
                most = min(most, max((until - now) / 2, _ATTEMPT_LEAST))
            shown = live.security.shown.header()
            failure = await self._attempt(op, live, io, min(now + most, until))
            if isinstance(failure, dict):
                return failure
            if failure.code == "unauthenticated" and not renewed:
                try:
                    renewed = await io.transport.drawn(shown, until - time.monotonic())
                except NotSent as e:
                    failure.message += f"; {e}"
                if renewed:  # a token that was drawn since is tried once
                    continue
            if failure.fate == "unknown":
                op.touched = UNCERTAIN
            if failure.fate == "stale" and op.id_field and op.touched == UNTOUCHED and redrawn < _REDRAWS:
                redrawn += 1
                try:
                    live.ids.raise_to(int(failure.metadata.get("newerThan", 0)))
                except ValueError as e:
                    raise Rejected(op.method, failure.code, failure.reason, str(e), failure.metadata) from None
                op.id = op.body[op.id_field] = live.ids.draw()
                continue
            if failure.fate in ("final", "stale"):
                raise self._conclude(op, failure)
            if failure.message != last:
                last, earlier = failure.message, last
            pause = failure.after + jitter(attempt)
            attempt += 1
            while True:
                if time.monotonic() + pause >= until:
                    if earlier:
                        failure.message += f"; before that: {earlier}"
                    raise self._conclude(op, failure)
                await io.transport.sleep(pause)
                pause = live.budget.take()  # whoever waited for the same token may be ahead
                if pause == 0:
                    break

    def _conclude(self, op: Operation, failure: Failure) -> Exception:
        """Return the error of an operation that ends without an answer, the one place where it is decided which."""
        if op.touched != UNTOUCHED and not op.reads:
            return Unknown(op.method, op.id, failure.message, answered=failure.fate in ("final", "stale"))
        if failure.code in ("unauthenticated", "permission_denied"):
            kind = Unauthenticated if failure.code == "unauthenticated" else PermissionDenied
            return kind(op.method, failure.code, failure.reason, failure.message, failure.metadata)
        if failure.fate in ("final", "stale"):
            return Rejected(op.method, failure.code, failure.reason, failure.message, failure.metadata)
        return NoAnswer(op.method, op.id, failure.message)

    async def _attempt(self, op: Operation, live: Live, io: Io, until: float) -> dict[str, Any] | Failure:
        """Ask a node once."""
        if op.batched:
            item = Item(f'"{op.batched}":{dumps(op.body)}', until)
            answer = await io.batch.ask(item)
            op.sent = item.sent
            if isinstance(answer, dict):
                return answer
            return _failed(answer)
        op.sent = time.monotonic()
        try:
            body = dumps(op.body).encode()
            return await self._post(live, io.transport, live.routes.pick(), op.method, body, until - op.sent)
        except (Failure, NotSent, Lost) as e:
            return _failed(e)

    async def _post(
        self,
        live: Live,
        transport: ThreadTransport | LoopTransport,
        node: Node,
        method: str,
        body: bytes,
        timeout: float,
    ) -> dict[str, Any]:
        """Send one request to a node, and take note of what that tells of the nodes."""
        sent = time.monotonic()
        try:
            reply = await transport.post(f"{node.url}/govnode.v1.{method}", body, timeout)
        except (NotSent, Lost) as e:
            live.routes.lost(node, sent, e)
            raise
        if reply.status != 200:
            failure = failure_of(reply)
            if failure.again:
                live.routes.failed(node, unreachable=not failure.reason)
            else:
                live.routes.answered(node, reply.leader)
            raise failure
        try:
            message = answer_of(reply)
        except Lost:
            live.routes.failed(node, unreachable=False)
            raise
        live.routes.answered(node, reply.leader)
        if live.routes.looks():
            await self._look(live, transport, node, min(sent + timeout - time.monotonic(), 1.0))
        return message

    async def _look(self, live: Live, transport: ThreadTransport | LoopTransport, node: Node, timeout: float) -> None:
        """Find out who is in the cluster."""
        try:
            reply = await transport.post(f"{node.url}/govnode.v1.ClusterService/Status", b"{}", timeout)
        except (NotSent, Lost):
            return  # the next one that asks will see
        peers = message_of(reply.content).get("peers", ())
        live.routes.members([p["apiAddress"] for p in peers if p.get("apiAddress")])

    def _sender(self, live: Live, transport: ThreadTransport | LoopTransport) -> _batch.Send:
        """Return what sends the operations of a batch."""

        async def send(items: list[Item]) -> list[Answer]:
            parts = ",".join([f'{{"tag":{i},{item.text}}}' for i, item in enumerate(items)])
            timeout = max(item.until for item in items) - time.monotonic()
            body = f'{{"operations":[{parts}]}}'.encode()
            node = live.routes.pick()
            try:
                answer = await self._post(live, transport, node, "CallService/BatchCalls", body, timeout)
            except (Failure, NotSent, Lost) as e:
                return [e] * len(items)
            answers = [result_of(r) for r in answer.get("results", ())]
            if any(isinstance(a, Failure) and a.again for a in answers):  # as for requests of their own
                live.routes.failed(node, unreachable=False)
            return answers

        return send

    # Streams.

    async def _stream(self, method: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        live = self.live()
        transport = self._io(live).transport
        try:
            await transport.token(self.config.timeout)
        except NotSent as e:
            raise NoAnswer(method, "", str(e)) from None
        renewed = False
        while True:
            shown = live.security.shown.header()
            node = live.routes.pick()
            failure: Failure | None = None
            begun = whole = False
            try:
                frames = transport.stream(f"{node.url}/govnode.v1.{method}", dumps(body).encode(), 60.0)
                async for flags, content in frames:
                    message = message_of(content)
                    if not flags & 2:
                        begun, renewed = True, False
                        yield message
                        continue
                    whole = True
                    if error := message.get("error"):
                        failure = _stream_error(error)
                if not whole:
                    raise Lost("the stream broke off")
            except (NotSent, Lost) as e:
                live.routes.failed(node, unreachable=True)
                raise NoAnswer(method, "", str(e)) from e
            if failure is None:
                return
            if failure.code == "unauthenticated" and not renewed:
                try:
                    renewed = await transport.drawn(shown, self.config.timeout)
                except NotSent as e:
                    failure.message += f"; {e}"
                if renewed and begun:
                    raise NoAnswer(method, "", "the token does not hold any more; there is another one to go on with")
                if renewed:  # a token that was drawn since is tried once
                    continue
            raise self._conclude(Operation(method, body, reads=True), failure)


def result_of(result: dict[str, Any]) -> Answer:
    """Return the answer to an operation of a batch."""
    for name, message in result.items():
        if name == "error":
            code, reason, text = (message.get(field, "") for field in ("code", "reason", "message"))
            metadata = {"newerThan": str(message.get("newerThan", 0))}
            return judge(code, reason, text, metadata, seconds(message.get("retryAfter", 0)))
        if name != "tag":
            return message  # type: ignore[no-any-return]
    return Lost("the node gave no answer to it")


def _stream_error(error: dict[str, Any]) -> Failure:
    reason = next((d["debug"].get("reason", "") for d in error.get("details", ()) if "debug" in d), "")
    return judge(error.get("code", ""), reason, error.get("message", ""), {})
