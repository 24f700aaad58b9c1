"""Proposal 004 on the real AutoGen: the names in brackets are those of its sections."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import Killed, PolicyViolationError
from govnode.guardrail import Decision, GuardrailProvider, GuardrailResult

pytest.importorskip("autogen_agentchat", reason="AutoGen is not installed")

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.tools import AgentTool
from autogen_core import AgentId, CancellationToken, FunctionCall, SingleThreadedAgentRuntime
from autogen_core.tool_agent import ToolAgent
from autogen_core.tools import (
    BaseStreamTool,
    FunctionTool,
    StaticStreamWorkbench,
    StaticWorkbench,
    StreamTool,
    Tool as AnyTool,
)
from pydantic import BaseModel
from test_autogen import AutoGen, as_tool, scripted

from govnode.adapters.autogen import govern_agent
from govnode.adapters.autogen_guardrails import GuardedTool, GuardedWorkbench, guard_agent, guard_tool
from govnode.adapters.guardrail import GovnodeGuardrail

ONE: Script = [[("shell", {"command": "ls"})], "done"]


class Guarded(Driver):
    """An assistant behind a chain in which govnode is the last provider."""

    modes = ("async", "stream")

    def agent(self, session: Any, script: Script, tool: Any, before: Any = (), **options: Any) -> Any:
        agent = AssistantAgent("worker", scripted(script), tools=[as_tool(tool)], max_tool_iterations=20)
        return guard_agent(agent, [*before, GovnodeGuardrail(session, **options)])

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        if mode == "async":
            return AutoGen.seen(await agent.run(task="go"))
        result = None
        async for event in agent.run_stream(task="go"):
            if isinstance(event, TaskResult):
                result = event
        return AutoGen.seen(result)


DRIVER = Guarded()


class Says:
    """A provider with one answer."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, list[dict[str, Any]]()

    async def evaluate(
        self,
        *,
        tool_name: str,
        args: Any,
        agent_name: str | None = None,
        call_id: str | None = None,
        cancellation_token: Any = None,
    ) -> GuardrailResult:
        self.asked.append(
            {"tool": tool_name, "args": dict(args), "agent": agent_name, "id": call_id, "token": cancellation_token}
        )
        if isinstance(self.answer, BaseException):
            raise self.answer
        result: GuardrailResult = self.answer
        return result


def allow() -> Says:
    return Says(GuardrailResult(Decision.ALLOW))


def deny(reason: str | None = "secrets") -> Says:
    return Says(GuardrailResult(Decision.DENY, reason))


def modify(**args: Any) -> Says:
    return Says(GuardrailResult(Decision.MODIFY, modified_args=args or None))


def call(tool: Any, args: Any = None, **options: Any) -> Any:
    async def run() -> Any:
        return await tool.run_json({"command": "ls"} if args is None else args, CancellationToken(), **options)

    return asyncio.run(run())


class TestGuardrails(Laws):
    driver = DRIVER

    @pytest.mark.parametrize("mode", ["async", "stream"])
    def test_synchronous_tools(self, session: govnode.Session, mode: str) -> None:
        tool = Tool("sync")
        assert "rm -rf" in DRIVER.run(session, SCRIPT, tool.function, mode).model_saw[1]
        assert tool.executed == ["ls"]

    def test_what_others_changed_is_judged(self, session: govnode.Session) -> None:
        tool = Tool("async")
        agent = DRIVER.agent(session, ONE, tool.function, before=[modify(command="rm -rf /")])
        assert "Denied" in AutoGen.seen(asyncio.run(agent.run(task="go"))).model_saw[0]
        assert tool.executed == []

    def test_what_a_provider_behind_denies_holds_nothing(self, session: govnode.Session) -> None:
        tool = Tool("async")
        for behind in (deny(), Says(ValueError("broken")), Says(None)):
            agent = AssistantAgent("worker", scripted(ONE), tools=[as_tool(tool.function)])
            asyncio.run(guard_agent(agent, [GovnodeGuardrail(session), behind]).run(task="go"))
        assert tool.executed == []
        eventually(lambda: session.read().open_calls == ())

    def test_cancelled_behind_govnode_gives_the_slot_back(self, session: govnode.Session) -> None:
        asked = asyncio.Event()

        class Slow:
            async def evaluate(self, **_: Any) -> Any:
                asked.set()
                await asyncio.Event().wait()

        async def scenario() -> None:
            agent = AssistantAgent("worker", scripted(ONE), tools=[as_tool(Tool("async").function)])
            token = CancellationToken()
            agent = guard_agent(agent, [GovnodeGuardrail(session), Slow()])
            run = asyncio.create_task(agent.run(task="go", cancellation_token=token))
            await asyncio.wait_for(asked.wait(), 30)
            assert len(session.read().open_calls) == 1
            token.cancel()
            await asyncio.wait_for(asyncio.gather(run, return_exceptions=True), 30)
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_cancellation_token(self, session: govnode.Session, mode: str) -> None:
        started, go_on = threading.Event(), threading.Event()

        def shell(command: str) -> str:
            started.set()
            assert go_on.wait(60)
            return ""

        async def ashell(command: str) -> str:
            started.set()
            await asyncio.Event().wait()
            return ""

        async def scenario() -> None:
            agent = DRIVER.agent(session, ONE, shell if mode == "sync" else ashell)
            token = CancellationToken()
            run = asyncio.create_task(agent.run(task="go", cancellation_token=token))
            assert await asyncio.to_thread(started.wait, 30)
            token.cancel()
            await asyncio.wait_for(asyncio.gather(run, return_exceptions=True), 30)
            if mode == "sync":
                assert len(session.read().open_calls) == 1
            go_on.set()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_session_of_each_agent(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent=name, policy="plain")

        DRIVER.run(of, ONE, Tool("async").function, "async")
        assert client.get_session(f"{session.id}-worker").executions == 1

    def test_killed_session_runs_no_more(self, client: govnode.Client, session: govnode.Session) -> None:
        agent = DRIVER.agent(session, [*ONE, "never"], Tool("async").function)
        session.open()
        client.signal("KILL", session_id=session.id, reason="enough")
        for _ in range(2):
            with pytest.raises(Killed):
                asyncio.run(agent.run(task="go"))

    def test_both_ways_of_governing_at_once(self, session: govnode.Session) -> None:
        tool = Tool("async")
        agent = AssistantAgent("worker", scripted(SCRIPT), tools=[as_tool(tool.function)], max_tool_iterations=5)
        guard_agent(govern_agent(agent, session), [modify(command="rm -rf /")])
        assert all("rm -rf" in saw for saw in AutoGen.seen(asyncio.run(agent.run(task="go"))).model_saw)
        assert tool.executed == []


class TestInterface:
    """[Proposed Interface]: the values themselves are in test_contract_values.py."""

    def test_protocol_is_checkable_and_needs_no_inheritance(self, session: govnode.Session) -> None:
        assert isinstance(GovnodeGuardrail(session), GuardrailProvider)
        assert isinstance(allow(), GuardrailProvider)
        assert not isinstance(object(), GuardrailProvider)
        with pytest.raises(TypeError, match="no GuardrailProvider"):
            guard_tool(as_tool(Tool().function), [object()])

    def test_evaluate_takes_keywords_alone(self, session: govnode.Session) -> None:
        with pytest.raises(TypeError):
            asyncio.run(GovnodeGuardrail(session).evaluate("shell", {}))  # type: ignore[misc]

    def test_provider_is_told_who_calls_what(self) -> None:
        """The name of the agent where it is known, and the id of the call."""
        provider = allow()
        agent = AssistantAgent("worker", scripted(ONE), tools=[as_tool(Tool("async").function)])
        asyncio.run(guard_agent(agent, [provider]).run(task="go"))
        asked = provider.asked[0]
        assert isinstance(asked.pop("token"), CancellationToken)
        assert asked == {"tool": "shell", "args": {"command": "ls"}, "agent": "worker", "id": "call-0-0"}
        provider = allow()
        call(guard_tool(as_tool(Tool().function), [provider]))
        assert (provider.asked[0]["agent"], provider.asked[0]["id"]) == (None, None)

    def test_hold_is_checked(self, session: govnode.Session) -> None:
        with pytest.raises(ValueError, match="hold"):
            GovnodeGuardrail(session, hold=0)


class TestTools:
    """[Integration Points, 1: BaseTool.run_json] and [Constructor Addition to BaseTool]."""

    def test_denial_is_the_result(self) -> None:
        tool = Tool("async")
        assert call(guard_tool(as_tool(tool.function), [deny()])) == "Tool call denied: secrets"
        assert call(guard_tool(as_tool(tool.function), [deny(None)])) == "Tool call denied: policy violation"
        assert tool.executed == []

    def test_each_sees_what_the_one_before_changed(self) -> None:
        tool, second, third = Tool("async"), allow(), allow()
        guarded = guard_tool(as_tool(tool.function), [modify(command="a"), second, modify(command="b"), third])
        assert call(guarded, call_id="c") == "ran b"
        assert second.asked[0]["args"] == {"command": "a"}
        assert third.asked[0]["args"] == {"command": "b"}
        assert third.asked[0]["id"] == "c"

    def test_any_denial_ends(self) -> None:
        last = allow()
        assert "denied" in call(guard_tool(as_tool(Tool().function), [allow(), deny(), last]))
        assert last.asked == []

    def test_modify_without_arguments_changes_nothing(self) -> None:
        assert call(guard_tool(as_tool(Tool().function), [modify()])) == "ran ls"

    def test_arguments_without_modify_change_nothing(self) -> None:
        """modified_args: only when Decision.MODIFY."""
        provider = Says(GuardrailResult(Decision.ALLOW, modified_args={"command": "x"}))
        assert call(guard_tool(as_tool(Tool().function), [provider])) == "ran ls"

    def test_modified_arguments_are_validated(self) -> None:
        tool = Tool("async")
        with pytest.raises(ValueError, match="command"):
            call(guard_tool(as_tool(tool.function), [modify(wrong="x")]))
        assert tool.executed == []

    def test_arguments_are_validated_behind_the_chain(self) -> None:
        """So a provider may mend what the tool would not take."""
        assert call(guard_tool(as_tool(Tool().function), [modify(command="ok")]), {"wrong": 1}) == "ran ok"

    def test_provider_that_raises_denies(self) -> None:
        tool = Tool("async")
        for answer in (RuntimeError("broken"), None, "allow"):
            assert "fail-closed" in call(guard_tool(as_tool(tool.function), [Says(answer), allow()]))
        assert tool.executed == []

    def test_arguments_change_by_modify_alone(self) -> None:
        class Sly:
            async def evaluate(self, *, args: Any, **_: Any) -> GuardrailResult:
                args["command"] = "rm -rf /"
                return GuardrailResult(Decision.ALLOW)

        given = {"command": "ls"}
        assert call(guard_tool(as_tool(Tool().function), [Sly()]), given) == "ran ls"
        assert given == {"command": "ls"}

    def test_without_providers_it_is_the_tool(self) -> None:
        """Fully backward compatible."""
        inner = as_tool(Tool("async").function)
        tool = guard_tool(inner)
        assert isinstance(tool, AnyTool)
        assert (tool.schema, tool.name, tool.description) == (inner.schema, inner.name, inner.description)
        assert (tool.args_type(), tool.return_type(), tool.state_type()) == (inner.args_type(), str, None)
        assert asyncio.run(tool.save_state_json()) == {}
        assert call(tool) == "ran ls"
        assert tool.return_value_as_string("x") == "x"

    def test_functions_become_tools(self) -> None:
        assert call(guard_tool(Tool().function, [deny()])) == "Tool call denied: secrets"

    def test_there_is_no_way_around(self) -> None:
        tool = Tool("async")
        guarded = guard_tool(as_tool(tool.function), [deny()])

        async def run() -> Any:
            return await guarded.run(guarded.args_type()(command="ls"), CancellationToken())

        assert asyncio.run(run()) == "Tool call denied: secrets"
        assert tool.executed == []
        with pytest.raises(NotImplementedError, match="config"):
            guarded.dump_component()

    @pytest.mark.parametrize("kind", [StaticWorkbench, StaticStreamWorkbench])
    def test_in_a_workbench_of_autogen(self, kind: Any) -> None:
        tool = Tool("async")
        guarded = guard_tool(as_tool(tool.function), [deny()])
        agent = AssistantAgent("worker", scripted(ONE), workbench=kind([guarded]))
        assert AutoGen.seen(asyncio.run(agent.run(task="go"))).model_saw == ["Tool call denied: secrets"]
        assert tool.executed == []

    def test_in_a_tool_agent(self, session: govnode.Session) -> None:
        async def scenario() -> Any:
            runtime = SingleThreadedAgentRuntime()
            tools = [guard_tool(as_tool(Tool().function), [GovnodeGuardrail(session)])]
            await ToolAgent.register(runtime, "tools", lambda: ToolAgent("tools", tools))
            runtime.start()
            sent = FunctionCall(id="c", name="shell", arguments='{"command": "rm -rf /"}')
            result = await runtime.send_message(sent, AgentId("tools", "default"))
            await runtime.stop()
            return result

        assert "Tool call denied: Denied by govnode" in asyncio.run(scenario()).content

    def test_govnode_ends_with_the_tool(self, session: govnode.Session) -> None:
        open_calls: list[int] = []

        def shell(command: str) -> str:
            open_calls.append(len(session.read().open_calls))
            if command == "fail":
                raise ValueError("no such file")
            return "ran"

        tool = guard_tool(as_tool(shell), [GovnodeGuardrail(session)])
        assert call(tool) == "ran"
        with pytest.raises(ValueError, match="no such file"):
            call(tool, {"command": "fail"})
        assert open_calls == [1, 1]
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (2, 1, ())

    def test_killed_session_is_an_error(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()
        client.signal("KILL", session_id=session.id, reason="enough")
        with pytest.raises(Killed, match="enough"):
            call(guard_tool(as_tool(Tool().function), [GovnodeGuardrail(session)]))

    def test_token_cancels_the_wait_but_not_the_thread(self, session: govnode.Session) -> None:
        started, go_on = threading.Event(), threading.Event()

        def shell(command: str) -> str:
            started.set()
            assert go_on.wait(60)
            return ""

        async def scenario() -> None:
            token = CancellationToken()
            tool = guard_tool(as_tool(shell), [GovnodeGuardrail(session)])
            run = asyncio.create_task(tool.run_json({"command": "ls"}, token))
            assert await asyncio.to_thread(started.wait, 30)
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(run, 30)
            assert len(session.read().open_calls) == 1
            go_on.set()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())


class Count(BaseModel):
    to: int


class Counter(BaseStreamTool):  # type: ignore[type-arg,misc,unused-ignore]
    """Streams numbers, and then the whole."""

    def __init__(self, session: govnode.Session | None = None) -> None:
        super().__init__(Count, str, "count", "counts")
        self.session, self.ran = session, list[int]()

    async def run(self, args: Any, cancellation_token: Any) -> str:
        raise NotImplementedError

    async def run_stream(self, args: Any, cancellation_token: Any) -> Any:
        for n in range(args.to):
            self.ran.append(n)
            yield n
            await asyncio.sleep(0)
        if args.to > 2:
            await asyncio.Event().wait()
        if self.session is not None:
            assert len(self.session.read().open_calls) == 1
        yield "counted"


class TestStreams:
    """What the proposal leaves out: an agent calls tools that stream by run_json_stream alone."""

    @staticmethod
    async def items(tool: Any, to: int) -> list[Any]:
        return [item async for item in tool.run_json_stream({"to": to}, CancellationToken(), call_id="c")]

    def test_stream_is_guarded(self) -> None:
        inner = Counter()
        guarded = guard_tool(inner, [deny()])
        assert isinstance(guarded, StreamTool)
        assert not isinstance(guard_tool(as_tool(Tool().function)), StreamTool)
        assert asyncio.run(self.items(guarded, 2)) == ["Tool call denied: secrets"]
        assert inner.ran == []
        assert asyncio.run(self.items(guard_tool(inner, [modify(to=1)]), 2)) == [0, "counted"]
        with pytest.raises(ValueError, match="to"):
            asyncio.run(self.items(guard_tool(inner, [modify(wrong=1)]), 2))

    def test_call_ends_with_the_stream(self, session: govnode.Session) -> None:
        tool = guard_tool(Counter(session), [GovnodeGuardrail(session)])
        assert asyncio.run(self.items(tool, 2)) == [0, 1, "counted"]
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (1, 0, ())

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            tool = guard_tool(Counter(), [GovnodeGuardrail(session)])
            stream = tool.run_json_stream({"to": 3}, CancellationToken())
            assert await stream.__anext__() == 0
            assert len(session.read().open_calls) == 1
            await stream.aclose()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_agent_as_a_tool(self, session: govnode.Session) -> None:
        tool = Tool("async")
        inner = AssistantAgent("inner", scripted(SCRIPT), tools=[as_tool(tool.function)], max_tool_iterations=5)
        guard_agent(inner, [GovnodeGuardrail(session)])
        outer = AssistantAgent(
            "outer",
            scripted([[("inner", {"task": "hello"})], "done"]),
            tools=[guard_tool(AgentTool(inner), [GovnodeGuardrail(session)])],
        )
        result = asyncio.run(outer.run(task="go"))
        assert tool.executed == ["ls"]
        assert "done" in AutoGen.seen(result).model_saw[-1]
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (3, 2, ())


MCP = '''
from mcp.server.fastmcp import FastMCP
server = FastMCP("tools", log_level="ERROR")

@server.tool()
def shell(command: str) -> str:
    """Pretends to run a command."""
    return f"ran {command}"

server.run()
'''


class TestWorkbenches:
    """[Integration Points, 2: Workbench.call_tool]."""

    def test_tools_that_are_no_base_tool(self, session: govnode.Session, tmp_path: Path) -> None:
        """[Next Steps, 3]: a real server of MCP."""
        pytest.importorskip("mcp", reason="MCP is not installed")
        from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

        (tmp_path / "server.py").write_text(MCP)

        async def scenario() -> None:
            parameters = StdioServerParams(command=sys.executable, args=[str(tmp_path / "server.py")])
            async with McpWorkbench(parameters) as inner:
                bench = GuardedWorkbench(inner, [modify(command="ls -l"), GovnodeGuardrail(session)])
                assert [t["name"] for t in await bench.list_tools()] == ["shell"]
                result = await bench.call_tool("shell", {"command": "ls"}, CancellationToken(), "a")
                assert ("ran ls -l" in result.to_text(), result.is_error) == (True, False)
                bench = GuardedWorkbench(inner, [modify(command="rm -rf /"), GovnodeGuardrail(session)])
                result = await bench.call_tool("shell", {"command": "ls"}, CancellationToken(), "b")
                assert ("Tool call denied: Denied" in result.to_text(), result.is_error) == (True, True)

        asyncio.run(scenario())
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (2, 1, ())

    def test_nothing_leaves_as_an_exception(self) -> None:
        """The run would never end."""

        async def scenario() -> None:
            for answer in (RuntimeError("broken"), PolicyViolationError(govnode.Denied("X")), None):
                bench = GuardedWorkbench([as_tool(Tool().function)], [Says(answer)])
                result = await bench.call_tool("shell", {"command": "ls"})
                assert result.is_error
                assert "fail-closed" in result.to_text()
            token = CancellationToken()
            token.cancel()
            bench = GuardedWorkbench([as_tool(Tool().function)], [allow()])
            assert (await bench.call_tool("shell", {"command": "ls"}, token)).is_error

        asyncio.run(scenario())

    def test_the_rest_is_the_other_workbenchs(self) -> None:
        async def scenario() -> None:
            async with GuardedWorkbench(StaticWorkbench([as_tool(Tool().function)]), [allow()]) as bench:
                await bench.load_state(await bench.save_state())
                await bench.reset()
                assert (await bench.call_tool("none", {})).is_error
                with pytest.raises(NotImplementedError, match="config"):
                    bench.dump_component()

        asyncio.run(scenario())


class TestAgents:
    """[Integration Points, 3: AssistantAgent]."""

    @pytest.mark.parametrize("allowed", [True, False])
    def test_handoff_is_a_call(self, allowed: bool) -> None:
        """AutoGen makes it whatever its tool answers, so a denial ends the run."""
        provider = allow() if allowed else deny()
        agent = AssistantAgent("worker", scripted([[("transfer_to_other", {})]]), handoffs=["other"])
        guard_agent(agent, [provider])
        if not allowed:
            with pytest.raises(PolicyViolationError, match="secrets"):
                asyncio.run(agent.run(task="go"))
        else:
            assert type(asyncio.run(agent.run(task="go")).messages[-1]).__name__ == "HandoffMessage"
        assert provider.asked[0]["tool"] == "transfer_to_other"

    def test_an_agent_is_guarded_once(self) -> None:
        agent = guard_agent(AssistantAgent("worker", scripted(ONE), tools=[Tool().function]), [allow()])
        with pytest.raises(ValueError, match="already"):
            guard_agent(agent, [allow()])


class TestRationale:
    """[Design Rationale], [Example: Rate-Limiting Provider], [Relationship to Existing Work]."""

    def test_metadata_of_all_is_the_audit_trail(self, session: govnode.Session) -> None:
        trail: list[Any] = []
        first = Says(GuardrailResult(Decision.ALLOW, metadata={"trace": "t-1"}))
        agent = AssistantAgent("worker", scripted(SCRIPT), tools=[as_tool(Tool().function)], max_tool_iterations=5)
        guard_agent(agent, [first, GovnodeGuardrail(session)], on_result=lambda *told: trail.append(told))
        asyncio.run(agent.run(task="go"))
        assert [(tool, id, r.decision) for tool, id, r in trail] == [
            ("shell", "call-0-0", Decision.ALLOW),
            ("shell", "call-1-0", Decision.DENY),
        ]
        admitted, denied = (r.metadata for _, _, r in trail)
        assert admitted["trace"] == "t-1"
        assert admitted["govnode"]["session"] == session.id
        assert admitted["govnode"]["call"].endswith("/call-0-0")
        assert denied["govnode"]["outcome"] == "DENIED_BY_POLICY"

    def test_what_cannot_be_audited_is_denied(self, session: govnode.Session) -> None:
        def broken(*_: Any) -> None:
            raise OSError("disk full")

        tool = Tool("async")
        guarded = guard_tool(as_tool(tool.function), [GovnodeGuardrail(session)], on_result=broken)
        assert "disk full" in call(guarded)
        assert tool.executed == []
        eventually(lambda: session.read().open_calls == ())

    def test_approval_func_is_a_provider(self) -> None:
        class Approval:
            def __init__(self, approve: Any) -> None:
                self._approve = approve

            async def evaluate(self, *, tool_name: str, args: Any, **_: Any) -> GuardrailResult:
                if self._approve(tool_name, args):
                    return GuardrailResult(Decision.ALLOW)
                return GuardrailResult(Decision.DENY, "not approved")

        tool = guard_tool(as_tool(Tool().function), [Approval(lambda name, args: args["command"] == "ls")])
        assert call(tool) == "ran ls"
        assert call(tool, {"command": "rm"}) == "Tool call denied: not approved"

    def test_rate_limit_of_the_example(self) -> None:
        class RateLimitGuardrail:
            def __init__(self, max_calls: int = 10, window_seconds: float = 60.0) -> None:
                self._max = max_calls
                self._window = window_seconds
                self._calls: dict[str, list[float]] = defaultdict(list)

            async def evaluate(
                self,
                *,
                tool_name: Any,
                args: Any,
                agent_name: Any = None,
                call_id: Any = None,
                cancellation_token: Any = None,
            ) -> GuardrailResult:
                now = time.monotonic()
                recent = [t for t in self._calls[tool_name] if now - t < self._window]
                if len(recent) >= self._max:
                    return GuardrailResult(
                        decision=Decision.DENY,
                        reason=f"Rate limit: {self._max} calls per {self._window}s exceeded",
                    )
                self._calls[tool_name] = [*recent, now]
                return GuardrailResult(decision=Decision.ALLOW)

        tool = guard_tool(as_tool(Tool().function), [RateLimitGuardrail(2)])
        assert [call(tool) for _ in range(3)] == [
            "ran ls",
            "ran ls",
            "Tool call denied: Rate limit: 2 calls per 60.0s exceeded",
        ]


class Proposed(FunctionTool):  # type: ignore[misc,unused-ignore]
    """[Integration Points, 1] to the letter: a host that knows the proposal alone, and not when a call has ended."""

    guardrail_providers: Any = ()

    async def run_json(self, args: Any, cancellation_token: Any, call_id: str | None = None) -> Any:
        effective_args = args
        for provider in self.guardrail_providers:
            result = await provider.evaluate(
                tool_name=self._name, args=effective_args, call_id=call_id, cancellation_token=cancellation_token
            )
            if result.decision == Decision.DENY:
                return f"Tool call denied: {result.reason or 'policy violation'}"
            if result.decision == Decision.MODIFY and result.modified_args is not None:
                effective_args = result.modified_args
        validated = self._args_type.model_validate(effective_args)
        return await self.run(validated, cancellation_token)


class TestOtherHosts:
    """A call of which nobody says that it has ended gives its slot back."""

    @staticmethod
    def tool(session: govnode.Session, function: Any, **options: Any) -> Any:
        tool = Proposed(function, name="shell", description="a shell")
        tool.guardrail_providers = [GovnodeGuardrail(session, **options)]
        return tool

    def test_call_ends_with_its_task(self, session: govnode.Session) -> None:
        """A workbench of AutoGen runs each call in a task of its own."""
        held: list[int] = []

        async def shell(command: str) -> str:
            held.append(len(session.read().open_calls))
            if command == "fail":
                raise ValueError("no such file")
            return f"ran {command}"

        script: Script = [[("shell", {"command": c})] for c in ("ls", "fail", "rm -rf /")]
        agent = AssistantAgent(
            "worker", scripted([*script, "done"]), tools=[self.tool(session, shell)], max_tool_iterations=5
        )
        saw = AutoGen.seen(asyncio.run(agent.run(task="go"))).model_saw
        assert saw[0] == "ran ls"
        assert "Tool call denied: Denied by govnode" in saw[2]
        assert held == [1, 1]
        eventually(lambda: session.read().open_calls == ())
        info = session.read()
        assert (info.attempts, info.executions, info.failures) == (3, 2, 1)

    def test_cancelled_task_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            started = asyncio.Event()

            async def shell(command: str) -> str:
                started.set()
                await asyncio.Event().wait()
                return ""

            tool = self.tool(session, shell)
            run = asyncio.create_task(tool.run_json({"command": "ls"}, CancellationToken()))
            await asyncio.wait_for(started.wait(), 30)
            assert len(session.read().open_calls) == 1
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_call_of_a_task_that_goes_on_ends_after_hold(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            provider = GovnodeGuardrail(session, hold=1.0)
            # In a task that asks and does no more, as wait_for made it, the call is no shorter for that.
            result = await asyncio.create_task(provider.evaluate(tool_name="shell", args={"command": "ls"}))
            assert result.decision is Decision.ALLOW
            assert len(session.read().open_calls) == 1
            while session.read().open_calls != ():
                await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(scenario(), 30))

    def test_token_ends_the_wait(self, client: govnode.Client) -> None:
        """A wait for a slot that is cancelled is a denial, and leaves nothing behind."""
        client.put_policy("name: one-at-once\nmax_concurrent: 1\n")
        session = client.session(agent="tester", policy="one-at-once")

        async def scenario() -> None:
            token = CancellationToken()
            provider = GovnodeGuardrail(session, wait=60)
            asked = asyncio.create_task(
                provider.evaluate(tool_name="shell", args={}, cancellation_token=token, call_id="c")
            )
            await asyncio.to_thread(eventually, lambda: client.get_pool("policy/one-at-once").waiting == 1)
            token.cancel()
            result = await asyncio.wait_for(asked, 30)
            assert (result.decision, result.reason) == (Decision.DENY, "cancelled")

        with session.call("other"):
            asyncio.run(scenario())
        eventually(lambda: client.get_pool("policy/one-at-once").in_use == 0)
