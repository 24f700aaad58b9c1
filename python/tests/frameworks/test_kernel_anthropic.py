"""AnthropicKernel (adapter contract 11) on the real SDK and a real node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import eventually
from kernel_laws import BOTH, LS, KernelDriver, KernelLaws
from laws import RULES, Script, Seen

import govnode
from govnode.integration import PolicyViolationError, ToolCallRequest, ToolCallResult

pytest.importorskip("anthropic", reason="the Anthropic SDK is not installed")

from anthropic import Anthropic, AsyncAnthropic
from anthropic.lib.tools import beta_tool
from test_anthropic import WHAT, AnthropicRunner, Provider, asynchronous

from govnode.integrations import AnthropicContext, AnthropicKernel, RequestCancelledException


class AnthropicKernelDriver(KernelDriver):
    kernel = AnthropicKernel
    factory = "as_message_hook"
    asks_for_models = True

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        hook = kernel.as_message_hook("tester", session_id)
        with Provider(script) as provider, Anthropic(middleware=[hook], **provider.client) as client:
            tools = hook.govern_tools([beta_tool(tool)])
            message = client.beta.messages.tool_runner(tools=tools, **WHAT).until_done()
            return AnthropicRunner.seen(provider, message)

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        hook = kernel.as_message_hook("tester", session_id)
        with Provider(script) as provider:
            async with AsyncAnthropic(middleware=[hook], **provider.client) as client:
                tools = hook.govern_tools([asynchronous(tool)])
                message = await client.beta.messages.tool_runner(tools=tools, **WHAT).until_done()
            return AnthropicRunner.seen(provider, message)

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        provider = Provider(script)
        client = Anthropic(**provider.client)
        governed = kernel.wrap(client)

        def run() -> None:
            with provider, client:
                tools = governed.hook.govern_tools([beta_tool(tool)])
                governed.beta.messages.tool_runner(tools=tools, **WHAT).until_done()

        return client, governed, run


DRIVER = AnthropicKernelDriver()


def create(kernel: Any, script: Script, mode: str, text: str = "go", **options: Any) -> tuple[Any, Provider]:
    """Ask the model once under the hook."""
    hook = kernel.as_message_hook("tester")
    what = {**WHAT, "messages": [{"role": "user", "content": text}], **options}
    with Provider(script) as provider:
        if mode == "sync":
            with Anthropic(middleware=[hook], **provider.client) as client:
                return client.messages.create(**what), provider
        if mode == "stream":
            with (
                Anthropic(middleware=[hook], **provider.client) as client,
                client.messages.stream(**what) as stream,
            ):
                return stream.get_final_message(), provider

        async def ask() -> Any:
            async with AsyncAnthropic(middleware=[hook], **provider.client) as client:
                if mode == "async":
                    return await client.messages.create(**what)
                async with client.messages.stream(**what) as stream:
                    return await stream.get_final_message()

        return asyncio.run(ask()), provider


every_way = pytest.mark.parametrize("mode", ["sync", "async", "stream", "astream"])


class TestAnthropicKernel(KernelLaws):
    driver = DRIVER

    def test_11_1_1_defaults(self) -> None:
        kernel = AnthropicKernel()
        assert (kernel.max_retries, kernel.timeout_seconds) == (3, 300.0)

    @every_way
    def test_11_2_requests_and_tools_are_counted(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client)
        message, _ = create(kernel, LS, mode)
        assert message.content[0].name == "shell"
        ctx = kernel.contexts["tester"]
        assert isinstance(ctx, AnthropicContext)
        info = client.get_session(ctx.session_id)
        assert (info.executions, info.attempts, info.open_calls) == (2, 2, ())
        assert ctx.model == "scripted"
        assert ctx.message_ids == ["msg_0"]
        assert ctx.tool_use_calls == [{"id": "call-0-0", "name": "shell"}]
        assert ctx.prompt_tokens == 7
        assert ctx.completion_tokens >= 5

    @every_way
    def test_11_2_a_tool_that_is_denied_raises(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client)
        with pytest.raises(govnode.errors.PolicyViolationError, match="rm -rf"):
            create(kernel, BOTH[1:], mode)

    @every_way
    def test_11_2_arguments_that_are_changed_are_those_of_the_answer(self, client: govnode.Client, mode: str) -> None:
        """A stream has been handed on by then: the call is denied."""

        class Longer:
            def intercept(self, request: ToolCallRequest) -> ToolCallResult:
                return ToolCallResult(True, modified_arguments={"command": "ls -l"})

        kernel = DRIVER.make(client, interceptors=[Longer()])
        if mode in ("sync", "async"):
            assert create(kernel, LS, mode)[0].content[0].input == {"command": "ls -l"}
        else:
            with pytest.raises(PolicyViolationError, match="shell: a guardrail has changed the arguments"):
                create(kernel, LS, mode)
            assert [v.category for v in kernel.get_violations()] == ["not_governed"]
        info = client.get_session(kernel.contexts["tester"].session_id)
        assert info.calls_by_tool == {"shell": 1}
        eventually(lambda: client.get_session(info.session_id).open_calls == ())

    @every_way
    def test_11_2_a_tool_at_whose_output_rules_look_raises(self, client: govnode.Client, mode: str) -> None:
        """What the tool returns comes back as a text of the next request."""
        client.put_policy(RULES)
        kernel = AnthropicKernel("reviewed", client=client)
        with pytest.raises(PolicyViolationError, match=r"shell: rules look at what it returns.*govern_tools"):
            create(kernel, LS, mode)
        session_id = kernel.contexts["tester"].session_id
        eventually(lambda: client.get_session(session_id).open_calls == ())

    @every_way
    def test_11_2_what_goes_to_the_model_is_looked_at(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client)
        with pytest.raises(PolicyViolationError, match="input"):
            create(kernel, ["done"], mode, "please rm -rf it")
        _, provider = create(kernel, ["done"], mode, "write to jane@example.org")
        assert "jane@example.org" not in str(provider.requests)
        assert "write to" in str(provider.requests)

    @pytest.mark.parametrize("where", ["title", "context", "source"])
    def test_11_2_documents_are_looked_at_whole(self, client: govnode.Client, where: str) -> None:
        private = "write to jane@example.org"
        source = {"type": "text", "media_type": "text/plain", "data": private if where == "source" else "fine"}
        document: Any = {"type": "document", "source": source}
        if where != "source":
            document[where] = private
        messages = [{"role": "user", "content": [document]}]
        _, provider = create(DRIVER.make(client), ["done"], "sync", messages=messages)
        assert "jane@example.org" not in str(provider.requests)
        assert "write to" in str(provider.requests)

    def test_11_2_what_a_provider_has_sealed_goes_back_as_it_is(self, client: govnode.Client) -> None:
        sealed = {"type": "redacted_thinking", "data": "jane@example.org"}
        messages = [{"role": "assistant", "content": [sealed]}, {"role": "user", "content": "go on"}]
        _, provider = create(DRIVER.make(client), ["done"], "sync", messages=messages)
        assert provider.requests[0]["messages"][0]["content"] == [sealed]

    def test_11_2_arguments_that_are_no_object_raise(self, client: govnode.Client) -> None:
        with pytest.raises(PolicyViolationError, match="the arguments of shell are no JSON object"):
            create(DRIVER.make(client), [[("shell", ["ls"])]], "sync")

    @every_way
    def test_11_2_what_the_model_says_is_looked_at(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client)
        with pytest.raises(PolicyViolationError, match="output"):
            create(kernel, ["do rm -rf"], mode)
        if mode in ("sync", "async"):
            message, _ = create(kernel, ["I am jane@example.org"], mode)
            assert "jane@example.org" not in message.content[0].text
        else:
            with pytest.raises(PolicyViolationError, match="personal data"):
                create(kernel, ["I am jane@example.org"], mode)

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_11_4_a_cancelled_request_is_not_sent(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client)
        assert isinstance(kernel, AnthropicKernel)
        kernel.cancel_request("r-1")
        assert kernel.is_cancelled("r-1")
        assert kernel._cancelled_requests == {"r-1"}
        headers = {"Idempotency-Key": "r-1"}
        with pytest.raises(RequestCancelledException, match="r-1"):
            create(kernel, ["done"], mode, extra_headers=headers)
        assert issubclass(RequestCancelledException, PolicyViolationError)
        create(kernel, ["done"], mode, extra_headers={"Idempotency-Key": "r-2"})

    def test_11_3_a_wrapped_client_is_governed(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client, max_retries=1)
        with Provider(BOTH, [503]) as provider, Anthropic(max_retries=0, **provider.client) as api:
            with pytest.warns(DeprecationWarning, match="as_message_hook"):
                governed = kernel.wrap(api)
            assert governed.messages.create(**WHAT).content[0].name == "shell"
            with pytest.raises(govnode.errors.PolicyViolationError, match="rm -rf"):
                governed.messages.create(**WHAT)
            assert len(provider.requests) == 3
            assert governed.api_key == "none"
        info = client.get_session(kernel.contexts["anthropic"].session_id)
        assert (info.executions, info.open_calls) == (3, ())
