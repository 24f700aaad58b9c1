"""OpenAIKernel (adapter contract 10) on the real SDK and a real node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernel_laws import LS, KernelDriver, KernelLaws
from laws import Script, Seen, Tool

import govnode
from govnode.integration import PolicyViolationError

pytest.importorskip("openai", reason="the OpenAI SDK is not installed")

import test_openai_responses
from openai import AsyncOpenAI, OpenAI
from test_openai_assistants import Provider

from govnode.integrations import AssistantContext, OpenAIKernel


class OpenAIKernelDriver(KernelDriver):
    kernel = OpenAIKernel
    factory = "wrap"

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        with Provider(script) as provider, OpenAI(api_key="none", base_url=provider.url) as client:
            assistant = client.beta.assistants.create(model="scripted")
            governed = kernel.wrap(assistant, client, session_id, poll_interval=0.001)
            governed.register_tool("shell", tool)
            governed.run(governed.create_thread().id)
            return Seen(provider.outputs, provider.final)

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        with Provider(script) as provider:
            async with AsyncOpenAI(api_key="none", base_url=provider.url) as client:
                assistant = await client.beta.assistants.create(model="scripted")
                governed = kernel.wrap(assistant, client, session_id, poll_interval=0.001)
                governed.register_tool("shell", tool)
                await governed.run((await governed.create_thread()).id)
            return Seen(provider.outputs, provider.final)


class ResponsesDriver(OpenAIKernelDriver):
    """The loop for responses."""

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        with (
            test_openai_responses.Provider(script) as provider,
            OpenAI(api_key="none", base_url=provider.url) as client,
        ):
            governed = kernel.govern_responses(client, {"shell": tool}, session_id=session_id)
            response = governed.create(model="scripted", input="go")
            return Seen(provider.outputs, response.output_text)

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        with test_openai_responses.Provider(script) as provider:
            async with AsyncOpenAI(api_key="none", base_url=provider.url) as client:
                governed = kernel.govern_responses(client, {"shell": tool}, session_id=session_id)
                response = await governed.create(model="scripted", input="go")
            return Seen(provider.outputs, response.output_text)


DRIVER = OpenAIKernelDriver()


class Wrapping(KernelLaws):
    """``wrap`` is not deprecated here, and wants a client."""

    def test_missing_framework(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(OpenAIKernel, "framework", "no_such_framework")
        with pytest.raises(ImportError, match="pip install 'govnode"):
            OpenAIKernel().wrap(object(), object())
        with pytest.raises(RuntimeError, match="pip install 'govnode"):
            OpenAIKernel().govern_responses(object())

    def test_wrap_warns_and_governs(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)
        with Provider(LS) as provider, OpenAI(api_key="none", base_url=provider.url) as api:
            assistant = api.beta.assistants.create(model="scripted")
            with pytest.warns(DeprecationWarning, match=r"OpenAIKernel.wrap_assistant.*Use wrap\(\)") as caught:
                governed = kernel.wrap_assistant(assistant, api)
            assert caught[0].filename == __file__
            assert kernel.unwrap(governed) is assistant
            assert kernel.unwrap(assistant) is assistant

    def test_wrapped_agent_that_is_denied_raises(self, client: govnode.Client) -> None:
        """The model is told."""
        kernel = self.driver.make(client)
        tool = Tool()
        kernel.signal_stop()
        assert "stopped" in self.driver.told(kernel, LS, tool.function, "sync")
        assert tool.executed == []


class TestOpenAIKernel(Wrapping):
    driver = DRIVER

    def test_10_1_1_defaults(self) -> None:
        kernel = OpenAIKernel()
        assert (kernel.max_retries, kernel.timeout_seconds) == (3, 300.0)

    def test_10_2_a_client_is_required(self) -> None:
        with pytest.raises(TypeError):
            OpenAIKernel().wrap(object())

    def test_10_2_the_context_of_an_assistant(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        DRIVER.run(kernel, LS, Tool().function, "sync")
        ctx = kernel.contexts["asst_1"]
        assert isinstance(ctx, AssistantContext)
        assert (ctx.assistant_id, len(ctx.thread_ids), len(ctx.run_ids)) == ("asst_1", 1, 1)
        assert [c["name"] for c in ctx.function_calls] == ["shell"]
        assert (ctx.prompt_tokens, ctx.completion_tokens) == (7, 3)
        assert ctx.call_count == 1

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_10_3_messages_are_looked_at(self, client: govnode.Client, mode: str) -> None:
        kernel: Any = DRIVER.make(client)
        with Provider(["done"]) as provider:
            if mode == "sync":
                api = OpenAI(api_key="none", base_url=provider.url)
                governed = kernel.wrap(api.beta.assistants.create(model="scripted"), api)
                thread = governed.create_thread()
                with pytest.raises(PolicyViolationError, match="input"):
                    governed.add_message(thread.id, "rm -rf")
                governed.add_message(thread.id, [{"type": "text", "text": "hello"}])
            else:

                async def scenario() -> None:
                    api = AsyncOpenAI(api_key="none", base_url=provider.url)
                    governed = kernel.wrap(await api.beta.assistants.create(model="scripted"), api)
                    thread = await governed.create_thread()
                    with pytest.raises(PolicyViolationError, match="input"):
                        await governed.add_message(thread.id, "rm -rf")
                    await governed.add_message(thread.id, "hello")

                asyncio.run(scenario())
        assert len([p for p in provider.posts if p.endswith("/messages")]) == 1

    def test_10_4_a_cancelled_run_calls_nothing(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)
        tool = Tool()
        with Provider(LS) as provider, OpenAI(api_key="none", base_url=provider.url) as api:
            governed = kernel.wrap(api.beta.assistants.create(model="scripted"), api, poll_interval=0.001)
            governed.register_tool("shell", tool.function)
            thread = governed.create_thread()
            for event in governed.run_stream(thread.id):
                if event.event == "thread.run.created":
                    kernel.cancel_run(thread.id, event.data.id, api)
                    run_id = event.data.id
        assert kernel.is_cancelled(run_id)
        assert governed.is_cancelled(run_id)
        assert kernel._cancelled_runs == {run_id}
        assert tool.executed == []
        assert any(p.endswith("/cancel") for p in provider.posts)

    def test_10_4_cancelling_is_best_effort(self) -> None:
        kernel = OpenAIKernel()
        with OpenAI(api_key="none", base_url="http://127.0.0.1:9", max_retries=0) as api:
            kernel.cancel_run("t", "r", api)
        assert kernel.is_cancelled("r")


class TestResponses(Wrapping):
    driver = ResponsesDriver()
