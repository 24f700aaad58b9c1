"""The Anthropic SDK by the adapter contract (section 11): a message hook, and the wrap that it takes the place of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._ids import Latest
from ..adapters import Gate
from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError
from ..integration.hooks import KernelSession
from ..integration.records import MOST
from ._texts import Texts
from ._wrapped import Wrapped

try:
    from anthropic.lib.tools import ToolError

    from ..adapters.anthropic import GovnodeMiddleware, _Governor, _to_model

    _HAS_HOOK = True
except ImportError:
    GovnodeMiddleware = _Governor = object  # type: ignore[assignment,misc]
    _HAS_HOOK = False


class RequestCancelledException(PolicyViolationError):
    """A request to the model was cancelled before it was sent (section 11.4)."""


@dataclass
class AnthropicContext(ExecutionContext):
    """A session with the Messages API (section 11.3)."""

    model: str = ""
    message_ids: list[str] = field(default_factory=list)
    tool_use_calls: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0


class AnthropicKernel(FrameworkKernel):
    """Governs the Messages API (section 11.1). Further options are those of BaseIntegration.

    ``max_retries`` and ``timeout_seconds`` are those of a client that is wrapped.
    """

    backend = "anthropic"
    framework = "anthropic"
    install = "govnode[anthropic]"
    replacement = "as_message_hook"
    context_class = AnthropicContext

    def __init__(
        self,
        policy: Any = None,
        max_retries: int = 3,
        timeout_seconds: float = 300.0,
        evaluator: Any | None = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, evaluator, **options)
        self.max_retries = max_retries
        self.timeout_seconds = timeout_seconds
        self._cancelled_requests = Latest()

    def as_message_hook(self, agent_id: str = "anthropic", session_id: str | None = None, **options: Any) -> Any:
        """Return a middleware of the client: ``Anthropic(middleware=[hook])`` (section 11.2). It is one session.

        The arguments of ``Gate`` may follow. ``hook.govern_tools`` governs the tools of a tool runner.
        """
        self._require()
        return GovernanceMessageHook(self, self.create_context(agent_id, session_id), **options)

    def cancel_request(self, request_id: str) -> None:
        """Have a request not be sent, now or again, by the idempotency key that it has or will have (section 11.4)."""
        self._cancelled_requests.add(request_id)

    def is_cancelled(self, request_id: str) -> bool:
        """Tell whether a request was cancelled."""
        return request_id in self._cancelled_requests

    def wrap(self, client: Any) -> Any:
        """Return a client all of whose requests to a model are governed. Deprecated (section 11.3)."""
        self._deprecate()
        return GovernedAnthropicClient(self, client, self.create_context("anthropic"))

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the client that was wrapped."""
        return governed_agent._agent if isinstance(governed_agent, GovernedAnthropicClient) else governed_agent


class GovernanceMessageHook(GovnodeMiddleware):
    """Begins a call of each request to the model, has looked at what goes there and comes back, and counts its tools.

    The tools that a model asks for are calls, which are denied with PolicyViolationError, unless ``govern_tools``
    governs them where they run. Without that, and beside what the policy denies, it denies those at whose outputs rules
    look, since it sees none, and in a stream those whose arguments a guardrail changes.
    """

    def __init__(self, kernel: AnthropicKernel, ctx: ExecutionContext, **options: Any) -> None:
        assert isinstance(ctx, AnthropicContext)
        session = KernelSession(kernel, ctx)
        super().__init__(session, **options)
        self._kernel = kernel
        self._ctx = ctx
        self._texts = Texts(kernel, session)
        self._options = options
        self._session = session
        self._elsewhere = False  # tools are governed where they run

    def govern_tools(self, tools: Iterable[Any], *, ungoverned: Collection[str] = ()) -> list[Any]:
        """Return tools for a tool runner that ask before each call, and whose outputs are looked at."""
        self._elsewhere = True
        governor = _Tools(Gate(self._session, **self._options), self._texts)
        return [governor.tool(tool, ungoverned) for tool in tools]

    def handle(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
        """Ask, send the request, and judge the answer."""
        if not _to_model(request):
            return call_next(request)
        response = super().handle(self._asking(request), call_next)
        if _answered(response):
            parsed = response.parse()
            if request.stream:
                parsed._iterator = self._streamed(parsed._iterator)
            else:
                self._judge(parsed)
        return response

    async def handle_async(self, request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what ``handle`` does."""
        if not _to_model(request):
            return await call_next(request)
        response = await super().handle_async(await asyncio.to_thread(self._asking, request), call_next)
        if _answered(response):
            parsed = await response.parse()
            if request.stream:
                parsed._iterator = self._astreamed(parsed._iterator)
            else:
                await asyncio.to_thread(self._judge, parsed)
        return response

    def _asking(self, request: Any) -> Any:
        """Return a request as it may be sent."""
        sent = {name.lower(): value for name, value in request.headers.items()}
        key = str(sent.get("idempotency-key") or request.options.idempotency_key or "")
        if key and self._kernel.is_cancelled(key):
            raise RequestCancelledException(f"request {key} was cancelled", category="cancelled")
        body = request.json
        if not isinstance(body, Mapping):
            return request
        self._ctx.model = str(body.get("model", ""))
        used = {
            "system": _looked(body.get("system"), self._texts.given),
            "messages": _looked(body.get("messages"), self._texts.given),
        }
        changed = {k: v for k, v in used.items() if v != body.get(k)}
        return request.copy(body={**body, **changed}) if changed else request

    def _judge(self, message: Any) -> None:
        """Judge what a model said. What is redacted is changed in the message."""
        self._noted(message)
        for block in message.content:
            if block.type == "text":
                block.text = self._texts.made(block.text)
            elif block.type == "tool_use":
                block.input = self._tool(block.id, block.name, block.input, changes=True)

    def _noted(self, message: Any) -> None:
        ctx, usage = self._ctx, message.usage
        with ctx._lock:
            ctx.message_ids.append(message.id)
            del ctx.message_ids[:-MOST]
            ctx.prompt_tokens += usage.input_tokens or 0
            ctx.completion_tokens += usage.output_tokens or 0

    def _tool(self, id: str, name: str, arguments: Any, *, changes: bool) -> Any:
        """Judge a call, and return the arguments to use. ``changes`` is whether they may be others than were given."""
        ctx = self._ctx
        with ctx._lock:
            ctx.tool_use_calls.append({"id": id, "name": name})
            del ctx.tool_use_calls[:-MOST]
        if self._elsewhere:
            return arguments
        if not isinstance(arguments, dict):
            raise PolicyViolationError(f"the arguments of {name} are no JSON object", tool_name=name)
        passage = self.gate.enter(name, arguments, call_id=id)
        if why := passage.refuse_unfit(changes=changes):
            self._kernel._violated(why, "not_governed", name)
            raise PolicyViolationError(f"{name}: {why}: use govern_tools", category="not_governed", tool_name=name)
        used = passage.arguments if passage.changed else arguments
        passage.end("succeeded")
        return used

    # A stream has been handed on by the time that its end is known: that is where it is judged.

    def _streamed(self, events: Iterator[Any]) -> Iterator[Any]:
        blocks: dict[int, list[Any]] = {}
        for event in events:
            self._gathered(blocks, event)
            yield event

    async def _astreamed(self, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        blocks: dict[int, list[Any]] = {}
        async for event in events:
            await asyncio.to_thread(self._gathered, blocks, event)
            yield event

    def _gathered(self, blocks: dict[int, list[Any]], event: Any) -> None:
        kind = getattr(event, "type", "")
        if kind == "message_start":
            self._noted(event.message)
        elif kind == "message_delta":
            self._ctx.completion_tokens += getattr(event.usage, "output_tokens", 0) or 0
        elif kind == "content_block_start":
            blocks[event.index] = [event.content_block, getattr(event.content_block, "text", "") or ""]
        elif kind == "content_block_delta":
            blocks[event.index][1] += getattr(event.delta, "text", "") or getattr(event.delta, "partial_json", "") or ""
        elif kind == "content_block_stop":
            block, said = blocks.pop(event.index)
            if block.type == "text" and self._texts.made(said) != said:
                reason = "the output holds personal data, and cannot be redacted in a stream"
                self._kernel._violated(reason, "scan", "")
                raise PolicyViolationError(reason, category="scan")
            if block.type == "tool_use":
                self._tool(block.id, block.name, json.loads(said or "{}"), changes=False)


class _Tools(_Governor):
    """Asks for the calls of tools, and has looked at what they give."""

    def __init__(self, gate: Gate, texts: Texts) -> None:
        super().__init__(gate)
        self._texts = texts

    def call(self, name: str, given: Any, make: Callable[[Any], Any]) -> Any:
        """Ask, make the call, and look at the result."""
        return self._result(name, super().call(name, given, make))

    async def acall(self, name: str, given: Any, make: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what ``call`` does."""
        result = await super().acall(name, given, make)
        return await asyncio.to_thread(self._result, name, result)

    def _result(self, name: str, result: Any) -> Any:
        try:
            return _looked(result, lambda text: self._texts.made(text, name))
        except PolicyViolationError as e:
            raise ToolError(self._texts.refuse(e)) from e


class GovernedAnthropicClient(Wrapped):
    """A client whose requests to a model are governed, with ``messages.create`` and all else of the SDK (section 11.3).

    ``extra_headers={"Idempotency-Key": ...}`` names a request, for ``cancel_request``.
    """

    def __init__(self, kernel: AnthropicKernel, client: Any, ctx: ExecutionContext) -> None:
        super().__init__(kernel, client, ctx)
        #: What governs it; ``hook.govern_tools`` governs the tools of a tool runner.
        self.hook = GovernanceMessageHook(kernel, ctx)
        self._governed = client.with_options(
            max_retries=kernel.max_retries,
            timeout=kernel.timeout_seconds,
            middleware=[*client.middleware, self.hook],
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._governed, name)


def _answered(response: Any) -> bool:
    http = getattr(response, "http_response", None)
    return http is not None and bool(http.is_success)


# Where blocks have texts: documents in their source, and with a title and a context; results of a search too.
_WITH_TEXT = ("text", "content", "title", "context", "source", "data")


def _looked(value: Any, look: Callable[[str], str]) -> Any:
    """Return what is sent or given with its texts as they may be used. Calls of tools are judged as such."""
    if isinstance(value, str):
        return look(value) if value else value
    if isinstance(value, list):
        return [_looked(v, look) for v in value]
    if not isinstance(value, Mapping) or value.get("type") in ("tool_use", "server_tool_use"):
        return value
    if value.get("type") in ("base64", "redacted_thinking"):  # no texts: the latter the provider takes as it was alone
        return value
    used = {k: _looked(value[k], look) for k in _WITH_TEXT if k in value}
    return value if all(used[k] == value[k] for k in used) else {**value, **used}
