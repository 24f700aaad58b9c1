"""The OpenAI Agents SDK by the adapter contract (section 14): run hooks, guards, guardrails, and the old wraps."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

from ..adapters import Gate
from ..adapters._gate import Killed, Passage
from ..integration import ExecutionContext, FrameworkKernel, GovernancePolicy, PolicyViolationError, ToolCallRequest
from ..integration.hooks import KernelSession

try:
    from agents import Agent, GuardrailFunctionOutput, RunHooks

    from ..adapters.openai_agents import _malformed, _read, govern_agent

    _HOOKS_AVAILABLE = True
except ImportError:
    RunHooks = object
    _HOOKS_AVAILABLE = False

_FIELDS = ("max_tool_calls", "timeout_seconds", "allowed_tools", "blocked_patterns", "require_human_approval")


class OpenAIAgentsKernel(FrameworkKernel):
    """Governs agents of the OpenAI Agents SDK (section 14.1). Further options are those of BaseIntegration.

    Without a ``policy`` one is made of the convenience arguments. ``max_handoffs`` and ``blocked_tools`` hold in any
    case, unless the policy is on the service: then they are to be written there.
    """

    backend = "openai-agents"
    framework = "agents"
    install = "govnode[openai-agents]"
    replacement = "as_hooks"

    def __init__(
        self,
        policy: Any = None,
        on_violation: Callable[[PolicyViolationError], Any] | None = None,
        evaluator: Any | None = None,
        max_tool_calls: int = 50,
        max_handoffs: int = 5,
        timeout_seconds: int = 300,
        allowed_tools: list[str] | None = None,
        blocked_tools: list[str] | None = None,
        blocked_patterns: list[str] | None = None,
        require_human_approval: bool = False,
        **options: Any,
    ) -> None:
        if policy is None:
            policy = GovernancePolicy(
                max_tool_calls=max_tool_calls,
                timeout_seconds=timeout_seconds,
                allowed_tools=list(allowed_tools or ()),
                blocked_patterns=list(blocked_patterns or ()),
                require_human_approval=require_human_approval,
            )
        else:
            given = (max_tool_calls, timeout_seconds, allowed_tools, blocked_patterns, require_human_approval)
            for name, value, default in zip(_FIELDS, given, (50, 300, None, None, False), strict=True):
                if value != default:
                    raise ValueError(f"{name}: there is a policy: set it there")
        limits = dict(options.pop("limits", None) or {})
        if not isinstance(policy, str) or max_handoffs != 5:
            limits.setdefault("max_handoffs", max_handoffs)
        self.max_handoffs = limits.get("max_handoffs", max_handoffs)
        super().__init__(
            policy,
            evaluator,
            on_violation=on_violation,
            limits=limits,
            blocked_tools=blocked_tools or (),
            **options,
        )
        self._wrapped: dict[int, tuple[Any, Any]] = {}

    def as_hooks(self, agent_id: str = "openai-agents", session_id: str | None = None, **options: Any) -> Any:
        """Return what ``Runner.run(hooks=...)`` takes (section 14.2). It is one session.

        Hooks cannot change anything, and cannot tell the model: what is denied, or would have to be changed, ends the
        run with PolicyViolationError. ``govern`` can do both. The arguments of ``Gate`` may follow.
        """
        self._require()
        return GovernanceRunHooks(self, self.create_context(agent_id, session_id), options)

    def govern(self, agent: Any, agent_id: str = "", session_id: str | None = None, **options: Any) -> Any:
        """Return a copy of an agent whose tools, handoffs and MCP servers are governed: see ``govern_agent``."""
        self._require()
        return govern_agent(agent, self.session_of(agent_id or _id(agent.name), session_id), **options)

    def create_tool_guard(
        self, function: Callable[..., Any] | None = None, *, tool_name: str = "", ctx: ExecutionContext | None = None
    ) -> Callable[..., Any]:
        """Return a function that asks before it runs, for ``function_tool`` (section 14.3). It may be a decorator.

        Why it may not run is what it returns, since the SDK tells the model nothing of an exception.
        """
        if function is None:
            return functools.partial(self.create_tool_guard, tool_name=tool_name, ctx=ctx)
        inner, name = function, tool_name or function.__name__
        signature = inspect.signature(inner)
        session = KernelSession(self, ctx or self.create_context(_id(name)))
        gate = Gate(session)

        def bound(args: Any, named: Any) -> inspect.BoundArguments:
            found = signature.bind(*args, **named)
            found.apply_defaults()
            return found

        def asked(call: inspect.BoundArguments) -> dict[str, Any]:
            first = next(iter(signature.parameters), "")
            return {k: v for k, v in call.arguments.items() if k != first or not _is_context(v)}

        if inspect.iscoroutinefunction(inner):

            @functools.wraps(inner)
            async def aguarded(*args: Any, **named: Any) -> Any:
                call = bound(args, named)
                given = asked(call)
                passage = await gate.aenter(name, given)
                _change(call, given, passage)
                if passage.denied is not None:
                    return _refused(passage)
                return await passage.arun(lambda: inner(*call.args, **call.kwargs))

            return aguarded

        @functools.wraps(inner)
        def guarded(*args: Any, **named: Any) -> Any:
            call = bound(args, named)
            given = asked(call)
            passage = gate.enter(name, given)
            _change(call, given, passage)
            if passage.denied is not None:
                return _refused(passage)
            return passage.run(lambda: inner(*call.args, **call.kwargs))

        return guarded

    def create_guardrail(self, kind: str = "input", ctx: ExecutionContext | None = None) -> Callable[..., Any]:
        """Return the function of an InputGuardrail, or with ``kind="output"`` of an OutputGuardrail (section 14.4).

        Its tripwire is triggered where a text may not be used as it is.
        """
        self._require()
        if kind not in ("input", "output"):
            raise ValueError(f'kind must be "input" or "output", got {kind!r}')
        context = ctx or self.create_context(f"openai-agents-{kind}")

        async def govnode_guardrail(_: Any, agent: Any, text: Any) -> Any:
            why = ""
            for piece in _texts(text):
                try:
                    await _unchanged(self, context, piece, kind)
                except PolicyViolationError as e:
                    why = str(e)
                    break
            return GuardrailFunctionOutput(output_info={"reason": why}, tripwire_triggered=bool(why))

        return govnode_guardrail

    def wrap(self, agent: Any) -> Any:
        """Return a copy of an agent that is governed; a denial ends its run. Deprecated."""
        self._deprecate()
        governed = self.govern(agent, on_denied="raise")
        self._wrapped[id(governed)] = (governed, agent)
        return governed

    def wrap_runner(self, runner: Any) -> Any:
        """Return a runner whose agents are governed, and whose runs are checked. Deprecated (section 14.6)."""
        self._deprecate("wrap_runner")
        governed = _governed_runner(self, runner)
        self._wrapped[id(governed)] = (governed, runner)
        return governed

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent, or the runner, that was wrapped."""
        return self._wrapped.pop(id(governed_agent), (None, governed_agent))[1]


class GovernanceRunHooks(RunHooks):
    """The hooks of runs (section 14.2.1)."""

    def __init__(self, kernel: OpenAIAgentsKernel, ctx: ExecutionContext, options: dict[str, Any]) -> None:
        self._kernel = kernel
        self._ctx = ctx
        # Of a tool that fails, or is cancelled, hooks hear nothing: its call ends by itself.
        held = {"max_hold": float(ctx.policy.timeout_seconds), **options.pop("options", {})}
        self._gate = Gate(KernelSession(kernel, ctx), on_denied="raise", options=held, **options)  # type: ignore[arg-type]
        self._under_way: dict[tuple[int, str], Passage] = {}
        self._run = self._gate.draw()

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """Have what the agent is to work on looked at."""
        self._raise_killed()
        for text in _texts(getattr(context, "turn_input", None)):
            await _unchanged(self._kernel, self._ctx, text, "input")

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        """End the run of a session that is killed."""
        self._raise_killed()

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """Take down what the agent gave, and whether that is blocked."""
        request = ToolCallRequest("", {"output": str(output)}, agent_id=_id(agent.name))
        try:
            await self._kernel.alook(self._ctx, str(output), "output")
        except PolicyViolationError:  # it is taken down by that
            return
        self._kernel._record("agent_end", request, kind="agent", kept=self._ctx.policy.log_all_calls)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Begin the call. What is denied ends the run."""
        arguments = _read(getattr(context, "tool_arguments", "") or "")
        if arguments is None:
            raise PolicyViolationError(_malformed(tool.name).reason, tool_name=tool.name)
        id = getattr(context, "tool_call_id", "") or ""
        passage = await self._gate.aenter(tool.name, arguments, call_id=id, run_id=self._run_of(context))
        if passage.changed:
            await passage.aend("cancelled")
            raise PolicyViolationError(f"the arguments of {tool.name} would have to be changed", tool_name=tool.name)
        self._under_way[id_of(context), id] = passage

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        """End the call, and have what the tool gave looked at."""
        passage = self._under_way.pop((id_of(context), getattr(context, "tool_call_id", "") or ""), None)
        if passage is not None:
            await passage.aend("succeeded", result)
            if passage.shown is not None:  # a hook cannot show something else
                raise PolicyViolationError(f"the output of {tool.name} would have to be changed", tool_name=tool.name)
        await _unchanged(self._kernel, self._ctx, str(result), "output", tool.name)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Count the handoff: the one beyond ``max_handoffs`` raises PolicyViolationError (section 14.5)."""
        passage = await self._gate.aenter(to_agent.name, {"from": from_agent.name}, options={"kind": "handoff"})
        await passage.aend("succeeded")

    def _raise_killed(self) -> None:
        killed = self._gate.killed()
        if killed is not None:
            raise Killed(killed)

    def _run_of(self, context: Any) -> str:
        return f"{self._run}:{id_of(context)}"


def id_of(context: Any) -> int:
    """Tell one run from another that goes on at the same time: all contexts of a run have the same usage."""
    return id(getattr(context, "usage", None))


def _change(call: inspect.BoundArguments, given: dict[str, Any], passage: Passage) -> None:
    """Put the arguments that are allowed in the place of those given. Others than the function takes deny the call."""
    if passage.denied is not None or not passage.changed:
        return
    changed = passage.arguments
    if unknown := changed.keys() - call.signature.parameters.keys():
        passage.refuse(
            f"a guardrail has put in arguments that the function does not take: {', '.join(sorted(unknown))}"
        )
        return
    for name in given:
        del call.arguments[name]
    call.arguments.update(changed)


def _refused(passage: Passage) -> str:
    if passage.killed and passage.denied is not None:
        raise Killed(passage.denied)
    return passage.text


async def _unchanged(kernel: FrameworkKernel, ctx: ExecutionContext, text: str, kind: str, tool: str = "") -> None:
    """Have a text looked at that cannot be changed here. Raises PolicyViolationError where it may not stay as it is."""
    if text and await kernel.alook(ctx, text, kind, tool) != text:
        reason = f"the {kind} holds personal data, and cannot be redacted here"
        kernel._violated(reason, "scan", tool)
        raise PolicyViolationError(reason, category="scan", tool_name=tool)


def _texts(items: Any) -> list[str]:
    """Return the texts of an input: one that is plain, or those of its messages."""
    if items is None:
        return []
    if isinstance(items, str):
        return [items]
    if not isinstance(items, list):
        return [str(items)]
    found: list[str] = []
    for item in items:
        content = item.get("content") if isinstance(item, dict) else getattr(item, "content", None)
        if isinstance(content, str):
            found.append(content)
        elif isinstance(content, list):
            found += [str(c["text"]) for c in content if isinstance(c, dict) and "text" in c]
    return found


def _is_context(value: Any) -> bool:
    from agents import RunContextWrapper

    return isinstance(value, RunContextWrapper)


def _id(name: str) -> str:
    """Return a name as the id of an agent."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._:@/-") else "-" for c in name)[:128] or "agent"


def _governed_runner(kernel: OpenAIAgentsKernel, runner: Any) -> Any:
    """Return a class with the ways to run an agent that a runner has."""

    def governed(agent: Any) -> tuple[Any, ExecutionContext]:
        ctx = kernel.create_context(_id(agent.name))
        return govern_agent(agent, KernelSession(kernel, ctx), on_denied="raise"), ctx

    class GovernedRunner:
        """Runs agents that are governed."""

        @staticmethod
        async def run(starting_agent: Agent[Any], input: Any, **named: Any) -> Any:
            """Run an agent between the checks of the kernel."""
            agent, ctx = governed(starting_agent)
            return await kernel.agoverned(ctx, _shown(input), lambda: runner.run(agent, input, **named))

        @staticmethod
        def run_sync(starting_agent: Agent[Any], input: Any, **named: Any) -> Any:
            """Run an agent between the checks of the kernel."""
            agent, ctx = governed(starting_agent)
            return kernel.governed(ctx, _shown(input), lambda: runner.run_sync(agent, input, **named))

        @staticmethod
        def run_streamed(starting_agent: Agent[Any], input: Any, **named: Any) -> Any:
            """Run an agent whose tools are governed. What is streamed is not checked as a whole."""
            agent, ctx = governed(starting_agent)
            kernel.governed(ctx, _shown(input), lambda: None)
            return runner.run_streamed(agent, input, **named)

    return GovernedRunner


def _shown(input: Any) -> str:
    return input if isinstance(input, str) else json.dumps(input, default=str)
