"""Proposal 004 at single tools of the real AutoGen, and in hosts that know no more than the proposal."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest
from conftest import eventually
from laws import RULES, SCRIPT, Script, Tool, flush

import govnode
from govnode.adapters import Killed
from govnode.guardrail import Decision, GuardrailProvider, GuardrailResult

pytest.importorskip("autogen_agentchat", reason="AutoGen is not installed")

import autogen_core.tools
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_core import AgentId, CancellationToken, FunctionCall, SingleThreadedAgentRuntime
from autogen_core.tool_agent import ToolAgent
from autogen_core.tools import BaseStreamTool, FunctionTool, StaticStreamWorkbench, StaticWorkbench, StreamTool
from pydantic import BaseModel
from test_autogen import AutoGen, as_tool, scripted
from test_autogen_guardrails import ONE, Says, allow, call, deny, modify

from govnode.adapters.autogen_guardrails import guard_agent, guard_tool
from govnode.adapters.guardrail import Admission, GovnodeGuardrail


class TestInterface:
    """[Proposed Interface]: the values themselves are in test_contract_values.py."""

    def test_protocol_is_checkable_and_needs_no_inheritance(self, session: govnode.Session) -> None:
        assert isinstance(GovnodeGuardrail(session), GuardrailProvider)
        assert isinstance(allow(), GuardrailProvider)
        assert not isinstance(object(), GuardrailProvider)
        with pytest.raises(TypeError, match="no GuardrailProvider"):
            guard_tool(as_tool(Tool().function), [cast("Any", object())])

    def test_evaluate_takes_keywords_alone(self, session: govnode.Session) -> None:
        with pytest.raises(TypeError):
            asyncio.run(GovnodeGuardrail(session).evaluate("shell", {}))  # type: ignore[call-arg]

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
        assert isinstance(tool, autogen_core.tools.Tool)
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

    def test_what_rules_leave_of_a_stream(self, client: govnode.Client) -> None:
        """What comes on the way nobody judges: where rules look at the output, what is left of that is all there is."""

        class Telling(Counter):
            async def run_stream(self, args: Any, cancellation_token: Any) -> Any:
                yield "looking for sk-abc"
                yield "found sk-abc" if args.to else "found none"

        client.put_policy(RULES)
        session = client.session(agent="tester", policy="reviewed")
        tool = guard_tool(Telling(), [GovnodeGuardrail(session)])
        (left,) = asyncio.run(self.items(tool, 1))
        assert left.startswith("found [REDACTED]")
        assert asyncio.run(self.items(tool, 0)) == ["found none"]
        assert session.read().open_calls == ()

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

        async def shell(command: str) -> str:
            await asyncio.to_thread(eventually, lambda: len(session.read().open_calls) == 1)  # this one, none before
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

    def test_task_that_asks_and_does_no_more_is_no_measure(self, session: govnode.Session) -> None:
        """As that which wait_for made, before Python 3.12."""

        async def scenario() -> None:
            provider = GovnodeGuardrail(session)
            result = await asyncio.create_task(provider.evaluate(tool_name="shell", args={"command": "ls"}))
            assert isinstance(result, Admission)
            await asyncio.to_thread(flush, session)
            assert len(session.read().open_calls) == 1
            result.drop()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_call_of_a_task_that_goes_on_ends_after_hold(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            result = await GovnodeGuardrail(session, hold=0.05).evaluate(tool_name="shell", args={"command": "ls"})
            assert result.decision is Decision.ALLOW
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

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
