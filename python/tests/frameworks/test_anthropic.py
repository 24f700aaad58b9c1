from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import Killed, PolicyViolationError

pytest.importorskip("anthropic", reason="the Anthropic SDK is not installed")

from anthropic import Anthropic, AsyncAnthropic
from anthropic.lib.tools import ToolError, beta_async_tool, beta_tool

from govnode.adapters.anthropic import RunDenied, govern_tools


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
                if fault is not None:
                    error = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
                    self.answer(json.dumps(error), status=fault)
                    return
                message = reply(*next(turns))
                if asked.get("stream"):
                    events = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in streamed(message)]
                    self.answer("".join(events), "text/event-stream")
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


def reply(n: int, step: Any) -> dict[str, Any]:
    message = {"id": f"msg_{n}", "type": "message", "role": "assistant", "model": "scripted", "stop_sequence": None}
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
            for word in block["text"].split():
                yield {"type": "content_block_delta", "index": i, "delta": {"type": "text_delta", "text": word}}
        else:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield {"type": "content_block_start", "index": i, "content_block": {**block, "input": {}}}
            yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


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
