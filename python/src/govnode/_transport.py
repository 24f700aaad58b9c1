"""How one request gets to one node and its answer back: by threads, or on an event loop. httpx2 does it.

Both have the same methods. Those of threads are coroutines that never wait, so that everything above is written once:
``run`` sees such a coroutine through on the thread that calls it.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import ssl

    import httpx2

    from ._credentials import Credentials

R = TypeVar("R")

_CONNECT = 1.0  # seconds; a node that is up takes a connection much sooner


class NotSent(Exception):
    """A request never left: it has had no effect."""


class NoToken(NotSent):
    """No token was drawn in time. That is the fault of no node."""

    def __init__(self) -> None:
        super().__init__("no token was given out in time")


class Lost(Exception):
    """A request or its answer was lost on the way: it may have had its effect."""


class Late(Lost):
    """No answer came in time: the node may be there, and busy with that request."""


class Reply:
    """The answer of a node to one request."""

    __slots__ = ("content", "leader", "reason", "status")

    def __init__(self, response: httpx2.Response, content: bytes) -> None:
        self.status = response.status_code
        self.content = content
        self.leader = self.reason = ""
        for name, value in response.headers.raw:
            if name in (b"Govnode-Leader", b"govnode-leader"):
                self.leader = value.decode()
            elif name in (b"Govnode-Reason", b"govnode-reason"):
                self.reason = value.decode()


class Transport(Protocol):
    """What gets a request to a node."""

    async def post(self, url: str, body: bytes, timeout: float) -> Reply:
        """Send a message, and return the answer."""
        ...

    def stream(self, url: str, body: bytes, timeout: float) -> AsyncIterator[tuple[int, bytes]]:
        """Send a message, and yield the frames of the answer, with their flags."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        ...

    async def token(self, timeout: float) -> None:
        """Wait for the first token, where tokens are drawn."""
        ...

    async def drawn(self, refused: bytes | None, timeout: float) -> bool:
        """Wait for a token in place of one that was refused, and report whether it is another one."""
        ...


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """See a coroutine through that waits for nothing but threads."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    raise RuntimeError("govnode: a coroutine of threads waits for an event loop")


class Security:
    """What a client trusts: nothing has to be loaded for addresses without TLS."""

    def __init__(self, tls: ssl.SSLContext | None, headers: dict[str, str], shown: Credentials) -> None:
        self.tls = tls
        self.shown = shown
        self.headers = [(k.encode(), v.encode()) for k, v in headers.items()]
        self._urls: dict[str, httpx2.URL] = {}  # of each method of each node: reading them takes long

    def forked(self) -> Security:
        """Return the same for the child of a fork."""
        other = copy.copy(self)
        other.shown = self.shown.forked()
        return other

    def options(self) -> dict[str, Any]:
        """Return the arguments of a transport of httpx2."""
        import httpx2

        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30)
        verify = self.tls if self.tls is not None else False
        return {"verify": verify, "limits": limits, "socket_options": _keep_alive()}

    def request(self, url: str, body: bytes, timeout: float, content_type: bytes) -> httpx2.Request:
        """Make a request."""
        import httpx2

        timeout = max(timeout, 0.001)  # the time may have run out on the way here
        after = {"connect": min(timeout, _CONNECT), "read": timeout, "write": timeout, "pool": timeout}
        headers = [*self.headers, (b"Content-Type", content_type)]
        if (token := self.shown.header()) is not None:
            headers.append((b"Authorization", token))
        parsed = self._urls.get(url)
        if parsed is None:
            parsed = self._urls[url] = httpx2.URL(url)
        return httpx2.Request("POST", parsed, headers=headers, content=body, extensions={"timeout": after})


def _failure(e: Exception) -> Exception:
    import httpx2

    text = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
    if isinstance(e, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.UnsupportedProtocol):
        return NotSent(text)
    return Late(text) if isinstance(e, httpx2.TimeoutException) else Lost(text)


# What has the kernel find out within 5 s that the machine at the other end is gone, which a request that waits for a
# slot would not notice. Platforms have some of it, and macOS another name for the first. The last one is for a machine
# that has not got all that was sent.
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 2, "TCP_KEEPALIVE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000,
}  # fmt: skip


def _keep_alive() -> list[tuple[int, int, int]]:
    import socket

    there = [(getattr(socket, name), value) for name, value in _KEEP_ALIVE.items() if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *((socket.IPPROTO_TCP, *option) for option in there)]


class _Tokens:
    """Waits for the tokens that are drawn, for as long as there is time."""

    _security: Security

    async def token(self, timeout: float) -> None:
        """Wait for the first token, where tokens are drawn."""
        if not self._security.shown.known():
            await self.drawn(None, timeout)

    async def drawn(self, refused: bytes | None, timeout: float) -> bool:
        """Wait for a token in place of one that was refused, and report whether it is another one."""
        there = self._security.shown.other(refused)
        return there if isinstance(there, bool) else await self._told(there, timeout)

    async def _told(self, there: Future[bool], timeout: float) -> bool:
        """Wait for what tells whether there is another one. Raises NoToken where that takes too long."""
        raise NotImplementedError


class ThreadTransport(_Tokens):
    """Sends from whichever thread asks."""

    def __init__(self, security: Security) -> None:
        import httpx2

        self._security = security
        self._http = httpx2.HTTPTransport(**security.options())
        self._errors = (httpx2.TransportError, RuntimeError)  # RuntimeError: it was closed meanwhile

    async def post(self, url: str, body: bytes, timeout: float) -> Reply:
        """Send a message, and return the answer."""
        request = self._security.request(url, body, timeout, b"application/json")
        try:
            response = self._http.handle_request(request)
            try:
                return Reply(response, response.read())
            finally:
                response.close()
        except self._errors as e:
            raise _failure(e) from e

    async def stream(self, url: str, body: bytes, timeout: float) -> AsyncIterator[tuple[int, bytes]]:
        """Send a message, and yield the frames of the answer, with their flags."""
        request = self._security.request(url, enveloped(body), timeout, b"application/connect+json")
        frames = Frames()
        try:
            response = self._http.handle_request(request)
            try:
                frames.begin(response)
                for chunk in response.iter_raw():
                    for frame in frames.add(chunk):
                        yield frame
            finally:
                response.close()
        except self._errors as e:
            raise _failure(e) from e

    async def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        time.sleep(seconds)  # noqa: ASYNC251

    async def _told(self, there: Future[bool], timeout: float) -> bool:
        wait((there,), max(timeout, 0))
        if not there.done():
            raise NoToken
        return there.result()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class LoopTransport(_Tokens):
    """Sends on the event loop that it was made in."""

    def __init__(self, security: Security) -> None:
        import httpx2

        self._security = security
        self._http = httpx2.AsyncHTTPTransport(**security.options())
        self._errors = (httpx2.TransportError, RuntimeError)
        self._guard: AsyncIterator[None] | None = None

    async def post(self, url: str, body: bytes, timeout: float) -> Reply:
        """Send a message, and return the answer."""
        if self._guard is None:
            await self._close_with_loop()
        request = self._security.request(url, body, timeout, b"application/json")
        try:
            response = await self._http.handle_async_request(request)
            try:
                return Reply(response, await response.aread())
            finally:
                await response.aclose()
        except self._errors as e:
            raise _failure(e) from e

    async def stream(self, url: str, body: bytes, timeout: float) -> AsyncIterator[tuple[int, bytes]]:
        """Send a message, and yield the frames of the answer, with their flags."""
        if self._guard is None:
            await self._close_with_loop()
        request = self._security.request(url, enveloped(body), timeout, b"application/connect+json")
        frames = Frames()
        try:
            response = await self._http.handle_async_request(request)
            try:
                frames.begin(response)
                async for chunk in response.aiter_raw():
                    for frame in frames.add(chunk):
                        yield frame
            finally:
                await response.aclose()
        except self._errors as e:
            raise _failure(e) from e

    async def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        import asyncio

        await asyncio.sleep(seconds)

    async def _told(self, there: Future[bool], timeout: float) -> bool:
        import asyncio

        here = asyncio.wrap_future(there)
        try:
            await asyncio.wait((here,), timeout=max(timeout, 0))
            if not here.done():
                raise NoToken
            return here.result()
        finally:
            here.cancel()  # nobody will look at what comes of it

    async def _close_with_loop(self) -> None:
        """Have the connections closed when the loop ends: it sees all generators through that began on it."""
        self._guard = self._wait_for_end()
        await self._guard.__anext__()

    async def _wait_for_end(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._http.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def enveloped(message: bytes) -> bytes:
    """Put a message into a frame of a stream."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Frames:
    """Cuts what comes over a stream into its frames."""

    def __init__(self) -> None:
        self._rest = b""
        self._framed = True

    def begin(self, response: httpx2.Response) -> None:
        """Look at what comes: an error before the stream is no stream."""
        if response.status_code != 200:
            raise Lost(f"the node answered {response.status_code}")

    def add(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """Take a chunk, and return the frames that are whole."""
        rest, found = self._rest + chunk, []
        while len(rest) >= 5 and len(rest) >= 5 + (size := int.from_bytes(rest[1:5], "big")):
            found.append((rest[0], rest[5 : 5 + size]))
            rest = rest[5 + size :]
        self._rest = rest
        return found


def message_of(content: bytes) -> dict[str, Any]:
    """Read the JSON of an answer; what is none is empty."""
    try:
        message = json.loads(content)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def answer_of(reply: Reply) -> dict[str, Any]:
    """Read the answer of a node. Something on the way may have answered in its place: then it is lost."""
    message = message_of(reply.content)
    if not message and reply.content.strip() != b"{}":
        raise Lost(f"HTTP {reply.status}, and not from a govnode")
    return message
