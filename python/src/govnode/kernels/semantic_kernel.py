"""Semantic Kernel by the adapter contract (section 13): a filter, and the wrap that it takes the place of."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from .._ids import Ids
from ..adapters import Gate
from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError
from ..integration.hooks import KernelSession
from ..integration.records import MOST, redacted
from ._texts import Texts
from ._wrapped import Wrapped

try:
    from semantic_kernel.functions import FunctionResult

    from ..adapters.semantic_kernel import _Governor

    _HAS_FILTER = True
except ImportError:
    _Governor = object  # type: ignore[assignment,misc]
    _HAS_FILTER = False

_AUTO, _FUNCTION = "auto_function_invocation", "function_invocation"


@dataclass
class SKContext(ExecutionContext):
    """A session of a kernel (section 13.4)."""

    kernel_id: str = field(default_factory=lambda: Ids().draw())
    plugins_loaded: list[str] = field(default_factory=list)
    functions_invoked: list[dict[str, Any]] = field(default_factory=list)
    memory_operations: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0


class SemanticKernelWrapper(FrameworkKernel):
    """Governs Semantic Kernel (section 13.1). Further options are those of BaseIntegration.

    ``kernel`` is what ``wrap`` takes where nothing is given. ``timeout_seconds`` bounds what a wrapped kernel invokes.
    ``signal_stop``, ``signal_continue`` and ``signal_kill`` hold here at once (section 13.3).
    """

    backend = "semantic-kernel"
    framework = "semantic_kernel"
    install = "govnode[semantic-kernel]"
    replacement = "as_filter"
    context_class = SKContext

    def __init__(
        self,
        kernel: Any | None = None,
        policy: Any = None,
        timeout_seconds: float = 300.0,
        evaluator: Any | None = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, evaluator, **options)
        self._kernel = kernel
        self._filters: list[tuple[tuple[str, str | None, dict[str, Any]], GovernanceFunctionFilter]] = []
        self._filters_lock = threading.Lock()
        self.timeout_seconds = timeout_seconds

    def as_filter(self, agent_id: str = "semantic-kernel", session_id: str | None = None, **options: Any) -> Any:
        """Return what goes into ``kernel.add_filter``, as both kinds of filters (section 13.2). It is one session.

        Both together are one call, and the same agent, session and options are the same filter. The arguments of
        ``Gate`` may follow.
        """
        self._require()
        with self._filters_lock:
            for asked, known in self._filters:
                if asked == (agent_id, session_id, options) and self.contexts.get(agent_id) is known.ctx:
                    return known
            made = GovernanceFunctionFilter(self, self.create_context(agent_id, session_id), dict(options))
            self._filters.append(((agent_id, session_id, options), made))
            del self._filters[:-MOST]
            return made

    def wrap(self, kernel: Any = None) -> Any:
        """Return a kernel whose functions are governed, and its invocations checked. Deprecated (section 13.5)."""
        self._deprecate()
        kernel = kernel if kernel is not None else self._kernel
        if kernel is None:
            raise TypeError("SemanticKernelWrapper: there is no kernel to wrap: give one")
        return GovernedSemanticKernel(self, kernel, self.create_context("semantic-kernel"))

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the kernel that was wrapped."""
        return governed_agent._agent if isinstance(governed_agent, GovernedSemanticKernel) else governed_agent


# The invocations that are being judged here.
_judged: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("govnode_judged", default=())


class GovernanceFunctionFilter:
    """Judges functions before they are invoked, and has looked at what they give. What is streamed is not."""

    def __init__(self, kernel: SemanticKernelWrapper, ctx: ExecutionContext, options: dict[str, Any]) -> None:
        assert isinstance(ctx, SKContext)
        #: The context in which it judges.
        self.ctx = ctx
        #: By this the filters of one governor know each other.
        self.__govnode__ = _Looking(kernel, ctx, options)

    def __deepcopy__(self, _: Any) -> GovernanceFunctionFilter:
        return self  # a clone of a kernel is governed in the same session

    async def __call__(self, context: Any, next: Callable[[Any], Awaitable[None]]) -> None:
        """Judge one invocation."""
        if any(x is context for x in _judged.get()):  # it was added twice
            await next(context)
            return
        token = _judged.set((*_judged.get(), context))
        try:
            await self._judge(context, next)
        finally:
            _judged.reset(token)

    async def _judge(self, context: Any, next: Callable[[Any], Awaitable[None]]) -> None:
        if not hasattr(context, "function_call_content"):
            await self.__govnode__.function(context, next)
            return
        kernel = context.kernel
        if not any(f is self for _, f in kernel.function_invocation_filters):
            kernel.add_filter(_FUNCTION, self)  # it is there that nothing changes the arguments any more
        await self.__govnode__.auto(context, next)


class _Looking(_Governor):
    """What judges, and looks at the results."""

    def __init__(self, kernel: SemanticKernelWrapper, ctx: SKContext, options: dict[str, Any]) -> None:
        session = KernelSession(kernel, ctx)
        conversation, qualified = options.pop("conversation", None), options.pop("qualified", False)
        super().__init__(Gate(session, **options), conversation, qualified)
        self._ctx = ctx
        self._texts = Texts(kernel, session)

    async def auto(self, context: Any, next: Callable[[Any], Awaitable[None]]) -> None:
        """Judge, and have what the model is told looked at: the text of an error too."""
        await super().auto(context, next)
        context.function_result = await self._looked(context.function_result, context.function)

    async def function(self, context: Any, next: Any) -> None:
        """Judge, let the function be invoked, and have its result looked at."""
        self._note(context)
        await super().function(context, next)
        if context.result is not None:
            self._count(context.result)
        context.result = await self._looked(context.result, context.function)

    async def _looked(self, result: Any, function: Any) -> Any:
        """Return a result as it may be used. What is streamed is not looked at."""
        if result is None or hasattr(result.value, "__aiter__") or hasattr(result.value, "__next__"):
            return result
        text = _shown(result.value)
        try:
            used = await asyncio.to_thread(self._texts.made, text, function.name)
        except PolicyViolationError as e:
            used = self._texts.refuse(e)
        return result if used == text else FunctionResult(function=function.metadata, value=used)

    def _note(self, context: Any) -> None:
        ctx, function = self._ctx, context.function
        with ctx._lock:
            ctx.plugins_loaded = list(context.kernel.plugins)
            entry = {"timestamp": _now(), "plugin": function.plugin_name, "function": function.name}
            ctx.functions_invoked.append(entry)
            del ctx.functions_invoked[:-MOST]

    def _count(self, result: Any) -> None:
        """Count the tokens of a prompt: its messages know them."""
        said = result.value if isinstance(result.value, list) else [result]
        usages = [(getattr(x, "metadata", None) or {}).get("usage") for x in said]
        with self._ctx._lock:
            for usage in usages:
                self._ctx.prompt_tokens += getattr(usage, "prompt_tokens", 0) or 0
                self._ctx.completion_tokens += getattr(usage, "completion_tokens", 0) or 0


class GovernedSemanticKernel(Wrapped):
    """A kernel between the checks of its wrapper (section 13.5). A memory that the kernel has is looked at."""

    def __init__(self, kernel: SemanticKernelWrapper, agent: Any, ctx: ExecutionContext) -> None:
        super().__init__(kernel, agent, ctx)
        self._timeout = kernel.timeout_seconds
        self._clone = agent.clone()  # the kernel itself stays as it is
        judge = GovernanceFunctionFilter(kernel, ctx, {"on_denied": "raise"})
        self._clone.add_filter(_AUTO, judge)
        self._clone.add_filter(_FUNCTION, judge)
        self._clone.add_filter("prompt_rendering", self._rendered)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clone, name)

    async def invoke(self, *args: Any, **named: Any) -> Any:
        """Invoke a function, within ``timeout_seconds``."""
        return await self._timed(self._clone.invoke(*args, **named))

    async def invoke_prompt(self, prompt: str, *args: Any, **named: Any) -> Any:
        """Invoke a prompt, within ``timeout_seconds``."""
        return await self._timed(self._clone.invoke_prompt(prompt, *args, **named))

    async def _rendered(self, context: Any, next: Callable[[Any], Awaitable[None]]) -> None:
        """Have a prompt looked at as the model gets it, with all that was put into it."""
        await next(context)
        if context.rendered_prompt:
            context.rendered_prompt = await self._kernel.alook(self._ctx, context.rendered_prompt, "input")

    async def save_information(self, collection: str, text: str, id: str, *args: Any, **named: Any) -> Any:
        """Write into the memory of the kernel. Raises PolicyViolationError for a text that is blocked or private."""
        entry = self._noted("save", collection, text)
        if await self._kernel.alook(self._ctx, text, "memory") != text:
            raise PolicyViolationError("the memory holds personal data", category="scan")
        entry["allowed"] = True
        return await self._agent.memory.save_information(collection, text, id, *args, **named)

    async def search(self, collection: str, query: str, *args: Any, **named: Any) -> Any:
        """Search the memory of the kernel. What is found is looked at too."""
        entry = self._noted("search", collection, query)
        query = await self._kernel.alook(self._ctx, query, "memory")
        found = await self._agent.memory.search(collection, query, *args, **named)
        for each in found if isinstance(found, list) else [found]:
            text = str(getattr(each, "text", each) or "")
            if await self._kernel.alook(self._ctx, text, "memory") != text:
                raise PolicyViolationError("the memory holds personal data", category="scan")
        entry["allowed"] = True
        return found

    def _noted(self, operation: str, collection: str, text: str) -> dict[str, Any]:
        ctx = self._ctx
        assert isinstance(ctx, SKContext)
        entry = {
            "timestamp": _now(),
            "operation": operation,
            "collection": collection,
            "text": redacted(text),
            "allowed": False,
        }
        with ctx._lock:
            ctx.memory_operations.append(entry)
            del ctx.memory_operations[:-MOST]
        self._kernel.heed(ctx, "memory")
        return entry

    def _timed(self, work: Awaitable[Any]) -> Awaitable[Any]:
        return asyncio.wait_for(work, self._timeout)


def _shown(value: Any) -> str:
    """Return all text of a result: the framework itself would show the first of many alone."""
    if isinstance(value, (list, tuple)):
        return "\n".join(_shown(v) for v in value)
    return "" if value is None else str(value)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
