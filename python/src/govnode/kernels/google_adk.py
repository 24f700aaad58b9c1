"""Google ADK by the adapter contract (section 12): a plugin for an app, and the wrap that it takes the place of."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..adapters import Killed
from ..adapters._gate import Passage
from ..integration import ExecutionContext, FrameworkKernel, GovernancePolicy, PolicyConfig, PolicyViolationError
from ..integration.hooks import KernelSession
from ..integration.records import MOST
from ._texts import Texts

try:
    from google.adk.tools import AgentTool
    from google.genai import types

    from ..adapters.google_adk import GovnodePlugin, seen

    _HAS_PLUGIN = True
except ImportError:
    GovnodePlugin = object  # type: ignore[assignment,misc]
    _HAS_PLUGIN = False

_DEFAULTS = PolicyConfig()
_TAIL = 4_000  # characters of a stream that are looked at again with each piece


@dataclass
class ADKExecutionContext(ExecutionContext):
    """A session of an app (section 12.5)."""

    invocation_id: str = ""
    agent_names: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0


class GoogleADKKernel(FrameworkKernel):
    """Governs Google ADK (section 12.1). Further options are those of BaseIntegration.

    Without a ``policy`` a PolicyConfig is made of the convenience arguments. ``max_agent_calls`` and ``blocked_tools``
    hold beside a GovernancePolicy too. With ``require_human_approval`` people are asked about everything, agents too;
    with ``sensitive_tools`` about those alone.
    """

    backend = "google-adk"
    framework = "google.adk"
    install = "govnode[google-adk]"
    replacement = "as_plugin"
    context_class = ADKExecutionContext

    def __init__(
        self,
        policy: PolicyConfig | GovernancePolicy | str | None = None,
        on_violation: Callable[[PolicyViolationError], Any] | None = None,
        evaluator: Any | None = None,
        max_tool_calls: int = 50,
        max_agent_calls: int = 20,
        timeout_seconds: int = 300,
        allowed_tools: list[str] | None = None,
        blocked_tools: list[str] | None = None,
        blocked_patterns: list[str] | None = None,
        pii_detection: bool = True,
        log_all_calls: bool = True,
        require_human_approval: bool = False,
        sensitive_tools: list[str] | None = None,
        max_budget: float | None = None,
        **options: Any,
    ) -> None:
        given = PolicyConfig(
            max_tool_calls=max_tool_calls,
            max_agent_calls=max_agent_calls,
            timeout_seconds=timeout_seconds,
            allowed_tools=list(allowed_tools or ()),
            blocked_tools=list(blocked_tools or ()),
            blocked_patterns=list(blocked_patterns or ()),
            pii_detection=pii_detection,
            log_all_calls=log_all_calls,
            require_human_approval=require_human_approval,
            sensitive_tools=list(sensitive_tools or ()),
            max_budget=max_budget,
        )
        beside = ("max_agent_calls", "blocked_tools") if isinstance(policy, GovernancePolicy) else ()
        if policy is not None:
            for name, value in vars(given).items():
                if name not in beside and value != getattr(_DEFAULTS, name):
                    raise ValueError(f"{name}: there is a policy: set it there")
        if beside:
            limits = {"max_agent_calls": max_agent_calls, **(options.pop("limits", None) or {})}
            options.update(limits=limits, blocked_tools=given.blocked_tools)
        super().__init__(policy if policy is not None else given, evaluator, on_violation=on_violation, **options)
        self._wrapped: dict[int, GovernanceCallbacks] = {}

    def as_plugin(self, agent_id: str = "google-adk", session_id: str | None = None, **options: Any) -> Any:
        """Return what goes last into ``App(plugins=[...])`` (section 12.3). It is one session.

        The arguments of ``GovnodePlugin`` may follow. Raises RuntimeError where Google ADK is missing.
        """
        self._require()
        return GovernancePlugin(self, self.create_context(agent_id, session_id), **options)

    def wrap(self, agent: Any) -> Any:
        """Govern an agent and all below it by callbacks of their own, in place, and return it. Deprecated.

        What is denied ends the run with PolicyViolationError.
        """
        self._deprecate()
        if id(agent) not in self._wrapped:
            ctx = self.create_context(getattr(agent, "name", None) or "google-adk")
            self._wrapped[id(agent)] = GovernanceCallbacks(self, ctx, agent)
        return agent

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent, with its callbacks as they were."""
        callbacks = self._wrapped.pop(id(governed_agent), None)
        if callbacks is not None:
            callbacks.restore()
        return governed_agent


class GovernancePlugin(GovnodePlugin):
    """Asks before each call of a tool and each run of an agent, and has texts looked at (section 12.3.1).

    A text that is blocked ends the run with a RuntimeError, whose cause is PolicyViolationError. Of a tool's output
    the model is told.
    """

    def __init__(self, kernel: GoogleADKKernel, ctx: ExecutionContext, **options: Any) -> None:
        assert isinstance(ctx, ADKExecutionContext)
        session = KernelSession(kernel, ctx)
        super().__init__(session, **options)
        self._kernel = kernel
        self._ctx = ctx
        self._texts = Texts(kernel, session)
        self._refusals = session.refusals
        self._agents: dict[int, tuple[Any, Passage]] = {}  # by the context of the agent's run
        self._said: OrderedDict[tuple[str, str, str], str] = OrderedDict()  # the ends of streams

    # Agents.

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> Any:
        """Begin the run of an agent. One that is denied says why in the place of what it would say."""
        self._noted(callback_context.invocation_id, agent.name)
        run, passage = await self._begin_agent(agent.name, callback_context)
        if passage.denied is not None:
            if passage.killed:
                raise Killed(passage.denied)
            callback_context.actions.escalate = True  # or a loop of agents would never end
            return types.Content(role="model", parts=[types.Part(text=passage.text)])
        self._agents[id(run)] = (run, passage)
        task = asyncio.current_task()
        if task is not None:  # an agent that another callback answers for, or that breaks, is not told of
            task.add_done_callback(lambda done: self._left_agent(run, done))
        return None

    async def _begin_agent(self, name: str, context: Any) -> tuple[Any, Passage]:
        passage = await self.gate.aenter(
            name,
            {},
            run_id=f"{context.session.user_id}/{context.session.id}",
            conversation=context.session.id,
            options={"kind": "agent"},
        )
        return context._invocation_context, passage

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        """End the run of an agent."""
        passage = self._take_agent(callback_context._invocation_context)
        if passage is None:
            return
        if isinstance(sys.exc_info()[1], asyncio.CancelledError):
            passage.end_behind("cancelled")
        else:
            await passage.aend("succeeded")

    async def on_agent_error_callback(self, *, agent: Any, callback_context: Any, error: Exception) -> None:
        """End the run of an agent that failed."""
        passage = self._take_agent(callback_context._invocation_context)
        if passage is not None:
            await passage.aend("failed")

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        """End what is left: another callback may have answered for an agent."""
        id_of = invocation_context.invocation_id
        for run, passage in list(self._agents.values()):
            if run.invocation_id == id_of and self._take_agent(run) is not None:
                await passage.aend("succeeded")
        for key in [k for k in self._said if k[0] == id_of]:
            self._said.pop(key, None)

    def _take_agent(self, run: Any) -> Passage | None:
        return self._agents.pop(id(run), (None, None))[1]

    def _left_agent(self, run: Any, task: asyncio.Task[Any]) -> None:
        passage = self._take_agent(run)
        if passage is not None:
            failed = not task.cancelled() and task.exception() is not None
            passage.end_behind("cancelled" if task.cancelled() else "failed" if failed else "succeeded")

    def _noted(self, invocation_id: str, agent: str) -> None:
        ctx = self._ctx
        with ctx._lock:
            ctx.invocation_id = invocation_id
            if agent not in ctx.agent_names:
                ctx.agent_names.append(agent)
                del ctx.agent_names[:-MOST]

    # Models.

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        """Have looked at what goes to the model."""
        await super().before_model_callback(callback_context=callback_context, llm_request=llm_request)
        await asyncio.to_thread(self._before_model, llm_request)

    def _before_model(self, request: Any) -> None:
        request.contents = [_looked_content(c, self._texts.given) for c in request.contents]
        instruction = request.config.system_instruction
        if instruction:
            request.config.system_instruction = _looked_instruction(instruction, self._texts.given)

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> Any:
        """Have looked at what the model says, and count its tokens."""
        context = callback_context._invocation_context
        key = (context.invocation_id, context.branch or "", context.agent.name)
        if llm_response.partial:
            await self._piece(key, llm_response.content)
            return
        self._said.pop(key, None)
        usage, ctx = llm_response.usage_metadata, self._ctx
        if usage is not None:
            with ctx._lock:
                ctx.prompt_tokens += usage.prompt_token_count or 0
                ctx.completion_tokens += (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
        if llm_response.content is not None:
            llm_response.content = await asyncio.to_thread(_looked_content, llm_response.content, self._texts.made)

    async def _piece(self, key: tuple[str, str, str], content: Any) -> None:
        """Look at a stream as far as it has come. What would have to be redacted in it cannot be."""
        said = "".join(p.text for p in (content.parts if content is not None else None) or () if p.text)
        if not said:
            return
        so_far = (self._said.pop(key, "") + said)[-max(_TAIL, len(said)) :]
        self._said[key] = so_far
        while len(self._said) > MOST:
            self._said.popitem(last=False)
        if await self._kernel.alook(self._ctx, so_far, "output") != so_far:
            reason = "the output holds personal data, and cannot be redacted in a stream"
            self._kernel._violated(reason, "scan", "")
            raise PolicyViolationError(reason, category="scan")

    # Tools.

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        """Ask, and put the arguments that are allowed in the place of the others."""
        answer = await super().before_tool_callback(tool=tool, tool_args=tool_args, tool_context=tool_context)
        if answer is not None:
            # ADK shows other agents what was called with which arguments, and the answer, as texts.
            self._refusals.extend((answer["error"], str(answer)))
            if tool_args:
                self._refusals.append(str(dict(sorted(tool_args.items()))))
        return answer

    async def after_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any) -> Any:
        """End the call, and have looked at what the tool gave."""
        left = await super().after_tool_callback(
            tool=tool, tool_args=tool_args, tool_context=tool_context, result=result
        )
        try:
            given = seen(result) if left is None else left  # by the rules of the policy
            used = await asyncio.to_thread(_looked, given, lambda t: self._texts.made(t, tool.name))
        except PolicyViolationError as e:
            return {"error": self._texts.refuse(e)}
        except ValueError as e:  # what the model would see cannot be told
            return {"error": self._texts.refuse(f"what {tool.name} returns cannot be looked at: {e}")}
        return left if used is given else used


class GovernanceCallbacks(GovernancePlugin):
    """The callbacks of agents, in the place of a plugin."""

    def __init__(self, kernel: GoogleADKKernel, ctx: ExecutionContext, agent: Any) -> None:
        super().__init__(kernel, ctx, on_denied="raise")
        self._before: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._govern(agent)

    def restore(self) -> None:
        """Give the agents back what they had."""
        for agent, had in self._before.values():
            for name, value in had.items():
                setattr(agent, name, value)
        self._before.clear()

    def _govern(self, agent: Any) -> None:
        if id(agent) in self._before:
            return
        had = {name: getattr(agent, name) for name in _CALLBACKS if hasattr(agent, name)}
        self._before[id(agent)] = (agent, had)
        for name, value in had.items():
            others = [] if value is None else value if isinstance(value, list) else [value]
            own = getattr(self, f"_{name}")
            # The last one before, the first one after: nobody changes what was judged, or answers in between.
            setattr(agent, name, [*others, own] if name.startswith("before") else [own, *others])
        for inner in agent.sub_agents:
            self._govern(inner)
        for tool in getattr(agent, "tools", ()):
            if isinstance(tool, AgentTool):
                self._govern(tool.agent)

    def _behind(self, tool_context: Any) -> str:
        agent = tool_context._invocation_context.agent
        if agent.canonical_before_tool_callbacks[-1] != self._before_tool_callback:
            return f"agent {agent.name} has a before_tool_callback behind, which could change what was judged"
        return ""

    async def _before_agent_callback(self, callback_context: Any) -> Any:
        agent = callback_context._invocation_context.agent
        return await self.before_agent_callback(agent=agent, callback_context=callback_context)

    async def _after_agent_callback(self, callback_context: Any) -> Any:
        agent = callback_context._invocation_context.agent
        await self.after_agent_callback(agent=agent, callback_context=callback_context)

    async def _before_model_callback(self, callback_context: Any, llm_request: Any) -> Any:
        return await self.before_model_callback(callback_context=callback_context, llm_request=llm_request)

    async def _after_model_callback(self, callback_context: Any, llm_response: Any) -> Any:
        return await self.after_model_callback(callback_context=callback_context, llm_response=llm_response)

    async def _before_tool_callback(self, tool: Any, args: dict[str, Any], tool_context: Any) -> Any:
        return await self.before_tool_callback(tool=tool, tool_args=args, tool_context=tool_context)

    async def _after_tool_callback(self, tool: Any, args: dict[str, Any], tool_context: Any, tool_response: Any) -> Any:
        return await self.after_tool_callback(
            tool=tool, tool_args=args, tool_context=tool_context, result=tool_response
        )

    async def _on_tool_error_callback(
        self, tool: Any, args: dict[str, Any], tool_context: Any, error: BaseException
    ) -> Any:
        return await self.on_tool_error_callback(tool=tool, tool_args=args, tool_context=tool_context, error=error)


_CALLBACKS = (
    "before_agent_callback", "after_agent_callback", "before_model_callback", "after_model_callback",
    "before_tool_callback", "after_tool_callback", "on_tool_error_callback",
)  # fmt: skip


def _looked(value: Any, look: Callable[[str], str]) -> Any:
    """Return what a tool gave with its texts as they may be used; the very same where nothing is changed."""
    used: Any
    if isinstance(value, str):
        used = look(value) if value else value
    elif isinstance(value, dict):
        used = {k: _looked(v, look) for k, v in value.items()}
    elif isinstance(value, (list, tuple)):
        used = [_looked(v, look) for v in value]
        if all(a is b for a, b in zip(used, value, strict=True)):
            return value
    else:
        return value
    return value if used == value else used


def _looked_content(content: Any, look: Callable[[str], str]) -> Any:
    parts = [_looked_part(p, look) for p in content.parts or ()]
    if all(a is b for a, b in zip(parts, content.parts or (), strict=True)):
        return content
    return content.model_copy(update={"parts": parts})


def _looked_part(part: Any, look: Callable[[str], str]) -> Any:
    """Return a part with its texts as they may be used. Calls of tools are judged as such."""
    if part.text:
        used = look(part.text)
        return part if used == part.text else part.model_copy(update={"text": used})
    answer = part.function_response
    if answer is not None and answer.response:
        used = _looked(answer.response, look)
        if used is not answer.response:
            return part.model_copy(update={"function_response": answer.model_copy(update={"response": used})})
    for name, field_name in (("executable_code", "code"), ("code_execution_result", "output")):
        ran = getattr(part, name)
        text = getattr(ran, field_name, None)
        if text and (used := look(text)) != text:
            return part.model_copy(update={name: ran.model_copy(update={field_name: used})})
    return part


def _looked_instruction(instruction: Any, look: Callable[[str], str]) -> Any:
    if isinstance(instruction, str):
        return look(instruction)
    if isinstance(instruction, list):
        return [_looked_instruction(i, look) for i in instruction]
    if hasattr(instruction, "parts"):
        return _looked_content(instruction, look)
    return _looked_part(instruction, look) if hasattr(instruction, "function_response") else instruction
