from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import eventually
from laws import Driver, Laws, Script, Seen, Tool

import govnode

pytest.importorskip("pydantic_ai", reason="PydanticAI is not installed")

from pydantic_ai import Agent, models
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ConcurrencyLimitExceeded
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from govnode.adapters.pydantic_ai import GovnodeCapability, GovnodeLimiter

models.ALLOW_MODEL_REQUESTS = False


def scripted(script: Script) -> FunctionModel:
    turns = iter(enumerate(script))

    def answer(messages: Any, info: Any) -> Any:
        n, step = next(turns)
        if isinstance(step, str):
            return ModelResponse(parts=[TextPart(step)])
        return ModelResponse(parts=[ToolCallPart(t, a, tool_call_id=f"call-{n}-{i}") for i, (t, a) in enumerate(step)])

    async def stream(messages: Any, info: Any) -> Any:
        import json

        n, step = next(turns)
        if isinstance(step, str):
            yield step
            return
        yield {
            i: DeltaToolCall(name=t, json_args=json.dumps(a), tool_call_id=f"call-{n}-{i}")
            for i, (t, a) in enumerate(step)
        }

    return FunctionModel(answer, stream_function=stream)


class PydanticAI(Driver):
    modes = ("sync", "async", "stream")

    def agent(self, session: Any, script: Script, tool: Any, others: Any = (), **options: Any) -> Any:
        agent: Any = Agent(scripted(script), capabilities=[GovnodeCapability(session, **options), *others])
        agent.tool_plain(tool)
        return agent

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        return self.seen(self.agent(session, script, tool, **options).run_sync("go"))

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        if mode == "async":
            return self.seen(await agent.run("go"))
        async with agent.run_stream("go") as result:
            final = await result.get_output()
        return self.seen(result, final)

    @staticmethod
    def seen(result: Any, final: str | None = None) -> Seen:
        parts = [p for m in result.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
        return Seen([str(p.content) for p in parts], final if final is not None else str(result.output))


DRIVER = PydanticAI()


class TestPydanticAI(Laws):
    driver = DRIVER

    def test_denial_is_a_failure_and_uses_no_retry(self, session: govnode.Session) -> None:
        script: Script = [[("shell", {"command": "rm -rf /"})]] * 4
        agent = DRIVER.agent(session, [*script, "done"], Tool().function)
        result = asyncio.run(agent.run("go"))
        parts = [p for m in result.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
        assert [p.outcome for p in parts] == ["failed"] * 4
        assert result.output == "done"

    @pytest.mark.parametrize("first", [True, False])
    def test_what_others_changed_is_judged(self, session: govnode.Session, first: bool) -> None:
        class Rewriter(AbstractCapability):
            async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
                return {"command": "rm -rf /"}

        tool = Tool()
        agent: Any = Agent(
            scripted([[("shell", {"command": "ls"})], "done"]),
            capabilities=[GovnodeCapability(session), Rewriter()][:: 1 if first else -1],
        )
        agent.tool_plain(tool.function)
        assert "Denied" in DRIVER.seen(asyncio.run(agent.run("go"))).model_saw[0]
        assert tool.executed == []

    def test_session_of_each_conversation(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        agent = DRIVER.agent(of, [[("shell", {"command": "ls"})], "done"], Tool().function)
        asyncio.run(agent.run("go", conversation_id="a"))
        assert client.get_session(f"{session.id}-a").executions == 1

    def test_limiter_holds_runs_within_a_pool(self, client: govnode.Client) -> None:
        client.put_pool("agents", 2)
        running = most = 0

        async def shell(command: str) -> str:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            return "ok"

        limiter = GovnodeLimiter(client, "agents", wait=60)

        async def one() -> str:
            agent: Any = Agent(scripted([[("shell", {"command": "ls"})], "done"]), max_concurrency=limiter)
            agent.tool_plain(shell)
            return str((await agent.run("go")).output)

        async def scenario() -> list[str]:
            return await asyncio.gather(*[one() for _ in range(6)])

        assert asyncio.run(scenario()) == ["done"] * 6
        assert most <= 2
        eventually(lambda: client.get_pool("agents").in_use == 0)

    def test_limiter_refuses(self, client: govnode.Client) -> None:
        client.put_pool("single", 1)
        agent: Any = Agent(scripted(["done"]), max_concurrency=GovnodeLimiter(client, "single", wait=0))
        with client.slot("single"), pytest.raises(ConcurrencyLimitExceeded, match="Denied by govnode"):
            asyncio.run(agent.run("go"))

    def test_stream_that_is_closed_early_gives_the_slot_back(self, client: govnode.Client) -> None:
        client.put_pool("streams", 1)
        agent: Any = Agent(scripted(["a long answer"]), max_concurrency=GovnodeLimiter(client, "streams", wait=0))

        async def scenario() -> None:
            async with agent.run_stream("go") as result:
                async for _ in result.stream_text():
                    break

        asyncio.run(scenario())
        eventually(lambda: client.get_pool("streams").in_use == 0)
