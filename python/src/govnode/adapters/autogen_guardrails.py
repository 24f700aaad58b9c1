"""AutoGen: chains of guardrail providers (proposal 004) at tools, workbenches and agents.

    from govnode.adapters.autogen_guardrails import guard_agent
    from govnode.adapters.guardrail import GovnodeGuardrail

    agent = guard_agent(AssistantAgent("worker", client, tools=[...]), [Redact(), GovnodeGuardrail(session)])

Each provider sees the arguments as those before left them, the first DENY ends, and a provider that raises denies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from .._review import written
from ..errors import Denied
from ..guardrail import GuardrailProvider, denial
from ._gate import PolicyViolationError, missing
from .guardrail import GovnodeGuardrail, Judgement, OnResult, checked, judge

try:
    from autogen_core import CancellationToken
    from autogen_core.tools import BaseTool, FunctionTool, StreamTool
except ImportError as e:
    raise missing("AutoGen", "autogen") from e

from .autogen import GovnodeWorkbench, WrappedWorkbench, end_with_violations, error_of, threads

_END = object()


class GuardedTool(BaseTool):
    """A tool behind a chain: to agents and workbenches it is the tool.

    What a provider denies is told as the result of the tool; what ``GovnodeGuardrail`` says is to end the run is
    raised. The arguments are validated as the chain leaves them.
    """

    def __init__(
        self,
        tool: Any,
        guardrail_providers: Iterable[GuardrailProvider] = (),
        *,
        agent_name: str | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        super().__init__(tool.args_type(), tool.return_type(), tool.name, tool.description)
        self.guarded = tool
        self._chain = checked(guardrail_providers)
        self._agent_name = agent_name
        self._on_result = on_result

    async def run_json(self, args: Mapping[str, Any], cancellation_token: Any, call_id: str | None = None) -> Any:
        """Ask the chain, and run the tool."""
        judgement = await self._judge(args, cancellation_token, call_id)
        if judgement.denied:
            return _Said(denial(judgement.result))
        threaded = threads([self.guarded], self.guarded.name)
        token = CancellationToken() if threaded else cancellation_token  # a token does not cancel a thread
        running = asyncio.ensure_future(
            judgement.arun(
                lambda: self.guarded.run_json(judgement.arguments(args), token, call_id),
                threaded=threaded,
                seen=self.return_value_as_string,
                told=_said,
            )
        )
        if threaded:
            cancellation_token.link_future(running)
        return await running

    async def run(self, args: Any, cancellation_token: Any) -> Any:
        """Ask the chain here too."""
        return await self.run_json(args.model_dump(), cancellation_token)

    async def _judge(self, args: Mapping[str, Any], token: Any, call_id: str | None) -> Judgement:
        judgement = await judge(
            self._chain,
            tool_name=self.guarded.name,
            args=args,
            agent_name=self._agent_name,
            call_id=call_id,
            cancellation_token=token,
            on_result=self._on_result,
        )
        if judgement.error is not None:
            raise judgement.error
        return judgement

    def dump_component(self) -> Any:
        """Refuse: the tool that is loaded again would have no guard."""
        raise NotImplementedError(f"govnode: {self.guarded.name}: providers are no part of a component's config")

    def return_value_as_string(self, value: Any) -> str:
        """Return what the model reads."""
        text: str = str(value) if isinstance(value, _Said) else self.guarded.return_value_as_string(value)
        return text

    # The rest is the tool's.

    @property
    def schema(self) -> Any:
        """Return the schema of the tool."""
        return self.guarded.schema

    def state_type(self) -> Any:
        """Return the type of the tool's state."""
        return self.guarded.state_type()

    async def save_state_json(self) -> Any:
        """Save the state of the tool."""
        return await self.guarded.save_state_json()

    async def load_state_json(self, state: Mapping[str, Any]) -> None:
        """Load the state of the tool."""
        await self.guarded.load_state_json(state)


class GuardedStreamTool(GuardedTool):
    """The same for a tool that streams. A workbench may call it by ``run_json_stream`` alone."""

    async def run_json_stream(
        self, args: Mapping[str, Any], cancellation_token: Any, call_id: str | None = None
    ) -> AsyncGenerator[Any, None]:
        """Ask the chain, and stream what the tool does; where rules look at that, only what they left of its result."""
        judgement = await self._judge(args, cancellation_token, call_id)
        if judgement.denied:
            yield _Said(denial(judgement.result))
            return
        items: asyncio.Queue[Any] = asyncio.Queue()

        async def work() -> Any:
            item = None
            async for item in self.guarded.run_json_stream(judgement.arguments(args), cancellation_token, call_id):
                if not judgement.reviews:
                    items.put_nowait(item)
            return item

        # The call ends with the tool, and not when the last of its items is read.
        running = asyncio.ensure_future(judgement.arun(work, seen=self.return_value_as_string, told=_said))
        running.add_done_callback(lambda _: items.put_nowait(_END))
        try:
            while (item := await items.get()) is not _END:
                yield item
            left = await running
            if judgement.reviews and left is not None:
                yield left
        finally:
            if not running.done():
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running


def guard_tool(tool: Any, guardrail_providers: Iterable[GuardrailProvider] = (), **options: Any) -> Any:
    """Return a tool, or a function as a tool, behind a chain: the arguments of ``GuardedTool`` may follow."""
    if not isinstance(tool, BaseTool) and callable(tool):
        tool = FunctionTool(tool, description=tool.__doc__ or "")
    kind = GuardedStreamTool if isinstance(tool, StreamTool) else GuardedTool
    return kind(tool, guardrail_providers, **options)


class GuardedWorkbench(WrappedWorkbench):
    """A workbench, or some tools, behind a chain. It covers tools that are no BaseTool, as those of MCP.

    A denial is an error of the tool that the model reads. No exception leaves it, or the run of its agent would never
    end; what is to end the run, ``guard_agent`` raises.
    """

    def __init__(
        self,
        inner: Any,
        guardrail_providers: Iterable[GuardrailProvider] = (),
        *,
        agent_name: str | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        super().__init__(inner)
        self._chain = checked(guardrail_providers)
        self._agent_name = agent_name
        self._on_result = on_result

    async def _call(self, name: str, arguments: Mapping[str, Any] | None, token: Any, call_id: str) -> Any:
        judgement = await self.judge(name, arguments or {}, token, call_id)
        if judgement.denied:
            self.violation = self.violation or judgement.error
            return error_of(name, denial(judgement.result))
        return await self._run(judgement, name, judgement.arguments(arguments or {}), token, call_id)

    async def judge(self, name: str, arguments: Mapping[str, Any], token: Any, call_id: str | None) -> Judgement:
        """Ask the chain."""
        return await judge(
            self._chain,
            tool_name=name,
            args=arguments,
            agent_name=self._agent_name,
            call_id=call_id or None,
            cancellation_token=token,
            on_result=self._on_result,
        )

    def dump_component(self) -> Any:
        """Refuse: the workbench that is loaded again would have no guard."""
        raise NotImplementedError("govnode: providers are no part of a component's config")


def guard_agent(
    agent: Any, guardrail_providers: Iterable[GuardrailProvider], *, on_result: OnResult | None = None
) -> Any:
    """Put a chain before each call of a tool and each handoff of an AssistantAgent, and return it.

    The providers are told its name. The model reads why a tool is denied. A handoff is made whatever its tool answers,
    so one that is denied ends the run with PolicyViolationError, as does what ``GovnodeGuardrail`` says is to end it.
    """
    if any(isinstance(bench, GuardedWorkbench) for bench in agent._workbench):
        raise ValueError(f"govnode: agent {agent.name} is guarded already")
    chain = checked(guardrail_providers)
    governed = any(isinstance(bench, GovnodeWorkbench) for bench in agent._workbench)
    if governed and any(isinstance(provider, GovnodeGuardrail) for provider in chain):
        raise ValueError(f"govnode: agent {agent.name} is governed already: its calls would be counted twice")
    watch = GuardedWorkbench([], chain, agent_name=agent.name, on_result=on_result)
    benches = [GuardedWorkbench(bench, chain, agent_name=agent.name, on_result=on_result) for bench in agent._workbench]
    agent._workbench = benches
    agent._handoff_tools = [_Handoff(tool, watch) for tool in agent._handoff_tools]

    def killed() -> Denied | None:
        gates = (p.gate for p in chain if isinstance(p, GovnodeGuardrail))
        return next((by for gate in gates if (by := gate.killed(agent.name)) is not None), None)

    end_with_violations(agent, [watch, *benches], lambda: None, killed)
    return agent


class _Handoff:
    """The tool of a handoff, behind a chain."""

    def __init__(self, tool: Any, watch: GuardedWorkbench) -> None:
        self._tool = tool
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def run_json(self, args: Mapping[str, Any], cancellation_token: Any, call_id: str | None = None) -> Any:
        judgement = await self._watch.judge(self._tool.name, args, cancellation_token, call_id)
        if not judgement.denied:
            return await judgement.arun(
                lambda: self._tool.run_json(judgement.arguments(args), cancellation_token, call_id)
            )
        text = denial(judgement.result)
        self._watch.violation = judgement.error or PolicyViolationError(Denied("DENIED_BY_POLICY", text))
        return text


class _Said(str):
    """What the model reads in the place of what a tool gave."""


def _said(_: Any, shown: Any) -> _Said:
    return _Said(written(shown))
