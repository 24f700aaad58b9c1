"""OpenAI by the adapter contract (section 10): proxies of assistants, and the loop for responses that came later."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._ids import Latest
from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError
from ..integration.hooks import KernelSession
from ._texts import Texts

try:
    from openai import AsyncOpenAI

    from ..adapters._functions import Functions, is_async, shown
    from ..adapters.openai_assistants import AsyncGovernedAssistant, GovernedAssistant, _Governed
    from ..adapters.openai_responses import govern_responses

    _HAS_SDK = True
except ImportError:
    AsyncGovernedAssistant = GovernedAssistant = _Governed = object  # type: ignore[assignment,misc]
    _HAS_SDK = False

log = logging.getLogger("govnode")


@dataclass
class AssistantContext(ExecutionContext):
    """A session of an assistant (section 10.2)."""

    assistant_id: str = ""
    thread_ids: list[str] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    function_calls: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0


class OpenAIKernel(FrameworkKernel):
    """Governs the Assistants API (section 10.1), and responses. Further options are those of BaseIntegration.

    ``timeout_seconds`` is for a run as a whole, ``max_retries`` for each request.
    """

    backend = "openai"
    framework = "openai"
    install = "govnode[openai]"
    context_class = AssistantContext

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
        self._cancelled_runs = Latest()

    def wrap(self, assistant: Any, client: Any, session_id: str | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Return the proxy of an assistant (section 10.2): with an AsyncOpenAI its methods are to be awaited.

        Functions that are registered with it are governed. ``poll_interval``, ``parallel``, ``on_error`` and the
        arguments of ``Gate`` may follow.
        """
        if missing := self._missing():
            raise ImportError(missing)
        if client is None:
            raise TypeError("OpenAIKernel.wrap: client: give the OpenAI or AsyncOpenAI that runs the assistant")
        ctx = self.create_context(_id(assistant.id), session_id)
        assert isinstance(ctx, AssistantContext)
        ctx.assistant_id = assistant.id
        session = KernelSession(self, ctx)
        texts, interval = Texts(self, session), options.pop("poll_interval", 1.0)
        if (tells := options.get("on_error")) is not None:
            options["on_error"] = _looking(texts, "", tells)
        kind = _AsyncAssistant if isinstance(client, AsyncOpenAI) else _Assistant
        made: Any = kind(
            assistant,
            client,
            Functions(session, **options),
            self.max_retries,
            self.timeout_seconds,
            interval,
            ctx,
        )
        made.texts = texts
        made._cancelled_runs = self._cancelled_runs
        return made

    def wrap_assistant(self, assistant: Any, client: Any) -> Any:
        """Do what ``wrap`` does. Deprecated (section 18.2)."""
        warnings.warn(
            f"{type(self).__name__}.wrap_assistant() is deprecated. Use wrap().", DeprecationWarning, stacklevel=2
        )
        return self.wrap(assistant, client)

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the assistant of a proxy."""
        return governed_agent.assistant if _HAS_SDK and isinstance(governed_agent, _Governed) else governed_agent

    def govern_responses(
        self,
        client: Any,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        *,
        agent_id: str = "openai",
        session_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Return a loop around ``client.responses.create`` with governed functions, whose outputs are looked at."""
        self._require()
        session = self.session_of(agent_id, session_id)
        texts = Texts(self, session)
        governed = {name: _looking(texts, name, function) for name, function in (tools or {}).items()}
        if (tells := options.get("on_error")) is not None:
            options["on_error"] = _looking(texts, "", tells)
        made = govern_responses(client, session, governed, **options)
        return (_AsyncResponses if isinstance(client, AsyncOpenAI) else _Responses)(made, texts)

    def cancel_run(self, thread_id: str, run_id: str, client: Any) -> Any:
        """Cancel a run at the provider, as far as that succeeds (section 10.4). It calls no function any more.

        With an AsyncOpenAI what is returned is to be awaited.
        """
        self._cancelled_runs.add(run_id)

        async def awaited(asked: Any) -> None:
            try:
                await asked
            except Exception as e:
                self._not_cancelled(run_id, e)

        try:
            asked = client.beta.threads.runs.cancel(thread_id=thread_id, run_id=run_id)
        except Exception as e:
            return self._not_cancelled(run_id, e)
        return awaited(asked) if inspect.isawaitable(asked) else None

    def _not_cancelled(self, run_id: str, error: Exception) -> None:
        self._last_error = f"run {run_id} was not cancelled: {error}"
        log.info("govnode: %s", self._last_error)

    def is_cancelled(self, run_id: str) -> bool:
        """Tell whether a run was cancelled."""
        return run_id in self._cancelled_runs


class _Responses:
    """Governed responses whose texts are looked at. A stream is not held back: its end is looked at."""

    def __init__(self, governed: Any, texts: Texts) -> None:
        self._governed = governed
        self._texts = texts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._governed, name)

    def create(self, **request: Any) -> Any:
        """Make requests, as GovernedResponses does. Raises PolicyViolationError where a text may not be used."""
        made = self._governed.create(**self._asked(request))
        return self._events(made) if request.get("stream") else self._said(made)

    def _events(self, events: Any) -> Iterator[Any]:
        for event in events:
            if getattr(event, "response", None) is not None:
                self._said(event.response)
            yield event

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._texts.heed()
        used = dict(request)
        for name in ("instructions", "input"):
            if used.get(name) is not None:
                used[name] = _given(self._texts, used[name])
        return used

    def _said(self, response: Any) -> Any:
        text = getattr(response, "output_text", "") or ""
        if self._texts.made(text) != text:
            raise PolicyViolationError("what the model said holds personal data", category="scan")
        return response


class _AsyncResponses(_Responses):
    """What ``_Responses`` is, of an AsyncOpenAI."""

    async def create(self, **request: Any) -> Any:
        """Make requests, as ``_Responses.create`` does."""
        made = await self._governed.create(**await asyncio.to_thread(self._asked, request))
        if request.get("stream"):
            return self._aevents(made)
        return await asyncio.to_thread(self._said, made)

    async def _aevents(self, events: Any) -> AsyncIterator[Any]:
        async for event in events:
            if getattr(event, "response", None) is not None:
                await asyncio.to_thread(self._said, event.response)
            yield event


class _Texts:
    """What the proxies of both kinds of clients look at."""

    texts: Texts

    def _of_run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a run as they may be used, if there may be one."""
        self.texts.heed()
        return self._looked(given)

    def _looked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a run, or of a thread, as they may be used."""
        used = dict(given)
        for name in ("instructions", "additional_instructions"):
            if isinstance(used.get(name), str):
                used[name] = self.texts.given(used[name])
        for name in ("messages", "additional_messages"):
            if isinstance(used.get(name), (list, tuple)):
                used[name] = [{**m, "content": _given(self.texts, m.get("content"))} for m in used[name]]
        return used


class _Assistant(_Texts, GovernedAssistant):
    """The proxy of an assistant whose texts are looked at."""

    def register_tool(self, name: str, func: Callable[..., Any]) -> None:
        """Let runs call a function by a name."""
        super().register_tool(name, _looking(self.texts, name, func))

    def create_thread(self, **kwargs: Any) -> Any:
        """Create a thread. Raises PolicyViolationError where a message of it is blocked."""
        return super().create_thread(**self._looked(kwargs))

    def add_message(self, thread_id: str, content: Any, **kwargs: Any) -> Any:
        """Add a message to a thread. Raises PolicyViolationError for one that is blocked."""
        return super().add_message(thread_id, _given(self.texts, content), **kwargs)

    def run(self, thread_id: str, **kwargs: Any) -> Any:
        """Run the assistant on a thread. Raises PolicyViolationError where a text is blocked, or the kernel stopped."""
        return super().run(thread_id, **self._of_run(kwargs))

    def run_stream(self, thread_id: str, **kwargs: Any) -> Iterator[Any]:
        """Run the assistant on a thread, as ``run`` does, and yield the events."""
        yield from super().run_stream(thread_id, **self._of_run(kwargs))


class _AsyncAssistant(_Texts, AsyncGovernedAssistant):
    """The proxy of an assistant whose texts are looked at."""

    def register_tool(self, name: str, func: Callable[..., Any]) -> None:
        """Let runs call a function by a name."""
        super().register_tool(name, _looking(self.texts, name, func))

    async def create_thread(self, **kwargs: Any) -> Any:
        """Create a thread. Raises PolicyViolationError where a message of it is blocked."""
        return await super().create_thread(**await asyncio.to_thread(self._looked, kwargs))

    async def add_message(self, thread_id: str, content: Any, **kwargs: Any) -> Any:
        """Add a message to a thread. Raises PolicyViolationError for one that is blocked."""
        return await super().add_message(thread_id, await asyncio.to_thread(_given, self.texts, content), **kwargs)

    async def run(self, thread_id: str, **kwargs: Any) -> Any:
        """Run the assistant on a thread. Raises PolicyViolationError where a text is blocked, or the kernel stopped."""
        return await super().run(thread_id, **await asyncio.to_thread(self._of_run, kwargs))

    async def run_stream(self, thread_id: str, **kwargs: Any) -> AsyncIterator[Any]:
        """Run the assistant on a thread, as ``run`` does, and yield the events."""
        events: Any = super().run_stream(thread_id, **await asyncio.to_thread(self._of_run, kwargs))
        async with contextlib.aclosing(events):
            async for event in events:
                yield event


def _given(texts: Texts, content: Any) -> Any:
    """Return the content of a message as it may be sent."""
    if isinstance(content, str):
        return texts.given(content)
    if isinstance(content, (list, tuple)):
        return [_given_part(texts, c) for c in content]
    return content


def _given_part(texts: Texts, part: Any) -> Any:
    """Return a part of a content, an item of an input, or a message as it may be sent."""
    if not isinstance(part, Mapping):
        return part
    used = dict(part)
    for name in ("text", "content"):
        if used.get(name) is not None:
            used[name] = _given(texts, used[name])
    return used


def _looking(texts: Texts, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results are looked at as the model gets them. It is told why one may not be used."""

    def used(result: Any) -> Any:
        text = shown(result)
        try:
            looked = texts.made(text, name)
        except PolicyViolationError as e:
            return texts.refuse(e)
        return result if looked == text else looked

    async def awaited(result: Any) -> Any:
        return await asyncio.to_thread(used, await result)

    if is_async(function):

        async def acall(*args: Any, **named: Any) -> Any:
            return await awaited(function(*args, **named))

        return _like(function, acall)

    def call(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        return awaited(result) if inspect.isawaitable(result) else used(result)

    return _like(function, call)


def _like(function: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    """Return what was made of a function, under its name where it has one."""
    return functools.wraps(function)(made) if inspect.isroutine(function) else made


def _id(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._:@/-") else "-" for c in str(name))[:128] or "assistant"
