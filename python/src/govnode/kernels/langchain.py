"""LangChain by the adapter contract (section 7): a middleware, and the wrap that it takes the place of."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from datetime import datetime, timezone
from typing import Any

from ..adapters import Gate
from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError
from ..integration.hooks import KernelSession
from ..integration.records import MOST, redacted
from ._texts import Texts
from ._wrapped import Wrapped, delegated

try:
    from ..adapters.langchain import GovnodeMiddleware, _threaded

    _HAS_MIDDLEWARE = True
except ImportError:
    GovnodeMiddleware = object  # type: ignore[assignment,misc]
    _HAS_MIDDLEWARE = False

_END: Any = object()


class LangChainKernel(FrameworkKernel):
    """Governs LangChain agents (section 7.1). Further options are those of BaseIntegration.

    ``timeout_seconds`` bounds what a wrapped agent does with ``ainvoke``. With ``deep_hooks_enabled`` wrapping one
    governs its tools, the writes of its memory and the agents that it starts.
    """

    backend = "langchain"
    framework = "langchain.agents"
    install = "govnode[langchain]"
    replacement = "as_middleware"

    def __init__(
        self,
        policy: Any = None,
        timeout_seconds: float = 300.0,
        deep_hooks_enabled: bool = True,
        evaluator: Any | None = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, evaluator, **options)
        self.timeout_seconds = timeout_seconds
        self.deep_hooks_enabled = deep_hooks_enabled
        self._wrapped_agents: dict[int, Any] = {}
        self._tool_invocations: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._memory_audit_log: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._delegation_chains: deque[dict[str, Any]] = deque(maxlen=MOST)

    def as_middleware(self, agent_id: str = "langchain", session_id: str | None = None, **options: Any) -> Any:
        """Return what goes last into ``create_agent(middleware=[...])`` (section 7.2). It is one session.

        The arguments of ``Gate`` may follow. Raises RuntimeError where LangChain is missing.
        """
        self._require()
        return GovernanceMiddleware(self, self.create_context(agent_id, session_id), **options)

    def wrap(self, agent: Any, agent_id: str = "langchain", session_id: str | None = None) -> Any:
        """Return a chain whose ``invoke``, ``stream`` and ``batch`` are governed, and their async twins. Deprecated."""
        self._deprecate()
        governed = GovernedChain(self, agent, self.create_context(agent_id, session_id))
        self._wrapped_agents[id(governed)] = agent
        return governed

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the chain that was wrapped, with its tools and its memory as they were."""
        if isinstance(governed_agent, GovernedChain):
            governed_agent._restore()
            self._wrapped_agents.pop(id(governed_agent), None)
            return governed_agent._agent
        return governed_agent


class GovernanceMiddleware(GovnodeMiddleware):
    """Asks before each call of a tool, and has what goes to the model and comes back looked at (section 7.2.1).

    A text that is blocked ends the run with PolicyViolationError; of a tool's output the model is told.
    """

    def __init__(self, kernel: LangChainKernel, ctx: ExecutionContext, **options: Any) -> None:
        session = KernelSession(kernel, ctx)
        super().__init__(session, **options)
        self._texts = Texts(kernel, session)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Ask, run the tool, and have its output looked at."""
        return self._after_tool(request, super().wrap_tool_call(request, handler))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what ``wrap_tool_call`` does."""
        return await asyncio.to_thread(self._after_tool, request, await super().awrap_tool_call(request, handler))

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Have what is new for the model looked at, and what it answers."""
        return self._after_model(handler(self._before_model(request)))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what ``wrap_model_call`` does."""
        return await asyncio.to_thread(
            self._after_model, await handler(await asyncio.to_thread(self._before_model, request))
        )

    def _before_model(self, request: Any) -> Any:
        changed: dict[str, Any] = {}
        messages = [_looked(m, self._texts.given) for m in request.messages]
        if any(a is not b for a, b in zip(messages, request.messages, strict=True)):
            changed["messages"] = messages
        if request.system_message is not None:
            system = _looked(request.system_message, self._texts.given)
            if system is not request.system_message:
                changed["system_message"] = system
        return request.override(**changed) if changed else request

    def _after_model(self, response: Any) -> Any:
        for i, message in enumerate(response.result):
            response.result[i] = _looked(message, self._texts.made)
        return response

    def _after_tool(self, request: Any, result: Any) -> Any:
        if not hasattr(result, "content"):
            return result  # a command
        name = request.tool_call["name"]
        try:
            return _looked(result, lambda t: self._texts.made(t, name))
        except PolicyViolationError as e:
            refusal = {"content": self._texts.refuse(e), "status": "error", "artifact": None}
            return result.model_copy(update=refusal)


def _looked(message: Any, look: Callable[[str], str]) -> Any:
    """Return a message with its texts as they may be used; the message itself where nothing is changed."""
    content = message.content
    used: Any
    if isinstance(content, str):
        used = look(content) if content else content
    else:
        used = [_looked_block(block, look) for block in content]
    return message if used == content else message.model_copy(update={"content": used})


def _looked_block(block: Any, look: Callable[[str], str]) -> Any:
    if isinstance(block, str):
        return look(block)
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        return {**block, "text": look(block["text"])}
    return block


class GovernedChain(Wrapped):
    """A chain between the checks of its kernel (section 7.3)."""

    _kernel: LangChainKernel

    def __init__(self, kernel: LangChainKernel, agent: Any, ctx: ExecutionContext) -> None:
        super().__init__(kernel, agent, ctx)
        self._restores: list[Callable[[], None]] = []
        if kernel.deep_hooks_enabled:
            self._govern_tools()
            self._govern_memory()

    def invoke(self, input: Any, *args: Any, **named: Any) -> Any:
        """Run the chain."""
        with self._delegated("invoke"):
            return self._kernel.governed(self._ctx, input, lambda: self._agent.invoke(input, *args, **named))

    async def ainvoke(self, input: Any, *args: Any, **named: Any) -> Any:
        """Run the chain, within ``timeout_seconds``."""
        with self._delegated("ainvoke"):
            return await self._kernel.agoverned(
                self._ctx,
                input,
                lambda: asyncio.wait_for(self._agent.ainvoke(input, *args, **named), self._kernel.timeout_seconds),
            )

    def stream(self, input: Any, *args: Any, **named: Any) -> Iterator[Any]:
        """Run the chain piece by piece. What it gave is looked at when all has come."""
        kernel, ctx = self._kernel, self._ctx
        with self._delegated("stream"):
            kernel.pre_execute_check(ctx, input).require()
        given: list[Any] = []
        try:
            with closing(iter(self._agent.stream(input, *args, **named))) as pieces:
                while True:
                    with delegated(ctx):  # for each piece anew: between them the caller's own code runs
                        piece = next(pieces, _END)
                    if piece is _END:
                        break
                    given.append(piece)
                    yield piece
        except BaseException as e:
            kernel.post_execute_check(ctx, e)
            raise
        kernel.post_execute_check(ctx, given).require()

    async def astream(self, input: Any, *args: Any, **named: Any) -> AsyncIterator[Any]:
        """Do what ``stream`` does."""
        kernel, ctx = self._kernel, self._ctx
        with self._delegated("astream"):
            (await kernel.async_pre_execute_check(ctx, input)).require()
        given: list[Any] = []
        try:
            async with aclosing(aiter(self._agent.astream(input, *args, **named))) as pieces:
                while True:
                    with delegated(ctx):
                        piece = await anext(pieces, _END)
                    if piece is _END:
                        break
                    given.append(piece)
                    yield piece
        except BaseException as e:
            kernel.post_behind(ctx, e)
            raise
        (await kernel.async_post_execute_check(ctx, given)).require()

    def batch(self, inputs: list[Any], *args: Any, **named: Any) -> list[Any]:
        """Run the chain for each of several inputs, all under one check."""
        with self._delegated("batch"):
            return self._kernel.governed(self._ctx, inputs, lambda: self._agent.batch(inputs, *args, **named))

    async def abatch(self, inputs: list[Any], *args: Any, **named: Any) -> Any:
        """Do what ``batch`` does."""
        with self._delegated("abatch"):
            return await self._kernel.agoverned(self._ctx, inputs, lambda: self._agent.abatch(inputs, *args, **named))

    @contextmanager
    def _delegated(self, method: str) -> Iterator[None]:
        """Note which agent runs in which."""
        with delegated(self._ctx) as outer:
            if outer:
                chain = [*(o.agent_id for o in outer), self._ctx.agent_id]
                entry = {"timestamp": _now(), "method": method, "chain": chain, "depth": len(chain)}
                self._kernel._delegation_chains.append(entry)
            yield

    # The tools that the chain has, and its memory.

    def _govern_tools(self) -> None:
        for tool in _tools_of(self._agent):
            self._govern_tool(tool)

    def _govern_tool(self, tool: Any) -> None:
        gate = Gate(KernelSession(self._kernel, self._ctx), on_denied="raise")
        noted, inner, ainner = self._kernel._tool_invocations, tool._run, tool._arun
        with_artifact = getattr(tool, "response_format", "") == "content_and_artifact"

        def asked(named: dict[str, Any]) -> dict[str, Any]:
            arguments = {k: v for k, v in named.items() if k not in ("run_manager", "config")}
            noted.append({"timestamp": _now(), "tool_name": tool.name, "arguments": redacted(arguments)})
            return arguments

        def seen(result: Any) -> Any:
            return result[0] if with_artifact and isinstance(result, tuple) and len(result) == 2 else result

        def told(result: Any, shown: Any) -> Any:
            return (shown, None) if with_artifact else shown

        @functools.wraps(inner)
        def run(*args: Any, **named: Any) -> Any:
            arguments = asked(named)
            passage = gate.enter(tool.name, {**arguments, "args": list(args)} if args else arguments)
            if passage.changed:
                args, named = _changed(passage.arguments, args, named)
            return passage.run(lambda: inner(*args, **named), seen=seen, told=told)

        @functools.wraps(ainner)
        async def arun(*args: Any, **named: Any) -> Any:
            arguments = asked(named)
            passage = await gate.aenter(tool.name, {**arguments, "args": list(args)} if args else arguments)
            if passage.changed:
                args, named = _changed(passage.arguments, args, named)
            return await passage.arun(lambda: ainner(*args, **named), seen=seen, told=told)

        self._replace(tool, "_run", run)
        if not _threaded(tool):  # else it comes to _run, in a thread
            self._replace(tool, "_arun", arun)

    def _govern_memory(self) -> None:
        memory = getattr(self._agent, "memory", None)
        inner = getattr(memory, "save_context", None)
        if inner is None:
            return
        noted = self._kernel._memory_audit_log

        @functools.wraps(inner)
        def save_context(inputs: Any, outputs: Any, *args: Any, **named: Any) -> Any:
            entry = {"timestamp": _now(), "allowed": False, "inputs": redacted(inputs), "outputs": redacted(outputs)}
            noted.append(entry)
            text = f"{inputs} {outputs}"
            if self._kernel.look(self._ctx, text, "memory") != text:
                raise PolicyViolationError("the memory holds personal data", category="scan")
            entry["allowed"] = True
            return inner(inputs, outputs, *args, **named)

        self._replace(memory, "save_context", save_context)

    def _replace(self, of: Any, name: str, by: Any) -> None:
        had = name in vars(of)
        before = vars(of).get(name)
        object.__setattr__(of, name, by)

        def restore() -> None:
            if had:
                object.__setattr__(of, name, before)
            else:
                vars(of).pop(name, None)

        self._restores.append(restore)

    def _restore(self) -> None:
        while self._restores:
            self._restores.pop()()


def _tools_of(agent: Any) -> list[Any]:
    """Return the tools that a chain, an executor or a graph runs."""
    found = list(getattr(agent, "tools", None) or ())
    for node in (getattr(agent, "nodes", None) or {}).values():
        found += (getattr(getattr(node, "bound", node), "tools_by_name", None) or {}).values()
    return [t for t in dict((id(t), t) for t in found).values() if hasattr(t, "_run") and hasattr(t, "_arun")]


def _changed(arguments: dict[str, Any], args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a tool with what was changed in them."""
    if args:
        args = tuple(arguments.pop("args", ()))
    kept = {k: v for k, v in named.items() if k in ("run_manager", "config")}
    return args, {**arguments, **kept}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
