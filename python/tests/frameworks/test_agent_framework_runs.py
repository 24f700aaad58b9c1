from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from conftest import eventually
from laws import Tool

import govnode

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed")

from agent_framework import (
    Agent,
    AgentLoopMiddleware,
    Content,
    FunctionInvocationContext,
    Message,
    MiddlewareFailure,
)
from maf import ScriptedClient, go, governed, results

from govnode.adapters import Killed, PolicyViolationError
from govnode.adapters.agent_framework import (
    GovnodeAgentMiddleware,
    GovnodeChatMiddleware,
    GovnodeMiddleware,
)

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def limited(client: govnode.Client, name: str, **limits: Any) -> govnode.Session:
    client.put_policy("\n".join([f"name: {name}", *(f"{k}: {v}" for k, v in limits.items())]) + "\n")
    return client.session(agent="tester", policy=name)


async def once(stream: Any) -> None:
    """Read one piece of a stream."""
    await stream.__aiter__().__anext__()


class TestAgents:
    @streaming
    def test_a_run_is_a_call(self, client: govnode.Client, stream: bool) -> None:
        session = limited(client, "runs", max_agent_calls=2)
        agent = Agent(
            client=ScriptedClient(["one", "two", "three"]), name="writer", middleware=[GovnodeAgentMiddleware(session)]
        )
        said = [asyncio.run(go(agent, "go", stream)).text for _ in range(3)]
        assert said[:2] == ["one", "two"]
        assert "Denied by govnode" in said[2]
        info = session.read()
        assert (info.executions, info.open_calls, info.attempts) == (2, (), 3)

    @streaming
    def test_a_round_of_a_loop_is_a_run(self, client: govnode.Client, stream: bool) -> None:
        session = limited(client, "rounds", max_agent_calls=3)
        model = ScriptedClient([str(n) for n in range(20)])
        loop = AgentLoopMiddleware(should_continue=lambda **_: True)  # 10 rounds at most by itself
        agent = Agent(client=model, middleware=[loop, GovnodeAgentMiddleware(session)])
        asyncio.run(go(agent, "go", stream))
        assert model.turn == 3
        assert session.read().executions == 3

    def test_the_limit_is_one_of_all_processes(self, client: govnode.Client) -> None:
        session = limited(client, "shared-runs", max_agent_calls=3)
        models = [ScriptedClient([str(n) for n in range(20)]) for _ in range(2)]
        for model in models:
            loop = AgentLoopMiddleware(should_continue=lambda **_: True, max_iterations=2)
            agent = Agent(client=model, middleware=[loop, GovnodeAgentMiddleware(session)])
            asyncio.run(agent.run("go"))
        assert [m.turn for m in models] == [2, 1]

    @streaming
    def test_killed(self, session: govnode.Session, stream: bool) -> None:
        session.open()
        session.signal("KILL", reason="enough")
        agent = Agent(client=ScriptedClient(["one"]), middleware=[GovnodeAgentMiddleware(session)])
        with pytest.raises(MiddlewareFailure) as raised:
            asyncio.run(go(agent, "go", stream))
        assert isinstance(raised.value.__cause__, Killed)

    def test_raise_in_place_of_telling(self, client: govnode.Client) -> None:
        session = limited(client, "no-runs", max_agent_calls=0)
        agent = Agent(client=ScriptedClient(["one"]), middleware=[GovnodeAgentMiddleware(session, on_denied="raise")])
        with pytest.raises(MiddlewareFailure) as raised:
            asyncio.run(agent.run("go"))
        assert isinstance(raised.value.__cause__, PolicyViolationError)

    def test_a_run_that_fails(self, session: govnode.Session) -> None:
        agent = Agent(client=ScriptedClient([]), middleware=[GovnodeAgentMiddleware(session)])
        with pytest.raises(IndexError):
            asyncio.run(agent.run("go"))
        eventually(lambda: session.read().open_calls == ())
        assert session.read().failures == 1

    @pytest.mark.parametrize("read", [False, True])
    def test_a_stream_that_is_left(self, session: govnode.Session, read: bool) -> None:
        session.open()

        async def scenario() -> None:
            agent = Agent(client=ScriptedClient(["one"]), middleware=[GovnodeAgentMiddleware(session)])
            stream = agent.run("go", stream=True)
            if read:
                await once(stream)
            del stream
            gc.collect()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())


class TestModels:
    @streaming
    def test_a_request_is_a_call(self, client: govnode.Client, stream: bool) -> None:
        session = limited(client, "requests", max_model_calls=2)
        tool = Tool("async")
        model = ScriptedClient([[("shell", {"command": "ls"})], "done", "never"])
        agent = Agent(client=model, tools=[governed(tool.function)], middleware=[GovnodeChatMiddleware(session)])
        assert asyncio.run(go(agent, "go", stream)).text == "done"
        assert "Denied by govnode" in asyncio.run(go(agent, "go", stream)).text
        assert model.turn == 2
        info = session.read()
        assert (info.executions, info.tokens_used, info.open_calls) == (2, 14, ())

    @streaming
    def test_texts_are_looked_at(self, client: govnode.Client, stream: bool) -> None:
        client.put_policy("name: scanned\nblocked_patterns: ['the secret']\nscan: {personal_data: redact}\n")
        session = client.session(agent="tester", policy="scanned")

        def agent(script: list[Any]) -> tuple[Agent, ScriptedClient]:
            model = ScriptedClient(script)

            async def shell(command: str) -> str:
                """Runs a command."""
                return "anna@example.org"

            chat = GovnodeChatMiddleware(session, scan=True)
            return Agent(client=model, tools=[governed(shell)], middleware=[chat]), model

        it, model = agent(["never"])
        assert "Denied by govnode" in asyncio.run(go(it, "tell the secret", stream)).text
        assert model.turn == 0
        it, model = agent([[("shell", {"command": "ls"})], "done"])
        what = [Message(role="user", contents=[Content.from_text("I am bert@example.org")])]
        asyncio.run(go(it, what, stream))
        assert "@example.org" not in model.texts(0) + model.texts(1)
        assert what[0].text == "I am bert@example.org"  # that of the caller is left as it was
        # Who begins like a refusal is looked at all the same; a refusal may be said again.
        it, model = agent(["never"])
        assert "Denied" in asyncio.run(go(it, "Denied by govnode: tell the secret", stream)).text
        assert model.turn == 0
        it, model = agent([[Content.from_text_reasoning(text="ask carl@example.org")], "done"])
        assert "@" not in str([c.text for m in asyncio.run(go(it, "go", stream)).messages for c in m.contents])
        it, _ = agent(["write to carl@example.org"])
        assert "@" not in asyncio.run(go(it, "go", stream)).text
        it, _ = agent(["it is the secret"])
        assert "the secret" not in asyncio.run(go(it, "go", stream)).text
        assert session.read().open_calls == ()

    @streaming
    def test_killed(self, session: govnode.Session, stream: bool) -> None:
        session.open()
        session.signal("KILL", reason="enough")
        agent = Agent(client=ScriptedClient(["one"]), middleware=[GovnodeChatMiddleware(session)])
        with pytest.raises(MiddlewareFailure) as raised:
            asyncio.run(go(agent, "go", stream))
        assert isinstance(raised.value.__cause__, Killed)

    def test_no_service(self) -> None:
        with govnode.Client("127.0.0.1:9", timeout=0.5) as client:
            session = client.session("s", agent="tester", policy="plain")
            model = ScriptedClient(["one"])
            for scan in (False, True):
                agent = Agent(client=model, middleware=[GovnodeChatMiddleware(session, scan=scan)])
                with contextlib.suppress(MiddlewareFailure):
                    assert "Denied by govnode" in asyncio.run(agent.run("go")).text
        assert model.turn == 0

    def test_a_refusal_is_no_reason_to_refuse(self, client: govnode.Client) -> None:
        """It quotes what is blocked, and goes to the model with the next request."""
        client.put_policy("name: quoted\nblocked_patterns: ['the secret']\n")
        session = client.session(agent="tester", policy="quoted")
        tool = Tool("async")
        model = ScriptedClient([[("shell", {"command": "tell the secret"})], "done"])
        middleware = [GovnodeChatMiddleware(session, scan=True), GovnodeMiddleware(session)]
        agent = Agent(client=model, tools=[governed(tool.function)], middleware=middleware)
        assert asyncio.run(agent.run("go")).text == "done"
        assert "the secret" in model.texts()
        assert tool.executed == []

    def test_all_three_together(self, session: govnode.Session) -> None:
        tool = Tool("async")
        agent = Agent(
            client=ScriptedClient([[("shell", {"command": "rm -rf /"})], "done"]),
            tools=[governed(tool.function)],
            middleware=[GovnodeAgentMiddleware(session), GovnodeChatMiddleware(session), GovnodeMiddleware(session)],
        )
        response = asyncio.run(agent.run("go"))
        assert "Denied" in results(response)[0]
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (4, 3, ())  # a run, two requests, and the tool


class TestTools:
    @streaming
    def test_what_is_added_during_a_run_is_judged(self, session: govnode.Session, stream: bool) -> None:
        late = Tool("async")
        late.function.__name__ = "late"

        async def more(ctx: FunctionInvocationContext) -> str:
            """Brings another tool."""
            ctx.add_tools(governed(late.function))
            return "there it is"

        script = [[("more", {})], [("late", {"command": "rm -rf /"}), ("late", {"command": "ls"})], "done"]
        agent = Agent(client=ScriptedClient(script), tools=[governed(more)], middleware=[GovnodeMiddleware(session)])
        response = asyncio.run(go(agent, "go", stream))
        assert late.executed == ["ls"]
        assert "Denied" in results(response)[1]
