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
from laws import RULES, SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import Killed, PolicyViolationError
from govnode.guardrail import Decision, GuardrailResult

pytest.importorskip("autogen_agentchat", reason="AutoGen is not installed")

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_core import CancellationToken
from autogen_core.tools import StaticWorkbench
from test_autogen import AutoGen, as_tool, scripted

from govnode.adapters.autogen import govern_agent
from govnode.adapters.autogen_guardrails import GuardedWorkbench, guard_agent, guard_tool
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

    def test_a_host_that_sees_no_outputs(self, client: govnode.Client) -> None:
        """Where rules look at what a tool returns it does not run: such a host tells nobody of that."""
        client.put_policy(RULES)
        session = client.session(agent="tester", policy="reviewed")
        asked = GovnodeGuardrail(session).evaluate(tool_name="shell", args={"command": "ls"}, call_id="c")
        result = asyncio.run(asked)
        assert result.decision is Decision.DENY
        assert "rules look at what it returns" in str(result.reason)
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
            command = [str(tmp_path / "server.py")]  # which takes its time to start where much is going on
            parameters = StdioServerParams(command=sys.executable, args=command, read_timeout_seconds=60)
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

    def test_govnode_is_innermost_and_once(self, session: govnode.Session) -> None:
        guarded = guard_agent(AssistantAgent("worker", scripted(ONE), tools=[Tool().function]), [allow()])
        with pytest.raises(ValueError, match="guarded already"):
            govern_agent(guarded, session)
        governed = govern_agent(AssistantAgent("worker", scripted(ONE), tools=[Tool().function]), session)
        with pytest.raises(ValueError, match="governed already"):
            guard_agent(governed, [GovnodeGuardrail(session)])


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
