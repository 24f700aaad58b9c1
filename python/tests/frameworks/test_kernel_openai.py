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


def wrapped(kernel: Any, api: Any, **options: Any) -> Any:
    return kernel.wrap(api.beta.assistants.create(model="scripted"), api, poll_interval=0.001, **options)


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
        """Nothing is asked of the model: there is no run."""
        for signal in ("stop", "kill"):
            for mode in self.driver.modes:
                kernel: Any = self.driver.make(client)
                tool = Tool()
                getattr(kernel, f"signal_{signal}")()
                with pytest.raises(PolicyViolationError, match=r"stopped|killed"):
                    self.driver.run(kernel, LS, tool.function, mode)
                assert tool.executed == []


class TestOpenAIKernel(Wrapping):
    driver = DRIVER

    def test_10_1_1_defaults(self) -> None:
        kernel = OpenAIKernel()
        assert (kernel.max_retries, kernel.timeout_seconds) == (3, 300.0)

    def test_10_2_a_client_is_required(self) -> None:
        with pytest.raises(TypeError):
            OpenAIKernel().wrap(object())
        with pytest.raises(TypeError, match="client"):
            OpenAIKernel().wrap(object(), None)

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

    @pytest.mark.parametrize(
        "given",
        [
            {"instructions": "rm -rf"},
            {"additional_instructions": "rm -rf"},
            {"additional_messages": [{"role": "user", "content": "rm -rf"}]},
            {"additional_messages": [{"role": "user", "content": [{"type": "text", "text": "rm -rf"}]}]},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_10_3_texts_of_a_run_are_looked_at(self, client: govnode.Client, given: Any, stream: bool) -> None:
        kernel: Any = DRIVER.make(client)
        with Provider(["done"]) as provider, OpenAI(api_key="none", base_url=provider.url) as api:
            governed = wrapped(kernel, api)
            thread = governed.create_thread()
            with pytest.raises(PolicyViolationError, match="input"):
                list(governed.run_stream(thread.id, **given)) if stream else governed.run(thread.id, **given)
            with pytest.raises(PolicyViolationError, match="input"):
                governed.create_thread(messages=[{"role": "user", "content": "rm -rf"}])
            assert provider.runs == {}

    @pytest.mark.parametrize("kind", ["text", "object", "nested", "error", "awaited object", "coroutine"])
    def test_10_3_what_a_function_gives_is_looked_at(self, client: govnode.Client, kind: str) -> None:
        kernel: Any = DRIVER.make(client, {"blocked_patterns": ["forbidden-word", '"secret": true']})
        text = "it is FORBIDDEN-WORD"

        class Awaited:
            async def __call__(self, command: str) -> str:
                return text

        async def later(command: str) -> str:
            return text

        def shell(command: str) -> Any:
            if kind == "error":
                raise ValueError(text)
            return {"object": {"secret": True}, "nested": [{"x": [text]}]}.get(kind, text)

        tool = {"awaited object": Awaited(), "coroutine": lambda command: later(command)}.get(kind, shell)

        async def scenario(url: str) -> None:
            async with AsyncOpenAI(api_key="none", base_url=url) as api:
                assistant = await api.beta.assistants.create(model="scripted")
                governed = kernel.wrap(assistant, api, poll_interval=0.001, on_error=str)
                governed.register_tool("shell", tool)
                await governed.run((await governed.create_thread()).id)

        with Provider(LS) as provider:
            asyncio.run(scenario(provider.url))
        outputs = provider.outputs
        if not kind.startswith(("awaited", "coroutine")):
            with Provider(LS) as provider, OpenAI(api_key="none", base_url=provider.url) as api:
                governed = wrapped(kernel, api, on_error=str)
                governed.register_tool("shell", tool)
                governed.run(governed.create_thread().id)
            outputs += provider.outputs
        assert outputs
        assert all("Denied by govnode" in o for o in outputs)
        assert not any("FORBIDDEN-WORD" in o or '"secret": true' in o for o in outputs)

    def test_10_3_a_function_that_is_to_be_awaited(self, client: govnode.Client) -> None:
        class Awaited:
            async def __call__(self, command: str) -> str:
                return ""

        with Provider(LS) as provider, OpenAI(api_key="none", base_url=provider.url) as api:
            governed = wrapped(DRIVER.make(client), api)
            with pytest.raises(TypeError, match="AsyncOpenAI"):
                governed.register_tool("shell", Awaited())

    def test_10_4_cancelling_with_an_async_client(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)

        async def scenario(url: str) -> None:
            async with AsyncOpenAI(api_key="none", base_url=url) as api:
                governed = kernel.wrap(await api.beta.assistants.create(model="scripted"), api)
                thread = await governed.create_thread()
                run = await api.beta.threads.runs.create(thread_id=thread.id, assistant_id="asst_1")
                await kernel.cancel_run(thread.id, run.id, api)
                assert kernel.is_cancelled(run.id)

        with Provider(["done"]) as provider:
            asyncio.run(scenario(provider.url))
            assert [r["status"] for r in provider.runs.values()] == ["cancelled"]

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

    def test_10_4_cancelling_is_best_effort(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        kernel = OpenAIKernel()
        with OpenAI(api_key="none", base_url="http://127.0.0.1:9", max_retries=0) as api:
            kernel.cancel_run("t", "r", api)
        assert kernel.is_cancelled("r")
        assert "run r was not cancelled" in caplog.text


class TestResponses(Wrapping):
    driver = ResponsesDriver()

    @pytest.mark.parametrize(
        "given",
        [
            {"input": "rm -rf"},
            {"input": "go", "instructions": "rm -rf"},
            {"input": [{"role": "user", "content": "rm -rf"}]},
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "rm -rf"}]}]},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_what_is_asked_is_looked_at(self, client: govnode.Client, given: Any, stream: bool) -> None:
        kernel: Any = DRIVER.make(client)
        with (
            test_openai_responses.Provider(["done"]) as provider,
            OpenAI(api_key="none", base_url=provider.url) as api,
            pytest.raises(PolicyViolationError, match="input"),
        ):
            list(kernel.govern_responses(api, {}).create(model="scripted", stream=stream, **given))

    @pytest.mark.parametrize("mode", ["sync", "async", "stream", "astream"])
    def test_what_is_said_is_looked_at(self, client: govnode.Client, mode: str) -> None:
        kernel: Any = DRIVER.make(client)

        stream = {"stream": True} if mode.endswith("stream") else {}
        asked: dict[str, Any] = {"model": "scripted", "input": "go", **stream}

        def threaded(url: str) -> None:
            with OpenAI(api_key="none", base_url=url) as api:
                list(kernel.govern_responses(api, {}).create(**asked))

        async def looped(url: str) -> None:
            async with AsyncOpenAI(api_key="none", base_url=url) as api:
                made = await kernel.govern_responses(api, {}).create(**asked)
                if stream:
                    async for _ in made:
                        pass

        with test_openai_responses.Provider(["now rm -rf"]) as provider:
            call = threaded if mode in ("sync", "stream") else lambda url: asyncio.run(looped(url))
            with pytest.raises(PolicyViolationError):
                call(provider.url)
