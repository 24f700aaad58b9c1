from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import eventually
from faults import Proxy
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool, flush

import govnode
from govnode import testing
from govnode.adapters import Killed, PolicyViolationError

pytest.importorskip("anthropic", reason="the Anthropic SDK is not installed")

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from anthropic.lib.tools import (
    BetaAbstractMemoryTool,
    BetaAsyncRunnableToolset,
    BetaRunnableToolset,
    ToolError,
    beta_async_tool,
    beta_tool,
)
from anthropic.lib.tools._tool_dispatch import run_runnable_tool

from govnode.adapters.anthropic import GovnodeMiddleware, RunDenied, govern_tools


class Provider:
    """The provider on the loopback: it answers each request with the next turn of a script, or as ``faults`` say."""

    def __init__(self, script: Iterable[Any], faults: Iterable[Any] = ()) -> None:
        self.requests: list[dict[str, Any]] = []
        turns, left = iter(enumerate(script)), iter(faults)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                provider.requests.append(asked)
                fault = next(left, None)
                if fault == "cut":
                    self.close_connection = True
                    return
                if fault == "error":  # in a stream
                    start, *_ = streamed(reply(*next(turns)))
                    error = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
                    self.answer("".join(sse(e) for e in (start, error)), "text/event-stream")
                    return
                if fault is not None:
                    error = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
                    self.answer(json.dumps(error), status=fault)
                    return
                message = reply(*next(turns))
                if asked.get("stream"):
                    self.answer("".join(sse(e) for e in streamed(message)), "text/event-stream")
                else:
                    self.answer(json.dumps(message))

            def answer(self, text: str, kind: str = "application/json", status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.send_header("Retry-After-Ms", "1")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.client: dict[str, Any] = {
            "api_key": "none",
            "base_url": f"http://127.0.0.1:{self._server.server_address[1]}",
        }

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def model_saw(self) -> list[dict[str, Any]]:
        """The results of tools that were sent. The runner keeps the thread with the provider: each is sent once."""
        messages = [m for r in self.requests for m in r["messages"] if isinstance(m["content"], list)]
        return [b for m in messages for b in m["content"] if b["type"] == "tool_result"]


def served(script: Script) -> str:
    """Let the clients that are made from here on ask a provider that follows a script, and return its model."""
    provider = Provider(script)
    os.environ["ANTHROPIC_BASE_URL"], os.environ["ANTHROPIC_API_KEY"] = provider.client["base_url"], "none"
    return "scripted"


def reply(n: int, step: Any) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": f"msg_{n}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "stop_sequence": None,
    }
    message["usage"] = {"input_tokens": 7, "output_tokens": 5, "cache_read_input_tokens": 30}
    if isinstance(step, str):
        return {**message, "content": [{"type": "text", "text": step}], "stop_reason": "end_turn"}
    calls = [{"type": "tool_use", "id": f"call-{n}-{i}", **named(t), "input": a} for i, (t, a) in enumerate(step)]
    return {**message, "content": calls, "stop_reason": "tool_use"}


def named(tool: str) -> dict[str, str]:
    family, _, member = tool.rpartition(".")
    return {"name": member, "toolset_name": family} if family else {"name": tool}


def streamed(message: dict[str, Any]) -> Iterable[dict[str, Any]]:
    usage = message["usage"]
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for i, block in enumerate(message["content"]):
        if block["type"] == "text":
            yield {"type": "content_block_start", "index": i, "content_block": {"type": "text", "text": ""}}
            for word in re.findall(r"\S+\s*", block["text"]):
                yield {"type": "content_block_delta", "index": i, "delta": {"type": "text_delta", "text": word}}
        else:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield {"type": "content_block_start", "index": i, "content_block": {**block, "input": {}}}
            yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


def sse(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


WHAT: dict[str, Any] = {"max_tokens": 100, "model": "scripted", "messages": [{"role": "user", "content": "go"}]}


def asynchronous(tool: Any) -> Any:
    """The tools of an asynchronous runner are coroutine functions."""
    if inspect.iscoroutinefunction(tool):
        return beta_async_tool(tool)

    async def shell(command: str) -> Any:
        return tool(command)

    shell.__doc__ = tool.__doc__
    return beta_async_tool(shell)


class AnthropicRunner(Driver):
    modes = ("sync", "async", "stream")
    threads = False

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        with Provider(script) as provider, Anthropic(**provider.client) as client:
            tools = govern_tools([beta_tool(tool)], session, **options)
            message = client.beta.messages.tool_runner(tools=tools, **WHAT).until_done()
            return self.seen(provider, message)

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        with Provider(script) as provider:
            async with AsyncAnthropic(**provider.client) as client:
                tools = govern_tools([asynchronous(tool)], session, **options)
                if mode == "async":
                    message = await client.beta.messages.tool_runner(tools=tools, **WHAT).until_done()
                    return self.seen(provider, message)
                async for stream in client.beta.messages.tool_runner(tools=tools, stream=True, **WHAT):
                    message = await stream.get_final_message()
            return self.seen(provider, message)

    @staticmethod
    def seen(provider: Provider, message: Any) -> Seen:
        return Seen([str(r["content"]) for r in provider.model_saw], message.content[0].text)


DRIVER = AnthropicRunner()


class TestAnthropic(Laws):
    driver = DRIVER

    def test_denial_is_an_error(self, session: govnode.Session) -> None:
        with Provider(SCRIPT) as provider, Anthropic(**provider.client) as client:
            tools = govern_tools([beta_tool(Tool().function)], session)
            client.beta.messages.tool_runner(tools=tools, **WHAT).until_done()
        assert [r.get("is_error", False) for r in provider.model_saw] == [False, True]

    def test_synchronous_stream(self, session: govnode.Session) -> None:
        tool = Tool()
        with Provider(SCRIPT) as provider, Anthropic(**provider.client) as client:
            tools = govern_tools([beta_tool(tool.function)], session)
            for stream in client.beta.messages.tool_runner(tools=tools, stream=True, **WHAT):
                message = stream.get_final_message()
        assert DRIVER.seen(provider, message).final == "done"
        assert tool.executed == ["ls"]
        assert "Denied by govnode" in provider.model_saw[1]["content"]

    @pytest.mark.parametrize("sync", [True, False])
    def test_tools_that_run_before_their_message_is_complete(self, session: govnode.Session, sync: bool) -> None:
        tool = Tool("sync" if sync else "async")
        script = [[("shell", {"command": "ls"}), ("shell", {"command": "rm -rf /"})], "done"]
        with Provider(script) as provider:
            if sync:
                with Anthropic(**provider.client) as client:
                    tools = govern_tools([beta_tool(tool.function)], session)
                    runner = client.beta.messages.tool_runner(tools=tools, stream=True, run_tools_eagerly=True, **WHAT)
                    runner.until_done()
            else:

                async def scenario() -> None:
                    async with AsyncAnthropic(**provider.client) as client:
                        tools = govern_tools([beta_async_tool(tool.function)], session)
                        await client.beta.messages.tool_runner(
                            tools=tools, stream=True, run_tools_eagerly=True, **WHAT
                        ).until_done()

                asyncio.run(scenario())
        assert tool.executed == ["ls"]
        assert "Denied by govnode" in provider.model_saw[1]["content"]
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (2, 1, ())

    def test_a_generator_works_within_its_call(self, session: govnode.Session) -> None:
        open_calls: list[int] = []

        def shell(command: str) -> Any:
            """Yields what it gives."""
            open_calls.append(len(session.read().open_calls))
            yield {"type": "text", "text": "ran"}

        DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], shell, "sync")
        assert open_calls == [1]

    def test_arguments_that_do_not_fit(self, session: govnode.Session) -> None:
        seen = DRIVER.run(session, [[("shell", {"other": "ls"})], "done"], Tool().function, "sync")
        assert "Invalid arguments" in seen.model_saw[0]
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (1, 1, ())

    def test_a_denial_that_a_tool_raises_is_a_failure(self, session: govnode.Session) -> None:
        def shell(command: str) -> str:
            """Fails."""
            raise ToolError("it is broken")

        seen = DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], shell, "sync")
        assert seen.model_saw == ["it is broken"]
        assert session.read().failures == 1

    def test_interrupt_gives_the_slot_back(self, session: govnode.Session) -> None:
        def shell(command: str) -> str:
            """Is interrupted."""
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], shell, "sync")
        assert session.read().open_calls == ()

    def test_the_tool_itself_stays_as_it_is(self, client: govnode.Client, session: govnode.Session) -> None:
        tool = Tool()
        shell = beta_tool(tool.function)
        other = client.session(agent="tester", policy="plain")
        first, second = govern_tools([shell], session)[0], govern_tools([shell], other)[0]
        shell.call({"command": "a"})
        first.call({"command": "b"})
        second.call({"command": "c"})
        assert tool.executed == ["a", "b", "c"]
        assert (session.read().executions, other.read().executions) == (1, 1)
        assert first.to_dict() == shell.to_dict()

    def test_nobody_gets_behind_it(self, session: govnode.Session) -> None:
        tool = Tool()
        shell = beta_tool(tool.function)
        inner = shell.call

        def rewrites(input: Any) -> Any:
            return inner({"command": f"{input['command']} /"})

        governed = govern_tools([shell], session)[0]
        with pytest.raises(AttributeError):
            governed.call = rewrites
        shell.call = rewrites  # type: ignore[method-assign,unused-ignore]
        governed.call({"command": "ls"})  # the two have one state, and not one way to be called
        assert tool.executed == ["ls"]
        assert session.read().executions == 1
        with pytest.raises(ValueError, match="already"):
            govern_tools([governed], session)

    def test_what_runs_elsewhere_is_refused(self, session: govnode.Session) -> None:
        search = {"type": "web_search_20250305", "name": "web_search"}
        with pytest.raises(ValueError, match="web_search runs where no hook is"):
            govern_tools([search], session)
        assert govern_tools([search], session, ungoverned=["web_search"]) == [search]
        with pytest.raises(TypeError, match="function is no tool"):
            govern_tools([Tool().function], session)

    def test_builtin_tool(self, session: govnode.Session) -> None:
        class Memory(BetaAbstractMemoryTool):
            def __init__(self) -> None:
                super().__init__()
                self.viewed: list[str] = []

            def view(self, command: Any) -> str:
                self.viewed.append(command.path)
                return "empty"

            create = str_replace = insert = delete = rename = view

        memory = Memory()
        view = {"command": "view", "path": "/memories"}
        script = [[("memory", view)], [("memory", {**view, "path": "/memories/rm -rf"})], "done"]
        with Provider(script) as provider, Anthropic(**provider.client) as client:
            client.beta.messages.tool_runner(tools=govern_tools([memory], session), **WHAT).until_done()
        assert memory.viewed == ["/memories"]
        assert "Denied by govnode" in provider.model_saw[1]["content"]

    @pytest.mark.parametrize("sync", [True, False])
    def test_toolset(self, client: govnode.Client, sync: bool) -> None:
        client.put_policy("name: surfs\nallowed_tools: [browser.navigate]\n")
        session = client.session(agent="tester", policy="surfs")
        called: list[str] = []

        class Browser(BetaRunnableToolset):
            toolset_name = "browser"

            def to_dict(self) -> Any:
                return {"type": "browser_toolset_20260801"}

            def call(self, context: Any, name: str, input: Any) -> str:
                called.append(f"{context.tool_use.id} {name} {input}")
                return "there"

        class AsyncBrowser(BetaAsyncRunnableToolset):
            toolset_name = "browser"
            to_dict = Browser.to_dict

            async def call(self, context: Any, name: str, input: Any) -> str:
                return Browser.call(self, context, name, input)  # type: ignore[arg-type,unused-ignore]

        script = [[("browser.navigate", {"url": "a"})], [("browser.screenshot", {})], "done"]
        with Provider(script) as provider:
            if sync:
                with Anthropic(**provider.client) as api:
                    api.beta.messages.tool_runner(tools=govern_tools([Browser()], session), **WHAT).until_done()
            else:

                async def scenario() -> None:
                    async with AsyncAnthropic(**provider.client) as api:
                        tools = govern_tools([AsyncBrowser()], session)
                        await api.beta.messages.tool_runner(tools=tools, **WHAT).until_done()

                asyncio.run(scenario())
        assert called == ["call-0-0 navigate {'url': 'a'}"]
        assert "there" in str(provider.model_saw[0]["content"])
        assert "browser.screenshot" in str(provider.model_saw[1]["content"])
        assert provider.model_saw[1]["is_error"]

    def test_tools_that_are_added_later(self, session: govnode.Session) -> None:
        tool = Tool()
        with Provider(SCRIPT) as provider, Anthropic(**provider.client) as client:
            runner = client.beta.messages.tool_runner(tools=[], **WHAT)
            runner.add_tools(*govern_tools([beta_tool(tool.function)], session))
            runner.until_done()
        assert tool.executed == ["ls"]
        assert session.read().attempts == 2

    def test_kill_ends_the_run_around_too(self, client: govnode.Client, session: govnode.Session) -> None:
        def shell(command: str) -> str:
            """Runs an agent of its own, whose session is killed."""
            client.signal("KILL", session_id=session.id, reason="enough")
            DRIVER.run(session, [[("shell", {"command": "ls"})], "inner"], Tool().function, "sync")
            return ""

        with pytest.raises(RunDenied) as raised:
            DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], shell, "sync")
        assert isinstance(raised.value.__cause__, Killed)
        assert session.read().open_calls == ()

    def test_a_call_that_is_approved_later_is_the_same(self, client: govnode.Client) -> None:
        client.put_policy(
            "name: asks\nallowed_tools: [shell]\nrequire_human_approval: true\napproval: {timeout: 60s}\n"
        )
        session = client.session(agent="tester", policy="asks")
        tool = Tool()
        shell = govern_tools([beta_tool(tool.function)], session)[0]
        with pytest.raises(ToolError, match="approval"):
            shell.call({"command": "ls"})
        client.approve(client.list_approvals(state="pending", session_id=session.id)[0].id, approver="carla")
        assert shell.call({"command": "ls"}) == "ran ls"

    def test_a_cancelled_thread_of_the_other_runner_keeps_its_slot(self, session: govnode.Session) -> None:
        """The runner of sessions runs synchronous tools in threads, and leaves them there when it is cancelled."""
        started, go_on = threading.Event(), threading.Event()

        def shell(command: str) -> str:
            """Runs on."""
            started.set()
            assert go_on.wait(60)
            return ""

        async def scenario() -> None:
            tool = govern_tools([beta_tool(shell)], session)[0]
            run = asyncio.create_task(run_runnable_tool(tool, {"command": "ls"}))
            assert await asyncio.to_thread(started.wait, 30)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            await asyncio.to_thread(flush, session)
            assert len(session.read().open_calls) == 1
            go_on.set()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())


MODES = ["plain", "stream", "async", "async stream"]
USED = 7 + 5 + 30


def ask(provider: Provider, middleware: Any, mode: str = "plain", **how: Any) -> str:
    """Make one request to the model, and return the text of the answer."""
    how |= {**provider.client, "middleware": [middleware]}

    def plain() -> Any:
        with Anthropic(**how) as client:
            if mode == "plain":
                return client.messages.create(**WHAT)
            with client.messages.stream(**WHAT) as stream:
                return stream.get_final_message()

    async def on_loop() -> Any:
        async with AsyncAnthropic(**how) as client:
            if mode == "async":
                return await client.messages.create(**WHAT)
            async with client.messages.stream(**WHAT) as stream:
                return await stream.get_final_message()

    return str((asyncio.run(on_loop()) if "async" in mode else plain()).content[0].text)


class TestMiddleware:
    every_mode = pytest.mark.parametrize("mode", MODES)

    @every_mode
    def test_a_request_is_a_call(self, session: govnode.Session, mode: str) -> None:
        with Provider(["done"]) as provider:
            assert ask(provider, GovnodeMiddleware(session), mode) == "done"
        info = session.read()
        assert (info.attempts, info.calls, info.executions, info.failures) == (1, 1, 1, 0)
        assert (info.tokens_used, info.open_calls) == (USED, ())

    @every_mode
    @pytest.mark.parametrize("fault", [529, "cut"])
    def test_what_is_tried_again_is_one_call(self, session: govnode.Session, mode: str, fault: Any) -> None:
        with Provider(["done"], [fault, fault]) as provider:
            assert ask(provider, GovnodeMiddleware(session), mode) == "done"
            assert len(provider.requests) == 3
        info = session.read()
        assert (info.attempts, info.executions, info.failures) == (1, 1, 0)
        assert (info.tokens_used, info.open_calls) == (USED, ())

    @every_mode
    @pytest.mark.parametrize(("fault", "times"), [(529, 3), (400, 1)])
    def test_what_fails_for_good_is_a_failure(
        self, session: govnode.Session, mode: str, fault: int, times: int
    ) -> None:
        with Provider([], [fault] * 3) as provider, pytest.raises(anthropic.APIStatusError):
            ask(provider, GovnodeMiddleware(session), mode)
        assert len(provider.requests) == times
        info = session.read()
        assert (info.attempts, info.executions, info.failures) == (1, 1, 1)
        assert (info.tokens_used, info.open_calls) == (0, ())

    def test_a_try_that_does_not_come_is_not_waited_for(
        self, session: govnode.Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("govnode.adapters.anthropic._BACKOFF", 0.01)
        with Provider([], ["cut"]) as provider, pytest.raises(anthropic.APIConnectionError):
            ask(provider, GovnodeMiddleware(session), max_retries=0)
        eventually(lambda: session.read().open_calls == ())
        assert session.read().failures == 1

    @every_mode
    def test_a_denied_request_is_not_sent(self, client: govnode.Client, mode: str) -> None:
        client.put_policy("name: once\nmax_model_calls: 1\n")
        middleware = GovnodeMiddleware(client.session(agent="tester", policy="once"))
        with Provider(["done"]) as provider:
            ask(provider, middleware, mode)
            with pytest.raises(PolicyViolationError, match="Max model calls exceeded"):
                ask(provider, middleware, mode)
            assert len(provider.requests) == 1

    @every_mode
    def test_no_service(self, mode: str) -> None:
        with Provider(["done"]) as provider, govnode.Client("127.0.0.1:9", timeout=1.0) as client:
            with pytest.raises(PolicyViolationError):
                ask(provider, GovnodeMiddleware(client.session("s", agent="tester", policy="plain")), mode)
            assert provider.requests == []

    def test_more_tokens_than_a_call_may_use(self, client: govnode.Client) -> None:
        client.put_policy("name: short\nmax_tokens: 99\n")
        session = client.session(agent="tester", policy="short")
        with Provider(["done"]) as provider, pytest.raises(PolicyViolationError, match="oken"):
            ask(provider, GovnodeMiddleware(session))

    @pytest.mark.parametrize("how", ["closed", "dropped", "never read"])
    def test_a_stream_that_is_left_gives_the_slot_back(self, client: govnode.Client, how: str) -> None:
        client.put_policy("name: one\nmax_concurrent: 1\n")
        session = client.session(agent="tester", policy="one")
        middleware = GovnodeMiddleware(session, wait=0)
        with Provider(["a b c"] * 2) as provider, Anthropic(**provider.client, middleware=[middleware]) as api:
            stream = api.messages.create(**WHAT, stream=True)
            if how != "never read":
                for _ in stream:
                    break
            with pytest.raises(PolicyViolationError, match="concurrency"):
                api.messages.create(**WHAT)
            if how == "closed":
                stream.close()
                assert session.read().open_calls == ()
            del stream
            eventually(lambda: session.read().open_calls == ())
            api.messages.create(**WHAT)
        assert session.read().tokens_used == 100 + USED  # of what was left it is not known what was written

    def test_an_async_stream_that_is_left_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario(provider: Provider) -> None:
            async with AsyncAnthropic(**provider.client, middleware=[GovnodeMiddleware(session)]) as api:
                async for _ in await api.messages.create(**WHAT, stream=True):
                    break
                stream = await api.messages.create(**WHAT, stream=True)
                await stream.close()
                await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        with Provider(["a b c"] * 2) as provider:
            asyncio.run(scenario(provider))
        assert session.read().executions == 2

    @pytest.mark.parametrize("mode", ["stream", "async stream"])
    def test_an_error_in_a_stream_is_a_failure(self, session: govnode.Session, mode: str) -> None:
        with Provider(["done"], ["error"]) as provider, pytest.raises(anthropic.APIStatusError):
            ask(provider, GovnodeMiddleware(session), mode)
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (1, 1, ())

    def test_a_cancelled_request_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def waits(request: Any, call_next: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        async def scenario(provider: Provider) -> None:
            async with AsyncAnthropic(**provider.client, middleware=[GovnodeMiddleware(session), waits]) as api:
                request = asyncio.create_task(api.messages.create(**WHAT))
                await asyncio.wait_for(asked.wait(), 30)
                assert len(session.read().open_calls) == 1
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
                await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asked = asyncio.Event()
        with Provider([]) as provider:
            asyncio.run(scenario(provider))

    def test_other_ways_to_read(self, session: govnode.Session) -> None:
        middleware = GovnodeMiddleware(session)
        with Provider(["done"] * 4) as provider, Anthropic(**provider.client, middleware=[middleware]) as api:
            assert api.messages.with_raw_response.create(**WHAT).parse().content
            assert list(api.messages.with_raw_response.create(**WHAT, stream=True).parse())
            assert session.read().tokens_used == 2 * USED
            with api.messages.with_streaming_response.create(**WHAT) as response:
                assert response.parse().content
            with api.messages.with_streaming_response.create(**WHAT, stream=True) as response:
                assert b"message_stop" in b"".join(response.iter_bytes())
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (4, 0, ())
        assert info.tokens_used == 2 * USED + 2 * 100  # who reads bytes is not looked over the shoulder

    def test_other_requests_are_no_calls(self, session: govnode.Session) -> None:
        session.open()
        with (
            Provider(["done"]) as provider,
            Anthropic(**provider.client, middleware=[GovnodeMiddleware(session)]) as api,
        ):
            api.messages.count_tokens(model="scripted", messages=WHAT["messages"])
        assert session.read().attempts == 0

    def test_another_middleware_answers(self, session: govnode.Session) -> None:
        def cached(request: Any, call_next: Any) -> Any:
            return "cached"

        middleware = [GovnodeMiddleware(session), cached]
        with Provider([]) as provider, Anthropic(**provider.client, middleware=middleware) as api:
            assert api.messages.create(**WHAT) == "cached"
        info = session.read()
        assert (info.executions, info.open_calls) == (1, ())

    def test_fail_open_leaves_a_trace(self, address: testing.Address, session: govnode.Session) -> None:
        session.open()
        with Proxy(address) as proxy, govnode.Client(proxy.address, timeout=0.5, fail_open=True) as client:
            proxy.always("refuse")
            with Provider(["done"], [529]) as provider:
                assert ask(provider, GovnodeMiddleware(client.session(session.id))) == "done"
            proxy.always("")
            eventually(lambda: session.read().executions == 1)
        assert session.read().tokens_used == USED

    @pytest.mark.parametrize("mode", ["plain", "async stream"])
    def test_with_a_tool_runner(self, client: govnode.Client, session: govnode.Session, mode: str) -> None:
        """A session that is killed ends the run with the next request, before the model is asked once more."""
        middleware = GovnodeMiddleware(session)

        def shell(command: str) -> str:
            """Kills its session."""
            client.signal("KILL", session_id=session.id, reason="enough")
            return ""

        with Provider([[("shell", {"command": "ls"})], "done"]) as provider:
            if mode == "plain":
                with Anthropic(**provider.client, middleware=[middleware]) as api:
                    tools = govern_tools([beta_tool(shell)], session)
                    with pytest.raises(Killed):
                        api.beta.messages.tool_runner(tools=tools, **WHAT).until_done()
            else:

                async def scenario() -> None:
                    async with AsyncAnthropic(**provider.client, middleware=[middleware]) as api:
                        tools = govern_tools([asynchronous(shell)], session)
                        with pytest.raises(Killed):
                            await api.beta.messages.tool_runner(tools=tools, stream=True, **WHAT).until_done()

                asyncio.run(scenario())
            assert len(provider.requests) == 1
        assert session.read().open_calls == ()
