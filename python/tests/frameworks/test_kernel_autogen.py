"""AutoGenKernel (adapter contract 9) on the real framework and a real node."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from kernel_laws import LS, KernelDriver, KernelLaws
from laws import Script, Seen, Tool

import govnode
from govnode.integration import PolicyViolationError

pytest.importorskip("autogen_agentchat", reason="AutoGen is not installed")

from autogen_agentchat.agents import AssistantAgent
from autogen_core import (
    AgentId,
    DefaultTopicId,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TypeSubscription,
    message_handler,
)
from autogen_core.exceptions import MessageDroppedException
from autogen_core.models import UserMessage
from autogen_core.tool_agent import ToolAgent, tool_agent_caller_loop
from test_autogen import as_tool, scripted

from govnode.integrations import AutoGenKernel


class AutoGenKernelDriver(KernelDriver):
    kernel = AutoGenKernel
    factory = "as_handler"
    modes = ("async",)

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        handler = kernel.as_handler("tester", session_id)
        runtime = handler.serve(SingleThreadedAgentRuntime(intervention_handlers=[handler]))
        tools: Any = [as_tool(tool)]
        client = scripted(script)

        class Caller(RoutedAgent):
            @message_handler
            async def go(self, message: UserMessage, ctx: Any) -> Any:
                return await tool_agent_caller_loop(
                    self,
                    AgentId("tools", "default"),
                    model_client=client,
                    input_messages=[message],
                    tool_schema=tools,
                    cancellation_token=ctx.cancellation_token,
                )

        await ToolAgent.register(runtime, "tools", lambda: ToolAgent("tools", tools))
        await Caller.register(runtime, "caller", lambda: Caller("caller"))
        runtime.start()
        try:
            sent = UserMessage(content="go", source="user")
            messages = await runtime.send_message(sent, AgentId("caller", "default"))
        finally:
            await runtime.stop()
        saw = [r.content for m in messages if isinstance(m.content, list) for r in m.content if hasattr(r, "is_error")]
        return Seen(saw, str(messages[-1].content))

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        agent = AssistantAgent("worker", scripted(script), tools=[as_tool(tool)], max_tool_iterations=20)
        governed = kernel.wrap(agent)
        return agent, governed, lambda: asyncio.run(governed.run(task="go"))


DRIVER = AutoGenKernelDriver()


@dataclasses.dataclass
class Note:
    """What agents say to each other."""

    content: str


class TestAutoGenKernel(KernelLaws):
    driver = DRIVER

    @staticmethod
    async def said(kernel: Any, text: str, answer: str = "fine", publish: bool = False) -> tuple[list[str], Any]:
        """Say something to an agent through a runtime, and return what it heard and what came back."""
        handler = kernel.as_handler()
        runtime = handler.serve(SingleThreadedAgentRuntime(intervention_handlers=[handler]))
        heard: list[str] = []

        class Listener(RoutedAgent):
            @message_handler
            async def on_note(self, message: Note, ctx: Any) -> Note:
                heard.append(message.content)
                return Note(answer)

        await Listener.register(runtime, "listener", lambda: Listener("listener"))
        await runtime.add_subscription(TypeSubscription("default", "listener"))
        runtime.start()
        if publish:
            await runtime.publish_message(Note(text), DefaultTopicId())
            await asyncio.wait_for(runtime.stop_when_idle(), 30)
            return heard, None
        try:
            return heard, (await runtime.send_message(Note(text), AgentId("listener", "default"))).content
        finally:
            await runtime.stop()

    def test_9_3_a_blocked_message_is_dropped(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        with pytest.raises(MessageDroppedException):
            asyncio.run(self.said(kernel, "rm -rf"))
        assert [e["allowed"] for e in kernel.get_audit_log()] == [False]
        assert asyncio.run(self.said(kernel, "hello")) == (["hello"], "fine")

    def test_9_2_1_a_blocked_broadcast_comes_to_nobody(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        assert asyncio.run(self.said(kernel, "rm -rf", publish=True)) == ([], None)
        assert len(kernel.get_violations()) == 1
        assert asyncio.run(self.said(kernel, "hello", publish=True)) == (["hello"], None)

    def test_9_2_1_private_data_is_redacted(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        heard, answer = asyncio.run(self.said(kernel, "I am jane@example.org", "so is 123-45-6789"))
        assert "jane@example.org" not in heard[0]
        assert "I am" in heard[0]
        assert "123-45-6789" not in answer

    def test_9_2_1_a_blocked_answer_is_dropped(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        with pytest.raises(MessageDroppedException):
            asyncio.run(self.said(kernel, "hello", "rm -rf"))

    def test_without_the_service_nothing_is_delivered(self) -> None:
        with govnode.Client("127.0.0.1:9", timeout=0.5) as client:
            kernel = DRIVER.make(client)
            with pytest.raises(MessageDroppedException):
                asyncio.run(self.said(kernel, "hello"))

    def test_9_5_govern_takes_several_agents(self, client: govnode.Client) -> None:
        class Old:
            """An agent of the old kind."""

            name = "old"

            def __init__(self) -> None:
                self.sent: list[str] = []

            def send(self, message: str, recipient: Any) -> str:
                self.sent.append(message)
                return "sent"

        kernel: Any = DRIVER.make(client)
        tool, old = Tool("async"), Old()
        agent = AssistantAgent("worker", scripted(LS), tools=[as_tool(tool.function)], max_tool_iterations=20)
        with pytest.warns(DeprecationWarning, match="AutoGenKernel.govern.*as_handler"):
            assert kernel.govern(agent, old) == [agent, old]
        assert old.send("hello", None) == "sent"
        with pytest.raises(PolicyViolationError):
            old.send("rm -rf", None)
        assert old.sent == ["hello"]
        asyncio.run(agent.run(task="go"))
        assert tool.executed == ["ls"]
        assert client.get_session(kernel.contexts["worker"].session_id).executions == 1
        assert kernel.unwrap(old) is old
        assert old.send("rm -rf", None) == "sent"
        before = client.get_session(kernel.contexts["worker"].session_id).attempts
        kernel.unwrap(agent)
        agent._model_client = scripted(LS)
        asyncio.run(agent.run(task="go"))
        assert client.get_session(kernel.contexts["worker"].session_id).attempts == before
