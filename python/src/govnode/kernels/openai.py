"""OpenAI by the adapter contract (section 10): proxies of assistants, and the loop for responses that came later."""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError
from ..integration.hooks import KernelSession
from ._texts import Texts

try:
    from openai import AsyncOpenAI

    from ..adapters._functions import Functions
    from ..adapters.openai_assistants import AsyncGovernedAssistant, GovernedAssistant, _Governed
    from ..adapters.openai_responses import govern_responses

    _HAS_SDK = True
except ImportError:
    AsyncGovernedAssistant = GovernedAssistant = _Governed = object  # type: ignore[assignment,misc]
    _HAS_SDK = False


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
        self._cancelled_runs: set[str] = set()

    def wrap(self, assistant: Any, client: Any, session_id: str | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Return the proxy of an assistant (section 10.2): with an AsyncOpenAI its methods are to be awaited.

        Functions that are registered with it are governed. ``poll_interval``, ``parallel``, ``on_error`` and the
        arguments of ``Gate`` may follow.
        """
        if missing := self._missing():
            raise ImportError(missing)
        ctx = self.create_context(_id(assistant.id), session_id)
        assert isinstance(ctx, AssistantContext)
        ctx.assistant_id = assistant.id
        session = KernelSession(self, ctx)
        interval = options.pop("poll_interval", 1.0)
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
        made.texts = Texts(self, session)
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
        return governed_agent.assistant if isinstance(governed_agent, _Governed) else governed_agent

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
        return govern_responses(client, session, governed, **options)

    def cancel_run(self, thread_id: str, run_id: str, client: Any) -> None:
        """Cancel a run at the provider, as far as that succeeds (section 10.4). It calls no function any more."""
        self._cancelled_runs.add(run_id)
        try:
            client.beta.threads.runs.cancel(thread_id=thread_id, run_id=run_id)
        except Exception as e:
            self._last_error = f"run {run_id} was not cancelled: {e}"

    def is_cancelled(self, run_id: str) -> bool:
        """Tell whether a run was cancelled."""
        return run_id in self._cancelled_runs


class _Assistant(GovernedAssistant):
    """The proxy of an assistant whose texts are looked at."""

    texts: Texts

    def register_tool(self, name: str, func: Callable[..., Any]) -> None:
        """Let runs call a function by a name."""
        super().register_tool(name, _looking(self.texts, name, func))

    def add_message(self, thread_id: str, content: Any, **kwargs: Any) -> Any:
        """Add a message to a thread. Raises PolicyViolationError for one that is blocked."""
        return super().add_message(thread_id, _given(self.texts, content), **kwargs)


class _AsyncAssistant(AsyncGovernedAssistant):
    """The proxy of an assistant whose texts are looked at."""

    texts: Texts

    def register_tool(self, name: str, func: Callable[..., Any]) -> None:
        """Let runs call a function by a name."""
        super().register_tool(name, _looking(self.texts, name, func))

    async def add_message(self, thread_id: str, content: Any, **kwargs: Any) -> Any:
        """Add a message to a thread. Raises PolicyViolationError for one that is blocked."""
        return await super().add_message(thread_id, await asyncio.to_thread(_given, self.texts, content), **kwargs)


def _given(texts: Texts, content: Any) -> Any:
    """Return the content of a message as it may be sent."""
    if isinstance(content, str):
        return texts.given(content)
    if isinstance(content, list):
        return [{**c, "text": texts.given(c["text"])} if isinstance(c.get("text"), str) else c for c in content]
    return content


def _looking(texts: Texts, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose texts are looked at. Why one may not be used is for the model."""

    def looked(result: Any) -> Any:
        if not isinstance(result, str):
            return result if texts.made(str(result), name) == str(result) else texts.refuse("the output is private")
        return texts.made(result, name)

    def used(result: Any) -> Any:
        try:
            return looked(result)
        except PolicyViolationError as e:
            return texts.refuse(e)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def acall(*args: Any, **named: Any) -> Any:
            return await asyncio.to_thread(used, await function(*args, **named))

        return acall

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return used(function(*args, **named))

    return call


def _id(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._:@/-") else "-" for c in str(name))[:128] or "assistant"
