"""OpenAI Assistants: a proxy of an assistant whose functions are governed. The provider has ended this API.

    from govnode.adapters.openai_assistants import wrap

    writer = wrap(assistant, client, session, {"shell": shell})
    thread = writer.create_thread()
    writer.add_message(thread.id, "clean up")
    run = writer.run(thread.id)

It is for what still speaks it. New code uses ``openai_responses``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._ids import Latest
from ._functions import Asked, Functions, is_async, shown
from ._gate import Sessions, missing

try:
    from openai import APIConnectionError, AsyncOpenAI, OpenAI, RateLimitError
except ImportError as e:
    raise missing("the OpenAI SDK", "openai") from e

log = logging.getLogger("govnode")

_TRANSIENT = (RateLimitError, APIConnectionError)  # a timeout is one of the latter
_ENDS = ("completed", "failed", "cancelled", "expired", "incomplete")
_CANCEL_WITHIN = 10.0


@dataclass
class AssistantContext:
    """What an assistant has done through its proxy."""

    assistant_id: str
    thread_ids: list[str] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    #: The calls that came to the gate: their names, their ids and the ids of their runs. Their arguments may be secret.
    function_calls: list[dict[str, str]] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Governed:
    """What the proxies of both kinds of clients share."""

    def __init__(
        self,
        assistant: Any,
        client: Any,
        functions: Functions,
        retries: int,
        timeout: float,
        poll_interval: float,
        context: Any = None,
    ) -> None:
        self.assistant = assistant
        self.functions = functions
        self.context = context if context is not None else AssistantContext(assistant.id)
        self._client = client.with_options(max_retries=0)  # what is repeated is repeated here
        self._retries = retries
        self._timeout = timeout
        self._poll_interval = poll_interval
        self._cancelled_runs = Latest()

    def __getattr__(self, name: str) -> Any:
        if name == "assistant":
            raise AttributeError(name)
        return getattr(self.assistant, name)

    def is_cancelled(self, run_id: str) -> bool:
        """Report whether a run was cancelled here."""
        return run_id in self._cancelled_runs

    @property
    def _threads(self) -> Any:
        return self._client.beta.threads

    def _canceller(self) -> Any:
        return self._client.with_options(timeout=_CANCEL_WITHIN).beta.threads.runs

    def _asked(self, run: Any) -> list[Asked]:
        action = run.required_action
        if action is None or action.type != "submit_tool_outputs":
            raise RuntimeError(f"govnode: run {run.id} asks for something that is not known here")
        calls = action.submit_tool_outputs.tool_calls
        for c in calls:
            self.context.function_calls.append({"name": c.function.name, "call_id": c.id, "run_id": run.id})
        return [
            Asked(
                c.function.name,
                c.function.arguments,
                call_id=c.id,
                run_id=run.id,
                conversation=run.thread_id,
                fault=lambda: f"run {run.id} is cancelled" if self.is_cancelled(run.id) else "",
            )
            for c in calls
        ]

    def _started(self, run: Any) -> None:
        if run.id not in self.context.run_ids:
            self.context.run_ids.append(run.id)

    def _ended(self, run: Any) -> bool:
        if run.status not in _ENDS:
            return False
        if run.usage is not None:
            self.context.prompt_tokens += run.usage.prompt_tokens
            self.context.completion_tokens += run.usage.completion_tokens
        return True

    def _calls(self, run: Any) -> bool:
        """Report whether a run waits for functions, which it does not get once it is cancelled."""
        return run.status == "requires_action" and not self.is_cancelled(run.id)

    def _in_time(self, run: Any, until: float) -> None:
        if time.monotonic() >= until:
            raise TimeoutError(f"govnode: run {run.id} was {run.status} after {self._timeout:.3g} s")


class GovernedAssistant(_Governed):
    """The proxy of an assistant with an OpenAI client. It has the attributes of the assistant."""

    def register_tool(self, name: str, func: Callable[..., Any]) -> None:
        """Let runs call a function by a name."""
        if is_async(func):
            raise TypeError(f"govnode: {name} is to be awaited: that needs an AsyncOpenAI")
        self.functions.tools[name] = func

    def create_thread(self, **kwargs: Any) -> Any:
        """Create a thread."""
        thread = self._retry(self._threads.create, **kwargs)
        self.context.thread_ids.append(thread.id)
        return thread

    def add_message(self, thread_id: str, content: Any, **kwargs: Any) -> Any:
        """Add a message to a thread: of the user, if no ``role`` says otherwise."""
        return self._retry(
            self._threads.messages.create, thread_id=thread_id, content=content, **{"role": "user", **kwargs}
        )

    def run(self, thread_id: str, **kwargs: Any) -> Any:
        """Run the assistant on a thread, and return the run as it ended.

        A run that ends by an error here, or by Killed, is cancelled at the provider.
        """
        self.functions.end_if_killed(thread_id)
        until = time.monotonic() + self._timeout
        runs = self._threads.runs
        run = self._retry(runs.create, thread_id=thread_id, assistant_id=self.assistant.id, **kwargs)
        self._started(run)
        try:
            while not self._ended(run):
                self.functions.end_if_killed(thread_id)
                self._in_time(run, until)
                at = {"thread_id": thread_id, "run_id": run.id}
                if self._calls(run):
                    outputs = self._outputs(run)
                    if not self.is_cancelled(run.id):
                        run = self._retry(runs.submit_tool_outputs, **at, tool_outputs=outputs)
                else:
                    time.sleep(self._poll_interval)
                    run = self._retry(runs.retrieve, **at)
        except BaseException:
            self.cancel_run(thread_id, run.id)
            raise
        return run

    def run_stream(self, thread_id: str, **kwargs: Any) -> Iterator[Any]:
        """Run the assistant on a thread, and yield the events. Closed early, the run is cancelled."""
        self.functions.end_if_killed(thread_id)
        until = time.monotonic() + self._timeout
        runs, run, ended = self._threads.runs, None, False
        events = self._retry(
            runs.create, thread_id=thread_id, assistant_id=self.assistant.id, **{**kwargs, "stream": True}
        )
        try:
            while events is not None:
                with events:
                    for event in events:
                        if _of_run(event):
                            run = event.data
                            self._started(run)
                            ended = ended or self._ended(run)
                            if not ended:
                                self._in_time(run, until)
                        yield event
                events = None
                if run is not None and self._calls(run):
                    outputs = self._outputs(run)
                    if self.is_cancelled(run.id):
                        return
                    at = {"thread_id": thread_id, "run_id": run.id}
                    events = self._retry(runs.submit_tool_outputs, **at, tool_outputs=outputs, stream=True)
        finally:
            if run is not None and not ended:
                self.cancel_run(thread_id, run.id)

    def cancel_run(self, thread_id: str, run_id: str, client: Any = None) -> None:
        """Cancel a run at the provider, as far as that succeeds. It calls no function any more."""
        self._cancelled_runs.add(run_id)
        try:
            runs = client.beta.threads.runs if client is not None else self._canceller()
            runs.cancel(thread_id=thread_id, run_id=run_id)
        except Exception as e:
            log.info("govnode: run %s was not cancelled: %s", run_id, e)

    def _outputs(self, run: Any) -> list[dict[str, str]]:
        asked = self._asked(run)
        results = self.functions.run_all(asked)
        self.functions.end_if_killed(run.thread_id)
        return [{"tool_call_id": a.call_id, "output": shown(r)} for a, r in zip(asked, results, strict=True)]

    def _retry(self, fn: Callable[..., Any], **kwargs: Any) -> Any:
        return retry_with_backoff(fn, max_retries=self._retries, **kwargs)


class AsyncGovernedAssistant(_Governed):
    """The proxy of an assistant with an AsyncOpenAI client."""

    def register_tool(self, name: str, func: Callable[..., Any]) -> None:
        """Let runs call a function by a name. One that is not async runs in a thread."""
        self.functions.tools[name] = func

    async def create_thread(self, **kwargs: Any) -> Any:
        """Create a thread."""
        thread = await self._retry(self._threads.create, **kwargs)
        self.context.thread_ids.append(thread.id)
        return thread

    async def add_message(self, thread_id: str, content: Any, **kwargs: Any) -> Any:
        """Add a message to a thread, as ``GovernedAssistant.add_message`` does."""
        return await self._retry(
            self._threads.messages.create, thread_id=thread_id, content=content, **{"role": "user", **kwargs}
        )

    async def run(self, thread_id: str, **kwargs: Any) -> Any:
        """Run the assistant on a thread, as ``GovernedAssistant.run`` does."""
        self.functions.end_if_killed(thread_id)
        until = time.monotonic() + self._timeout
        runs = self._threads.runs
        run = await self._retry(runs.create, thread_id=thread_id, assistant_id=self.assistant.id, **kwargs)
        self._started(run)
        try:
            while not self._ended(run):
                self.functions.end_if_killed(thread_id)
                self._in_time(run, until)
                at = {"thread_id": thread_id, "run_id": run.id}
                if self._calls(run):
                    outputs = await self._outputs(run)
                    if not self.is_cancelled(run.id):
                        run = await self._retry(runs.submit_tool_outputs, **at, tool_outputs=outputs)
                else:
                    await asyncio.sleep(self._poll_interval)
                    run = await self._retry(runs.retrieve, **at)
        except BaseException:
            await self.cancel_run(thread_id, run.id)
            raise
        return run

    async def run_stream(self, thread_id: str, **kwargs: Any) -> AsyncIterator[Any]:
        """Run the assistant on a thread, as ``GovernedAssistant.run_stream`` does."""
        self.functions.end_if_killed(thread_id)
        until = time.monotonic() + self._timeout
        runs, run, ended = self._threads.runs, None, False
        events = await self._retry(
            runs.create, thread_id=thread_id, assistant_id=self.assistant.id, **{**kwargs, "stream": True}
        )
        try:
            while events is not None:
                async with events:
                    async for event in events:
                        if _of_run(event):
                            run = event.data
                            self._started(run)
                            ended = ended or self._ended(run)
                            if not ended:
                                self._in_time(run, until)
                        yield event
                events = None
                if run is not None and self._calls(run):
                    outputs = await self._outputs(run)
                    if self.is_cancelled(run.id):
                        return
                    at = {"thread_id": thread_id, "run_id": run.id}
                    events = await self._retry(runs.submit_tool_outputs, **at, tool_outputs=outputs, stream=True)
        finally:
            if run is not None and not ended:
                await self.cancel_run(thread_id, run.id)

    async def cancel_run(self, thread_id: str, run_id: str, client: Any = None) -> None:
        """Cancel a run at the provider, as ``GovernedAssistant.cancel_run`` does."""
        self._cancelled_runs.add(run_id)
        try:
            runs = client.beta.threads.runs if client is not None else self._canceller()
            await runs.cancel(thread_id=thread_id, run_id=run_id)
        except Exception as e:
            log.info("govnode: run %s was not cancelled: %s", run_id, e)

    async def _outputs(self, run: Any) -> list[dict[str, str]]:
        asked = self._asked(run)
        results = await self.functions.arun_all(asked)
        self.functions.end_if_killed(run.thread_id)
        return [{"tool_call_id": a.call_id, "output": shown(r)} for a, r in zip(asked, results, strict=True)]

    async def _retry(self, fn: Callable[..., Awaitable[Any]], **kwargs: Any) -> Any:
        return await aretry_with_backoff(fn, max_retries=self._retries, **kwargs)


def wrap(
    assistant: Any,
    client: Any,
    session: Sessions,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    *,
    max_retries: int = 3,
    timeout_seconds: float = 300.0,
    poll_interval: float = 1.0,
    **options: Any,
) -> Any:
    """Return the proxy of an assistant: an AsyncGovernedAssistant where the client is an AsyncOpenAI.

    ``session`` may be a function of the id of a thread. ``timeout_seconds`` is for a run as a whole. ``parallel``,
    ``on_error`` and the arguments of ``Gate`` may follow.
    """
    if not isinstance(client, OpenAI | AsyncOpenAI):
        raise TypeError(f"govnode: {type(client).__name__} is neither an OpenAI nor an AsyncOpenAI")
    kind = AsyncGovernedAssistant if isinstance(client, AsyncOpenAI) else GovernedAssistant
    functions = Functions(session, **options)
    governed = kind(assistant, client, functions, max_retries, timeout_seconds, poll_interval)
    for name, tool in (tools or {}).items():
        governed.register_tool(name, tool)
    return governed


def unwrap(governed: Any) -> Any:
    """Return the assistant of a proxy."""
    return governed.assistant


def retry_with_backoff(
    fn: Callable[..., Any],
    *args: Any,
    max_retries: int = 3,
    base_delay: float = 1.0,
    max_delay: float = 30.0,
    **kwargs: Any,
) -> Any:
    """Call a function of the SDK, and again where the error may pass: a rate limit, a connection, a timeout."""
    for pause in _pauses(max_retries, base_delay, max_delay):
        try:
            return fn(*args, **kwargs)
        except _TRANSIENT:
            time.sleep(pause)
    return fn(*args, **kwargs)


async def aretry_with_backoff(
    fn: Callable[..., Awaitable[Any]],
    *args: Any,
    max_retries: int = 3,
    base_delay: float = 1.0,
    max_delay: float = 30.0,
    **kwargs: Any,
) -> Any:
    """Await a function of the SDK, as ``retry_with_backoff`` calls one."""
    for pause in _pauses(max_retries, base_delay, max_delay):
        try:
            return await fn(*args, **kwargs)
        except _TRANSIENT:
            await asyncio.sleep(pause)
    return await fn(*args, **kwargs)


def _pauses(most: int, base: float, longest: float) -> Iterator[float]:
    for n in range(most):
        yield min(base * 2.0**n, longest) * random.uniform(0.5, 1.0)


def _of_run(event: Any) -> bool:
    return bool(event.event.startswith("thread.run.") and not event.event.startswith("thread.run.step."))
