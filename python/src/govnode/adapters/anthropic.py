"""The Anthropic SDK: tools of a tool runner that are governed, and a middleware for the requests to a model.

    from govnode.adapters.anthropic import GovnodeMiddleware, govern_tools

    client = Anthropic(middleware=[GovnodeMiddleware(session)])
    client.beta.messages.tool_runner(tools=govern_tools([shell], session), ...).until_done()

No tool passes through a middleware, so the tools themselves are replaced. A tool is not told the id of its call: each
call has one of its own here, and one that waits for people and is made again is the same.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import httpx2

from .._review import written
from ._gate import Gate, Killed, Passage, PolicyViolationError, Sessions, missing

try:
    from anthropic import APIConnectionError, Middleware, RetryableError
    from anthropic.lib.tools import (
        BetaAsyncBuiltinFunctionTool,
        BetaAsyncFunctionTool,
        BetaAsyncRunnableToolset,
        BetaBuiltinFunctionTool,
        BetaFunctionTool,
        BetaRunnableToolset,
        ToolError,
    )
except ImportError as e:
    raise missing("the Anthropic SDK", "anthropic") from e

__all__ = ["GovnodeMiddleware", "RunDenied", "govern_tools"]

_BACKOFF = 10.0  # seconds: the SDK waits 8 between two tries, or as long as the provider says

_SYNC = (BetaFunctionTool, BetaBuiltinFunctionTool, BetaRunnableToolset)
_ASYNC = (BetaAsyncFunctionTool, BetaAsyncBuiltinFunctionTool, BetaAsyncRunnableToolset)
_TOOLSETS = (BetaRunnableToolset, BetaAsyncRunnableToolset)


class RunDenied(BaseException):
    """Ends a run: its session is killed, or a call is denied with ``on_denied="raise"``.

    The runner makes a text for the model of any Exception. The cause is Killed or PolicyViolationError.
    """


def govern_tools(
    tools: Iterable[Any], session: Sessions, *, ungoverned: Collection[str] = (), **options: Any
) -> list[Any]:
    """Return copies of tools and toolsets that ask govnode before each call.

    ``session`` is a session, or a function that returns one. The arguments of ``Gate`` may follow. The model reads why
    a call is denied, in a result that is an error. The run of a session that is killed ends with RunDenied. A member
    of a toolset is judged as ``browser.navigate``. What is only a definition runs where no hook is, at the provider or
    in the application: it is refused unless named in ``ungoverned``.
    """
    governor = _Governor(Gate(session, **options))
    return [governor.tool(tool, ungoverned) for tool in tools]


class _Governor:
    """Asks for the calls of tools, and makes them."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def tool(self, tool: Any, ungoverned: Collection[str]) -> Any:
        """Return what takes the place of a tool."""
        if isinstance(tool, Mapping):
            name = str(tool.get("name") or tool.get("mcp_server_name") or tool.get("type"))
            if name in ungoverned:
                return tool
            raise ValueError(f"govnode: tool {name} runs where no hook is: take it out, or name it in ungoverned")
        if not isinstance(tool, (*_SYNC, *_ASYNC)):
            raise TypeError(f"govnode: {type(tool).__name__} is no tool of a tool runner")
        if hasattr(tool, "__govnode__"):
            raise ValueError(f"govnode: tool {_name(tool)} is governed already")
        return _copy(tool, _calling(tool, self.acall if isinstance(tool, _ASYNC) else self.call))

    def call(self, name: str, given: Any, make: Callable[[Any], Any]) -> Any:
        """Ask, and make a call with the arguments that are allowed."""
        try:
            passage = self._gate.enter(name, given)
        except PolicyViolationError as e:
            raise RunDenied(str(e)) from e
        allowed = _allowed(passage, given)

        def work() -> Any:
            try:
                return _whole(make(allowed))
            except Exception as e:
                return _Failure(e)

        return _given(passage.run(work, failed=_failed, seen=_seen, told=_told))

    async def acall(self, name: str, given: Any, make: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what ``call`` does."""
        try:
            passage = await self._gate.aenter(name, given)
        except PolicyViolationError as e:
            raise RunDenied(str(e)) from e
        allowed = _allowed(passage, given)

        async def work() -> Any:
            try:
                return _whole(await make(allowed))
            except Exception as e:
                return _Failure(e)

        return _given(await passage.arun(work, failed=_failed, seen=_seen, told=_told))


def _allowed(passage: Passage, given: Any) -> Any:
    if passage.denied is not None:
        if passage.killed:
            raise RunDenied(passage.text) from Killed(passage.denied)
        raise ToolError(passage.text)
    return passage.arguments if passage.changed else given


def _whole(result: Any) -> Any:
    """Return a result that is there. A generator would do its work when the runner reads it, after its call."""
    return list(result) if isinstance(result, Iterator) else result


class _Failure:
    """What a tool raised: the runner shows a model more of it than its text."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _failed(result: Any) -> bool:
    return isinstance(result, _Failure)


def _seen(result: Any) -> Any:
    """Return what the runner shows of a result, or of an error."""
    if not isinstance(result, _Failure):
        return result
    return result.error.content if isinstance(result.error, ToolError) else repr(result.error)


def _told(result: Any, shown: Any) -> Any:
    return _Failure(ToolError(written(shown))) if isinstance(result, _Failure) else shown


def _given(result: Any) -> Any:
    """Return what a tool gave, or raise what it raised."""
    if isinstance(result, _Failure):
        raise result.error
    return result


def _calling(tool: Any, ask: Callable[[str, Any, Callable[[Any], Any]], Any]) -> Callable[..., Any]:
    """Return what stands in for ``tool.call``."""
    inner = tool.call
    if isinstance(tool, _TOOLSETS):

        def member(context: Any, name: str, input: Any) -> Any:
            return ask(f"{tool.toolset_name}.{name}", input, lambda given: inner(context, name, given))

        return member

    def call(input: Any) -> Any:
        return ask(tool.name, input, inner)

    return call


def _copy(tool: Any, call: Callable[..., Any]) -> Any:
    """Return a tool of the same kind and state with another ``call``, which nobody can replace again."""
    kind = type(tool)
    copy = type(kind.__name__, (kind,), {"call": property(lambda _: call), "__govnode__": True})
    governed: Any = object.__new__(copy)
    governed.__dict__ = tool.__dict__
    return governed


def _name(tool: Any) -> str:
    return str(tool.toolset_name if isinstance(tool, _TOOLSETS) else tool.name)


class GovnodeMiddleware(Middleware):
    """Makes a call of the kind ``model`` of each request to a model: ``Anthropic(middleware=[...])``, sync or async.

    ``session`` is a session, or a function that returns one. The arguments of ``Gate`` may follow, but ``on_denied``:
    a request that is denied raises PolicyViolationError, or Killed, and is not sent. The call reserves the
    ``max_tokens`` of the request, and ends with the response, or with its stream, and with the tokens that were used,
    those of the input and of caches included. What the SDK tries again within 10 seconds is one call, that holds its
    slot in between. What is said is not sent to govnode: the call has the arguments ``model`` and ``max_tokens``.
    """

    def __init__(self, session: Sessions, **options: Any) -> None:
        self.gate = Gate(session, on_denied="raise", **options)
        self._run = self.gate.draw()
        self._lock = threading.Lock()
        self._between: dict[str, tuple[Passage, threading.Timer]] = {}  # two tries of one request, by its key

    def handle(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
        """Ask, and send the request."""
        if not _to_model(request):
            return call_next(request)
        passage = self._resumed(request) or self.gate.enter("", **self._asked(request))
        try:
            response = call_next(request)
            status = self._answered(passage, request, response)
            if request.stream and isinstance(body := _stream(response), _Body):
                events = response.parse()  # the SDK is given the same one
                events._iterator = body.events(events._iterator)
        except Exception as e:
            if not self._left_open(passage, request, e):
                passage.end("failed")
            raise
        except BaseException:
            passage.end("cancelled")
            raise
        if status:
            passage.end(status)
        return response

    async def handle_async(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what ``handle`` does."""
        if not _to_model(request):
            return await call_next(request)
        passage = self._resumed(request) or await self.gate.aenter("", **self._asked(request))
        try:
            response = await call_next(request)
            status = self._answered(passage, request, response)
            if request.stream and isinstance(body := _stream(response), _Body):
                events = await response.parse()
                events._iterator = body.aevents(events._iterator)
        except Exception as e:
            if not self._left_open(passage, request, e):
                await passage.aend("failed")
            raise
        except BaseException:
            passage.end_behind("cancelled")
            raise
        if status:
            await passage.aend(status)
        return response

    def _asked(self, request: Any) -> dict[str, Any]:
        body = request.json if isinstance(request.json, Mapping) else {}
        most = body.get("max_tokens")
        tokens = most if isinstance(most, int) and most > 0 else 0
        return {
            "arguments": {"model": str(body.get("model", "")), "max_tokens": tokens},
            "call_id": request.options.idempotency_key or "",
            "run_id": self._run,
            "options": {"kind": "model", "tokens": tokens},
        }

    def _answered(self, passage: Passage, request: Any, response: Any) -> str:
        """Return how the call has ended; nothing if it goes on, with another try or until all is read."""
        http = getattr(response, "http_response", None)
        if http is None:  # another middleware has answered
            return "succeeded"
        if not http.is_success:
            if self._left_open(passage, request, response):
                return ""
            _note(passage, 0)
            return "failed"
        if http.is_closed:
            _note(passage, _tokens(_usage_of(http)))
            return "succeeded"
        http.stream = _Body(http.stream, passage)
        return ""

    def _left_open(self, passage: Passage, request: Any, failed: Any) -> bool:
        """Keep the call of a request that failed for its next try, if there is one."""
        key = request.options.idempotency_key
        if not key or not _tried_again(request, failed):
            return False
        timer = threading.Timer(_BACKOFF, self._give_up, (key, passage))
        timer.daemon = True
        with self._lock:
            if key in self._between:  # two requests with one key, both under way
                return False
            self._between[key] = passage, timer
        timer.start()
        return True

    def _resumed(self, request: Any) -> Passage | None:
        """Return the passage of a request that is tried again, if its call is still held."""
        with self._lock:
            passage, timer = self._between.pop(request.options.idempotency_key, (None, None))
        if passage is None or timer is None:
            return None
        timer.cancel()
        call = passage.call
        return passage if call is not None and (call.failed_open or call.state in ("held", "at risk")) else None

    def _give_up(self, key: str, passage: Passage) -> None:
        with self._lock:
            if self._between.get(key, (None,))[0] is not passage:
                return
            del self._between[key]
        passage.end_behind("failed")


def _to_model(request: Any) -> bool:
    return str(request.method).upper() == "POST" and str(request.url).partition("?")[0].endswith("/v1/messages")


def _tried_again(request: Any, failed: Any) -> bool:
    """Report whether the SDK tries again after a response or an error. An error names no client."""
    most = request.max_retries if isinstance(request.max_retries, int) else None
    if isinstance(failed, BaseException):
        error: BaseException | None = failed
        while error is not None and not isinstance(error, (APIConnectionError, RetryableError)):
            error = error.__cause__
        return error is not None and (most is None or request.retries_taken < most)
    if most is None:
        most = getattr(getattr(failed, "_client", None), "max_retries", 0)
    status, told = failed.http_response.status_code, failed.http_response.headers.get("x-should-retry")
    again = told == "true" or (told != "false" and (status in (408, 409, 429) or status >= 500))
    return again and bool(request.retries_taken < most)


def _stream(response: Any) -> Any:
    return getattr(getattr(response, "http_response", None), "stream", None)


def _note(passage: Passage, tokens: int | None) -> None:
    if passage.call is not None:
        passage.call.tokens = tokens


def _usage_of(http: Any) -> Any:
    try:
        return http.json()["usage"]
    except Exception:  # an answer that cannot be read is for the caller to complain of
        return None


def _tokens(usage: Any) -> int | None:
    """Return how many tokens went through a model; None if that is not known."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    counts = [usage.get(name) for name in names] if isinstance(usage, Mapping) else []
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if known else None


class _Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The body of a response that is read bit by bit. The call of its request ends with it, however that is left."""

    def __init__(self, body: Any, passage: Passage) -> None:
        self._body = body
        self._passage = passage
        self._status = "cancelled"
        self._inside = False  # the events are being read: they know more than the bytes of how that ends
        self._usage: dict[str, Any] = {}
        weakref.finalize(self, passage.end_behind, "cancelled")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    def events(self, events: Iterator[Any]) -> Iterator[Any]:
        """Yield the events of a stream, and note what they tell."""
        self._inside = True
        try:
            for event in events:
                self._noted(event)
                yield event
                self._inside = True
        except Exception:
            self._status = "failed"
            raise
        finally:
            self._inside = False
            self._passage.end(self._status)

    async def aevents(self, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Do what ``events`` does."""
        self._inside = True
        try:
            async for event in events:
                self._noted(event)
                yield event
                self._inside = True
        except Exception:
            self._status = "failed"
            raise
        finally:
            self._inside = False
            await self._passage.aend(self._status)

    def _noted(self, event: Any) -> None:
        self._inside = False
        kind = getattr(event, "type", "")
        if kind == "message_stop":
            self._status = "succeeded"
        elif kind in ("message_start", "message_delta"):
            told = getattr(event.message if kind == "message_start" else event, "usage", None)
            self._usage.update({name: count for name, count in (told or ()) if count is not None})
            if kind == "message_delta":  # before that, it is not known what was written
                _note(self._passage, _tokens(self._usage))

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except Exception:
            self._status = "failed"
            raise
        if not self._inside:
            self._status = "succeeded"

    def close(self) -> None:
        """Close it."""
        try:
            self._body.close()
        finally:
            if not self._inside:
                self._passage.end(self._status)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._body:
                yield chunk
        except Exception:
            self._status = "failed"
            raise
        if not self._inside:
            self._status = "succeeded"

    async def aclose(self) -> None:
        """Close it."""
        try:
            await self._body.aclose()
        finally:
            if not self._inside:
                await self._passage.aend(self._status)
