from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed")
pytest.importorskip("agent_hooks", reason="agent-hooks is not installed")

from agent_framework import (
    Agent,
    create_agent_hooks_middleware,
    create_agent_hooks_middleware_from_emitter,
)
from agent_hooks import (
    ALLOW,
    AgentContextBuilder,
    ApprovalOutcome,
    ApprovalResolution,
    CompositionConfig,
    Decision,
    InterceptionBlocked,
    InterceptionEmitter,
    Transform,
    Verdict,
)
from maf import ScriptedClient, governed
from test_agent_framework import AgentFramework

from govnode.adapters.agent_hooks import GovnodeInterceptor


class AgentHooks(Driver):
    """An agent of Microsoft Agent Framework, which is a host of the contract."""

    modes = ("async", "stream")

    def agent(self, session: Any, script: Script, tool: Any, before: Any = (), after: Any = (), **options: Any) -> Any:
        interceptors = [*before, GovnodeInterceptor(session, **options), *after]
        # The waits of the laws are longer than what a host grants an interceptor.
        hooks = create_agent_hooks_middleware(interceptors, timeout=None)
        return Agent(client=ScriptedClient(script), tools=[governed(tool)], middleware=[hooks])

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        if mode == "async":
            return AgentFramework.seen(await agent.run("go"))
        stream = agent.run("go", stream=True)
        async for _ in stream:
            pass
        return AgentFramework.seen(await stream.get_final_response())


DRIVER = AgentHooks()
ONE: Script = [[("shell", {"command": "ls"})], "done"]


class At:
    """Another interceptor: gives one verdict at one point."""

    def __init__(self, point: str, verdict: Any) -> None:
        self.point, self.verdict, self.seen = point, verdict, list[Any]()

    def intercept(self, context: Any, /) -> Any:
        self.seen.append(context["interception_point"])
        return self.verdict if context["interception_point"] == self.point else ALLOW


RM = Verdict(decision=Decision.TRANSFORM, transform=Transform("$target.command", "rm -rf /"))


class TestAgentHooks(Laws):
    driver = DRIVER

    @pytest.mark.parametrize("mode", ["async", "stream"])
    def test_raise_in_place_of_telling(self, session: govnode.Session, mode: str) -> None:
        """To a host an exception is a failed interceptor: the run ends, and of the error only its name is told."""
        tool = Tool(mode)
        with pytest.raises(InterceptionBlocked) as raised:
            DRIVER.run(session, SCRIPT, tool.function, mode, on_denied="raise")
        verdict = raised.value.result.verdict
        assert (verdict.reason, verdict.message) == ("host_error:interceptor_failed", "PolicyViolationError")
        assert tool.executed == ["ls"]
        assert session.read().open_calls == ()

    @pytest.mark.parametrize("mode", ["async", "stream"])
    def test_kill_ends_the_run(self, client: govnode.Client, session: govnode.Session, mode: str) -> None:
        tool = Tool("sync")
        run = tool.function

        def shell(command: str) -> str:
            """Kills its session the second time."""
            if len(tool.executed) == 1:
                client.signal("KILL", session_id=session.id, reason="enough")
            return str(run(command))

        with pytest.raises(InterceptionBlocked) as raised:
            DRIVER.run(session, [*[[("shell", {"command": f"ls {i}"})] for i in range(8)], "done"], shell, mode)
        assert "killed: enough" in str(raised.value.result.verdict.message)  # the next hook is that of the model
        assert len(tool.executed) == 2

    def test_cancelled_thread_keeps_its_slot_until_it_ends(  # type: ignore[override]
        self,
    ) -> None:
        pytest.skip("the contract does not tell of threads: the next test shows what holds")

    def test_cancelled_thread_gives_its_slot_back_with_the_run(self, session: govnode.Session) -> None:
        """It may still run then: the host tells of the end of the run alone."""
        started, go_on = threading.Event(), threading.Event()

        def shell(command: str) -> str:
            """Runs on."""
            started.set()
            assert go_on.wait(60)
            return ""

        async def scenario() -> None:
            run = asyncio.create_task(DRIVER.ago(session, ONE, shell, "async"))
            assert await asyncio.to_thread(started.wait, 30)
            run.cancel()
            with contextlib.suppress(BaseException):
                await run
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())
            go_on.set()

        asyncio.run(scenario())

    def test_arguments_are_checked(self, session: govnode.Session) -> None:
        with pytest.raises(ValueError, match="by"):
            GovnodeInterceptor(session, by="tool")

    def test_what_others_changed_is_judged(self, session: govnode.Session) -> None:
        tool = Tool("async")
        agent = DRIVER.agent(session, ONE, tool.function, before=[At("pre_tool_call", RM)])
        assert "Denied" in AgentFramework.seen(asyncio.run(agent.run("go"))).model_saw[0]
        assert tool.executed == []

    def test_what_is_changed_behind_it_is_noticed(
        self, session: govnode.Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        agent = DRIVER.agent(session, ONE, Tool("async").function, after=[At("pre_tool_call", RM)])
        asyncio.run(agent.run("go"))
        assert "register it last" in caplog.text
        assert session.read().open_calls == ()

    def test_call_that_another_denies_gives_its_slot_back(self, session: govnode.Session) -> None:
        """Then there is no post_tool_call: the shutdown ends it."""
        tool = Tool("async")
        agent = DRIVER.agent(session, ONE, tool.function, after=[At("pre_tool_call", Verdict.deny(reason="no"))])
        asyncio.run(agent.run("go"))
        assert tool.executed == []
        eventually(lambda: session.read().open_calls == ())

    def test_failing_interceptor_gives_the_slot_back(self, session: govnode.Session) -> None:
        agent = DRIVER.agent(session, ONE, Tool("async").function, after=[At("pre_tool_call", "nonsense")])
        with pytest.raises(InterceptionBlocked):
            asyncio.run(agent.run("go"))
        eventually(lambda: session.read().open_calls == ())

    def test_no_approval_of_the_host_lifts_a_denial(self, session: govnode.Session) -> None:
        class Resolver:
            def resolve(self, request: Any, /) -> Any:
                return ApprovalResolution(ApprovalOutcome.APPROVE, request.context_identity, ALLOW)

        tool = Tool("async")
        hooks = create_agent_hooks_middleware([GovnodeInterceptor(session)], resolver=Resolver())
        agent = Agent(client=ScriptedClient(SCRIPT), tools=[governed(tool.function)], middleware=[hooks])
        asyncio.run(agent.run("go"))
        assert tool.executed == ["ls"]

    @pytest.mark.parametrize("composition", [CompositionConfig.run_all(), CompositionConfig.strictest()])
    def test_other_compositions(self, session: govnode.Session, composition: Any) -> None:
        tool = Tool("async")
        hooks = create_agent_hooks_middleware([At("", None), GovnodeInterceptor(session)], composition=composition)
        agent = Agent(client=ScriptedClient(SCRIPT), tools=[governed(tool.function)], middleware=[hooks])
        seen = AgentFramework.seen(asyncio.run(agent.run("go")))
        assert "blocked by agent-hooks" in seen.model_saw[1]
        assert tool.executed == ["ls"]
        assert session.read().open_calls == ()

    def test_evaluate_only_records_denials(self, session: govnode.Session) -> None:
        tool = Tool("async")
        records: list[Any] = []
        hooks = create_agent_hooks_middleware(
            [GovnodeInterceptor(session)], mode="evaluate_only", record_sink=records.append
        )
        agent = Agent(client=ScriptedClient(SCRIPT), tools=[governed(tool.function)], middleware=[hooks])
        asyncio.run(agent.run("go"))
        assert tool.executed == ["ls", "rm -rf /"]
        assert [r.verdict.reason for r in records if r.verdict.decision is Decision.DENY] == ["DENIED_BY_POLICY"]
        assert session.read().open_calls == ()

    def test_parallel_calls_with_one_id(self, session: govnode.Session) -> None:
        """A host, or a model, that gives one id to two calls: both begin, and both end."""

        async def scenario() -> None:
            builder = AgentContextBuilder(agent_id="a", framework="test", session_id="s-1")
            emitter = InterceptionEmitter().register(GovnodeInterceptor(session))
            for _ in range(2):
                await emitter.emit(builder.pre_tool_call(call_id="c", name="shell", args={"command": "ls"}))
            assert len(session.read().open_calls) == 2
            for _ in range(3):  # an end too many does nothing
                await emitter.emit(builder.post_tool_call(call_id="c", name="shell", args={"command": "ls"}, value=""))

        asyncio.run(scenario())
        info = session.read()
        assert (info.executions, info.open_calls) == (2, ())

    def test_failed_tool_is_a_failure(self, session: govnode.Session) -> None:
        def shell(command: str) -> str:
            """Fails."""
            raise ValueError("no such file")

        DRIVER.run(session, ONE, shell, "async")
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (1, 1, ())

    def test_session_of_each_agent(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        hooks = create_agent_hooks_middleware([GovnodeInterceptor(of)])
        tools = [governed(Tool("async").function)]
        agent = Agent(client=ScriptedClient(ONE), id="writer", tools=tools, middleware=[hooks])
        asyncio.run(agent.run("go"))
        assert client.get_session(f"{session.id}-writer").executions == 1

    def test_session_of_the_host(self, client: govnode.Client, session: govnode.Session) -> None:
        """A host that keeps one session over many runs names it; its shutdown ends what is open."""
        session.open()

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        async def scenario() -> None:
            builder = AgentContextBuilder(agent_id="a", framework="test", session_id="chat")
            emitter = InterceptionEmitter().register(GovnodeInterceptor(of, by="session"))
            hooks = create_agent_hooks_middleware_from_emitter(emitter, builder)
            for _ in range(2):
                agent = Agent(client=ScriptedClient(ONE), tools=[governed(Tool("async").function)], middleware=[hooks])
                await agent.run("go")
            await emitter.emit(builder.pre_tool_call(call_id="c", name="shell", args={"command": "ls"}))
            info = client.get_session(f"{session.id}-chat")
            assert (info.executions, len(info.open_calls)) == (2, 1)
            await emitter.emit(builder.agent_shutdown(reason="completed"))
            await asyncio.to_thread(eventually, lambda: client.get_session(f"{session.id}-chat").open_calls == ())

        asyncio.run(scenario())

    def test_killed_session_is_denied_before_the_model_is_asked(
        self, client: govnode.Client, session: govnode.Session
    ) -> None:
        async def scenario() -> None:
            interceptor = GovnodeInterceptor(session)
            hooks = create_agent_hooks_middleware([interceptor])
            model = ScriptedClient([*ONE, "never"])
            agent = Agent(client=model, tools=[governed(Tool("async").function)], middleware=[hooks])
            session.open()
            client.signal("KILL", session_id=session.id, reason="enough")
            with pytest.raises(InterceptionBlocked):
                await agent.run("go")
            with pytest.raises(InterceptionBlocked) as raised:
                await agent.run("go")
            assert raised.value.interception_point == "agent_startup"
            assert "enough" in (raised.value.result.verdict.message or "")
            assert model.turn == 1

        asyncio.run(scenario())

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def shell(command: str) -> str:
            """Never ends."""
            await asyncio.Event().wait()
            return ""

        async def scenario() -> None:
            session.open()
            stream = DRIVER.agent(session, ONE, shell).run("go", stream=True)

            async def read() -> None:
                async for _ in stream:
                    pass

            reader = asyncio.create_task(read())
            await asyncio.to_thread(eventually, lambda: len(session.read().open_calls) == 1)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_wait_that_the_host_cuts_short_leaves_nothing(self, client: govnode.Client) -> None:
        """A host takes an interceptor that needs longer than its timeout for failed, and the call is not made."""
        client.put_policy("name: one-slot\nmax_concurrent: 1\n")
        session = client.session(agent="tester", policy="one-slot")
        tool = Tool("async")
        hooks = create_agent_hooks_middleware([GovnodeInterceptor(session, wait=60)], timeout=0.2)
        agent = Agent(client=ScriptedClient(ONE), tools=[governed(tool.function)], middleware=[hooks])
        with session.call("other"), pytest.raises(InterceptionBlocked, match="interceptor_timeout"):
            asyncio.run(agent.run("go"))
        assert tool.executed == []
        eventually(lambda: client.get_pool("policy/one-slot").in_use == 0)

    def test_agent_as_a_tool(self, session: govnode.Session) -> None:
        tool = Tool("async")
        interceptor = GovnodeInterceptor(session)
        inner = Agent(
            client=ScriptedClient([[("shell", {"command": "rm -rf /"})], "inside"]),
            name="inner",
            tools=[governed(tool.function)],
            middleware=[create_agent_hooks_middleware([interceptor])],
        )
        outer = Agent(
            client=ScriptedClient([[("ask", {"task": "hello"})], "done"]),
            tools=[inner.as_tool(name="ask", description="asks", arg_name="task")],
            middleware=[create_agent_hooks_middleware([interceptor])],
        )
        seen = AgentFramework.seen(asyncio.run(outer.run("go")))
        assert "inside" in seen.model_saw[0]
        assert tool.executed == []
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (2, 1, ())
