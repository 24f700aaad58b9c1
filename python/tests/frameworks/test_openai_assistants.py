from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import Killed

pytest.importorskip("openai", reason="the OpenAI SDK is not installed")

from openai import APIConnectionError, AsyncOpenAI, BadRequestError, OpenAI, RateLimitError

from govnode.adapters.openai_assistants import aretry_with_backoff, retry_with_backoff, unwrap, wrap

RUN = {
    "object": "thread.run",
    "assistant_id": "asst_1",
    "created_at": 0,
    "model": "scripted",
    "instructions": "",
    "tools": [],
    "parallel_tool_calls": True,
}


class Provider:
    """The Assistants API on the loopback: its runs go through one script. ``failures`` are statuses to answer first."""

    def __init__(self, script: Script, failures: list[int] | None = None) -> None:
        self.script = script
        self.failures = failures or []
        self.outputs: list[str] = []
        self.final = ""
        self.posts: list[str] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self._turns = iter(enumerate(script))
        self._ids = itertools.count(1)
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(stub.got(self.path))

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                asked = json.loads(self.rfile.read(size) or "{}")
                if stub.failures:
                    self.answer({"error": {"message": "not now"}}, stub.failures.pop(0))
                    return
                stub.posts.append(self.path)
                run = stub.posted(self.path, asked)
                if not asked.get("stream"):
                    self.answer(run)
                    return
                step = stub.step(run["id"])
                events = [("thread.run.created", run), (f"thread.run.{step['status']}", step)]
                lines = "".join(f"event: {n}\ndata: {json.dumps(d)}\n\n" for n, d in events)
                self.answer(f"{lines}event: done\ndata: [DONE]\n\n", kind="text/event-stream")

            def answer(self, body: Any, status: int = 200, kind: str = "application/json") -> None:
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """What a client that is made without arguments finds it by."""
        return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": self.url}

    def posted(self, path: str, asked: Any) -> Any:
        if path.endswith("/assistants"):
            return {"id": "asst_1", "object": "assistant", "created_at": 0, "model": "scripted", "tools": []}
        if path.endswith("/threads"):
            return {"id": f"thread_{next(self._ids)}", "object": "thread", "created_at": 0}
        if path.endswith("/messages"):
            return {"id": "msg_1", "object": "thread.message", "created_at": 0, **asked, "content": []}
        if path.endswith("/runs"):
            id = f"run_{next(self._ids)}"
            thread = path.split("/")[-2]
            self.runs[id] = {**RUN, "id": id, "thread_id": thread, "status": "queued"}
            return self.runs[id]
        id = path.split("/")[-2]
        if path.endswith("/cancel"):
            self.runs[id] = {**self.runs[id], "status": "cancelled", "required_action": None}
        else:
            assert path.endswith("/submit_tool_outputs")
            assert self.runs[id]["status"] == "requires_action"
            self.outputs += [o["output"] for o in asked["tool_outputs"]]
            self.runs[id] = {**self.runs[id], "status": "queued", "required_action": None}
        return self.runs[id]

    def got(self, path: str) -> Any:
        if "/messages" in path:
            text = {"type": "text", "text": {"value": self.final, "annotations": []}}
            last = {"id": "msg_2", "object": "thread.message", "created_at": 1, "role": "assistant", "content": [text]}
            return {"object": "list", "data": [last], "has_more": False}
        match = re.search(r"/runs/(\w+)$", path)
        assert match
        return self.step(match[1])

    def step(self, id: str) -> Any:
        run = self.runs[id]
        if run["status"] == "queued":
            n, turn = next(self._turns)
            if isinstance(turn, str):
                self.final = turn
                usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
                run = {**run, "status": "completed", "usage": usage}
            else:
                calls = [
                    {"id": f"call-{n}-{i}", "type": "function", "function": {"name": t, "arguments": json.dumps(a)}}
                    for i, (t, a) in enumerate(turn)
                ]
                action = {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": calls}}
                run = {**run, "status": "requires_action", "required_action": action}
            self.runs[id] = run
        return run

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Assistants(Driver):
    modes = ("sync", "async", "stream")

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        with Provider(script) as provider, OpenAI(api_key="none", base_url=provider.url) as client:
            governed = self.wrapped(client.beta.assistants.create(model="scripted"), client, session, tool, options)
            thread = governed.create_thread()
            governed.add_message(thread.id, "go")
            governed.run(thread.id)
            return Seen(provider.outputs, provider.final)

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        with Provider(script) as provider:
            async with AsyncOpenAI(api_key="none", base_url=provider.url) as client:
                assistant = await client.beta.assistants.create(model="scripted")
                governed = self.wrapped(assistant, client, session, tool, options)
                thread = await governed.create_thread()
                await governed.add_message(thread.id, "go")
                if mode == "async":
                    await governed.run(thread.id)
                else:
                    async for _ in governed.run_stream(thread.id):
                        pass
            return Seen(provider.outputs, provider.final)

    @staticmethod
    def wrapped(assistant: Any, client: Any, session: Any, tool: Any, options: Any) -> Any:
        return wrap(assistant, client, session, {"shell": tool}, **{"poll_interval": 0.001, **options})


DRIVER = Assistants()


class TestOpenAIAssistants(Laws):
    driver = DRIVER

    def made(self, provider: Provider, session: Any, tool: Any = None, **options: Any) -> Any:
        client = OpenAI(api_key="none", base_url=provider.url)
        assistant = client.beta.assistants.create(model="scripted")
        return DRIVER.wrapped(assistant, client, session, tool or Tool().function, options)

    def test_the_proxy_and_what_it_knows(self, session: govnode.Session) -> None:
        with Provider(SCRIPT) as provider:
            governed = self.made(provider, session)
            assert governed.model == "scripted"
            assert unwrap(governed) is governed.assistant
            thread = governed.create_thread()
            run = governed.run(thread.id)
        context = governed.context
        assert run.status == "completed"
        assert (context.assistant_id, context.thread_ids, context.run_ids) == ("asst_1", [thread.id], [run.id])
        assert [c["call_id"] for c in context.function_calls] == ["call-0-0", "call-1-0"]
        assert (context.prompt_tokens, context.completion_tokens) == (7, 3)

    def test_a_client_is_required(self, session: govnode.Session) -> None:
        with pytest.raises(TypeError):
            wrap(object())  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="neither"):
            wrap(object(), object(), session)

    def test_functions_that_are_awaited_need_an_async_client(self, session: govnode.Session) -> None:
        with Provider([]) as provider:
            governed = self.made(provider, session)
            with pytest.raises(TypeError, match="AsyncOpenAI"):
                governed.register_tool("shell", Tool("async").function)

    def test_stream(self, session: govnode.Session) -> None:
        tool = Tool()
        with Provider(SCRIPT) as provider:
            governed = self.made(provider, session, tool.function)
            events = [e.event for e in governed.run_stream(governed.create_thread().id)]
        waits = ["thread.run.created", "thread.run.requires_action"]
        assert [e for e in events if e != "done"] == [*waits, *waits, "thread.run.created", "thread.run.completed"]
        assert tool.executed == ["ls"]
        assert "rm -rf" in provider.outputs[1]
        assert governed.context.prompt_tokens == 7

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session, mode: str) -> None:
        with Provider(SCRIPT) as provider:
            if mode == "sync":
                governed = self.made(provider, session)
                events = governed.run_stream(governed.create_thread().id)
                next(events)
                events.close()
            else:

                async def scenario() -> None:
                    async with AsyncOpenAI(api_key="none", base_url=provider.url) as client:
                        assistant = await client.beta.assistants.create(model="scripted")
                        governed = DRIVER.wrapped(assistant, client, session, Tool().function, {})
                        events = governed.run_stream((await governed.create_thread()).id)
                        async for _ in events:
                            break
                        await events.aclose()

                asyncio.run(scenario())
            assert [r["status"] for r in provider.runs.values()] == ["cancelled"]

    @pytest.mark.parametrize("mode", ["sync", "stream"])
    def test_kill_cancels_the_run_at_the_provider(
        self, client: govnode.Client, session: govnode.Session, mode: str
    ) -> None:
        def shell(command: str) -> str:
            client.signal("KILL", session_id=session.id, reason="enough")
            return "ok"

        with Provider([[("shell", {"command": "ls"})]] * 3) as provider:
            governed = self.made(provider, session, shell)
            thread = governed.create_thread()
            with pytest.raises(Killed):
                governed.run(thread.id) if mode == "sync" else list(governed.run_stream(thread.id))
            [run] = provider.runs.values()
            assert run["status"] == "cancelled"
            assert governed.is_cancelled(run["id"])
            with pytest.raises(Killed):
                governed.run(thread.id)
            assert len(provider.runs) == 1

    @pytest.mark.parametrize("mode", ["sync", "async", "stream"])
    def test_an_error_of_a_function_cancels_the_run(self, session: govnode.Session, mode: str) -> None:
        def shell(command: str) -> str:
            raise ValueError("no such file")

        with Provider([[("shell", {"command": "ls"})], "done"]) as provider:
            if mode == "async":

                async def scenario() -> None:
                    async with AsyncOpenAI(api_key="none", base_url=provider.url) as client:
                        assistant = await client.beta.assistants.create(model="scripted")
                        governed = DRIVER.wrapped(assistant, client, session, shell, {})
                        await governed.run((await governed.create_thread()).id)

                with pytest.raises(ValueError, match="no such file"):
                    asyncio.run(scenario())
            else:
                governed = self.made(provider, session, shell)
                thread = governed.create_thread()
                with pytest.raises(ValueError, match="no such file"):
                    governed.run(thread.id) if mode == "sync" else list(governed.run_stream(thread.id))
            assert [r["status"] for r in provider.runs.values()] == ["cancelled"]

    def test_a_run_that_is_cancelled_meanwhile_calls_nothing_more(self, session: govnode.Session) -> None:
        executed: list[str] = []

        def shell(command: str) -> str:
            executed.append(command)
            [id] = governed.context.run_ids
            governed.cancel_run(thread.id, id)
            return "ok"

        with Provider([[("shell", {"command": "ls"}), ("shell", {"command": "pwd"})], "done"]) as provider:
            governed = self.made(provider, session, shell)
            thread = governed.create_thread()
            assert governed.run(thread.id).status == "cancelled"
            assert provider.outputs == []
        assert executed == ["ls"]

    def test_what_cannot_be_cancelled_is_logged(self, session: govnode.Session) -> None:
        with Provider([]) as provider:
            governed = self.made(provider, session)
            provider.failures = [500]
            governed.cancel_run("thread_1", "run_1")
            assert governed.is_cancelled("run_1")

    def test_a_run_that_takes_too_long_is_cancelled(self, session: govnode.Session) -> None:
        with Provider(SCRIPT) as provider:
            governed = self.made(provider, session, timeout_seconds=0.0)
            with pytest.raises(TimeoutError, match="queued"):
                governed.run(governed.create_thread().id)
            assert [r["status"] for r in provider.runs.values()] == ["cancelled"]

    def test_session_of_each_thread(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        with Provider([[("shell", {"command": "ls"})], "done"]) as provider:
            governed = self.made(provider, of)
            thread = governed.create_thread()
            governed.run(thread.id)
        assert client.get_session(f"{session.id}-{thread.id}").executions == 1

    # What is done again.

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_transient_errors_are_tried_again(self, mode: str) -> None:
        with Provider([], failures=[429, 429]) as provider:
            assert self.tried(provider, mode, max_retries=3).id == "thread_1"
        with Provider([], failures=[429, 429]) as provider, pytest.raises(RateLimitError):
            self.tried(provider, mode, max_retries=1)
        with Provider([], failures=[400]) as provider, pytest.raises(BadRequestError):
            self.tried(provider, mode, max_retries=3)
        assert provider.posts == []
        with pytest.raises(APIConnectionError):
            self.tried(provider, mode, max_retries=2)

    @staticmethod
    def tried(provider: Provider, mode: str, **options: Any) -> Any:
        options["base_delay"] = 0.001
        if mode == "sync":
            client = OpenAI(api_key="none", base_url=provider.url, max_retries=0)
            return retry_with_backoff(client.beta.threads.create, **options)

        async def scenario() -> Any:
            async with AsyncOpenAI(api_key="none", base_url=provider.url, max_retries=0) as client:
                return await aretry_with_backoff(client.beta.threads.create, **options)

        return asyncio.run(scenario())

    def test_the_proxy_tries_again(self, session: govnode.Session) -> None:
        with Provider([]) as provider:
            governed = self.made(provider, session, max_retries=0)
            provider.failures = [429]
            with pytest.raises(RateLimitError):
                governed.create_thread()
