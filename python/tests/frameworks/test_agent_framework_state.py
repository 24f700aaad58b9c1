from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import govnode

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed")

from agent_framework import Agent, AgentSession, Content, Message
from maf import ScriptedClient, go, governed

from govnode.adapters.agent_framework import Conflict, GovnodeHistory, GovnodeSessionStore
from govnode.errors import Rejected

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"test/{request.node.name}/"


def said(*texts: str) -> list[Message]:
    return [Message(role="user", contents=[Content.from_text(t)]) for t in texts]


def texts(messages: list[Message]) -> list[str]:
    return [m.text for m in messages]


class TestHistory:
    @streaming
    def test_the_next_process_goes_on(self, client: govnode.Client, prefix: str, stream: bool) -> None:
        def shell(command: str) -> str:
            """Runs a command."""
            return f"ran {command}"

        def agent(script: list[Any]) -> Agent:
            history = GovnodeHistory(client, prefix=prefix)
            return Agent(client=ScriptedClient(script), tools=[governed(shell)], context_providers=[history])

        first = agent([[("shell", {"command": "ls"})], "it is done"])
        asyncio.run(go(first, "clean up", stream, session=AgentSession(session_id="s1")))
        model = ScriptedClient(["as I said"])
        second = Agent(client=model, context_providers=[GovnodeHistory(client, prefix=prefix)])
        asyncio.run(go(second, "and now?", stream, session=AgentSession(session_id="s1")))
        assert [t for t in model.texts().split("\n") if t] == ["clean up", "ran ls", "it is done", "and now?"]
        calls = [c for m in model.read[0] for c in m.contents if c.type == "function_call"]
        assert [c.parse_arguments() for c in calls] == [{"command": "ls"}]

    def test_sessions_are_apart(self, client: govnode.Client, prefix: str) -> None:
        history = GovnodeHistory(client, prefix=prefix)

        async def scenario() -> None:
            for id in ("a", "a/b", "a%2Fb", "x" * 500, "x" * 501, "ü 🙂\n"):
                assert await history.get_messages(id) == []
                await history.save_messages(id, said(id))
            for id in ("a", "a/b", "a%2Fb", "x" * 500, "x" * 501, "ü 🙂\n"):
                assert texts(await history.get_messages(id)) == [id]
            assert await history.delete("a/b")
            assert await history.get_messages("a/b") == []
            assert texts(await history.get_messages("a")) == ["a"]

        asyncio.run(scenario())

    def test_of_an_async_client(self, client: govnode.Client, prefix: str) -> None:
        async def scenario() -> None:
            async with govnode.AsyncClient(client.config.urls) as other:
                await GovnodeHistory(other, prefix=prefix).save_messages("a", said("one"))

        asyncio.run(scenario())
        assert texts(asyncio.run(GovnodeHistory(client, prefix=prefix).get_messages("a"))) == ["one"]

    def test_long_messages_and_many(self, client: govnode.Client, prefix: str) -> None:
        history = GovnodeHistory(client, prefix=prefix)
        long = ["é" * n for n in (1, 60_000, 61_000, 200_000)]  # above 64 KiB in parts
        many = [f"message {i}" for i in range(350)]

        async def scenario() -> None:
            await history.save_messages("a", said(*long))
            await history.save_messages("a", said(*many))
            await history.save_messages("a", [])
            assert texts(await history.get_messages("a")) == long + many

        asyncio.run(scenario())

    def test_a_full_list_is_an_error(self, client: govnode.Client, prefix: str) -> None:
        history = GovnodeHistory(client, prefix=prefix)

        async def scenario() -> None:
            for _ in range(3):
                await history.save_messages("a", said("x" * 1_200_000))
            with pytest.raises(Rejected, match="4"):
                await history.save_messages("a", said("x" * 1_200_000, "last"))
            assert "last" not in texts(await history.get_messages("a"))

        asyncio.run(scenario())

    def test_without_a_session(self, client: govnode.Client) -> None:
        history = GovnodeHistory(client)
        with pytest.raises(ValueError, match="there is no session"):
            asyncio.run(history.save_messages(None, said("x")))
        with pytest.raises(ValueError, match="there is no session"):
            asyncio.run(history.get_messages(""))

    def test_what_is_kept(self, client: govnode.Client, prefix: str) -> None:
        history = GovnodeHistory(client, prefix=prefix, store_inputs=False)
        agent = Agent(client=ScriptedClient(["hello"]), context_providers=[history])
        asyncio.run(agent.run("go", session=AgentSession(session_id="s")))
        assert texts(asyncio.run(history.get_messages("s"))) == ["hello"]


class TestSessionStore:
    def test_round_trip(self, client: govnode.Client, prefix: str) -> None:
        async def scenario() -> None:
            store = GovnodeSessionStore(client, prefix=prefix)
            assert await store.get("a") is None
            session = AgentSession(session_id="inner", service_session_id="theirs")
            session.state["list"] = said("one")
            session.state["n"] = {"x": 1.5, "ü": None}
            await store.set("a", session)
            session.state["n"]["x"] = 2
            await store.set("a", session)  # it knows its own version
            found = await GovnodeSessionStore(client, prefix=prefix).get("a")
            assert found is not None
            assert (found.session_id, found.service_session_id) == ("inner", "theirs")
            assert (texts(found.state["list"]), found.state["n"]) == (["one"], {"x": 2, "ü": None})
            await store.delete("a")
            await store.delete("a")
            assert await store.get("a") is None

        asyncio.run(scenario())

    def test_nobody_is_overwritten(self, client: govnode.Client, prefix: str) -> None:
        async def scenario() -> None:
            here, there = (GovnodeSessionStore(client, prefix=prefix) for _ in range(2))
            await here.set("a", AgentSession())
            mine, theirs = await here.get("a"), await there.get("a")
            assert mine is not None
            assert theirs is not None
            theirs.state["by"] = "them"
            await there.set("a", theirs)
            mine.state["by"] = "me"
            with pytest.raises(Conflict, match="get it again"):
                await here.set("a", mine)
            with pytest.raises(Conflict):
                await here.set("a", AgentSession())  # one that was never read
            found = await here.get("a")
            assert found is not None
            assert found.state["by"] == "them"
            found.state["by"] = "me"
            await here.set("a", found)
            assert json.loads(client.get(f"{prefix}a").value)["state"] == {"by": "me"}  # type: ignore[union-attr]

        asyncio.run(scenario())

    def test_too_large(self, client: govnode.Client, prefix: str) -> None:
        session = AgentSession()
        session.state["x"] = "x" * 70_000
        with pytest.raises(ValueError, match="of 65536: keep its messages in a GovnodeHistory"):
            asyncio.run(GovnodeSessionStore(client, prefix=prefix).set("a", session))
        assert client.get(f"{prefix}a") is None

    @pytest.mark.parametrize("id", ["", None, 7])
    def test_ids(self, client: govnode.Client, id: Any) -> None:
        with pytest.raises(ValueError, match="non-empty"):
            asyncio.run(GovnodeSessionStore(client).get(id))
