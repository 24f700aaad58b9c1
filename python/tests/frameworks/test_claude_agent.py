from __future__ import annotations

import contextlib
import inspect
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from laws import Driver, Laws, Script, Seen

pytest.importorskip("claude_agent_sdk", reason="the Claude Agent SDK is not installed")

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    ToolResultBlock,
    UserMessage,
    create_sdk_mcp_server,
    tool,
)

from govnode.adapters.claude_agent import GovnodeClient, governed_query

PREFIX = "mcp__tests__"
BUILT_IN = ("Agent", "Bash")


class Provider:
    """Streams the next turn of a script to each request that offers a tool of ours, and a word to all others."""

    def __init__(self, script: Script) -> None:
        turns, lock = iter(enumerate(script)), threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                ours = any(t.get("name", "").startswith(PREFIX) for t in sent.get("tools", []))
                with lock:
                    n, step = next(turns) if ours else (0, "ok")
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for event in events(n, step):
                    self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                self.close_connection = True

            def do_GET(self) -> None:
                self.send_error(404)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def events(n: int, step: Any) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": f"msg_{n}", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    if isinstance(step, str):
        blocks: Any = [({"type": "text", "text": ""}, {"type": "text_delta", "text": step})]
    else:
        blocks = [
            (
                {
                    "type": "tool_use",
                    "id": f"toolu_{n}_{i}",
                    "name": name if name in BUILT_IN else PREFIX + name,
                    "input": {},
                },
                {"type": "input_json_delta", "partial_json": json.dumps(arguments)},
            )
            for i, (name, arguments) in enumerate(step)
        ]
    for i, (block, delta) in enumerate(blocks):
        yield {"type": "content_block_start", "index": i, "content_block": block}
        yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    reason = "end_turn" if isinstance(step, str) else "tool_use"
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def plain(name: str) -> str:
    """The policies of the laws name tools as all frameworks do."""
    return name.removeprefix(PREFIX)


@contextlib.contextmanager
def scripted(script: Script, function: Callable[..., Any], **others: Any) -> Iterator[Any]:
    """Options with which the CLI knows of no account, no settings and no server but the scripted one."""

    @tool("shell", "Pretends to run a command.", {"command": str})
    async def shell(arguments: dict[str, Any]) -> dict[str, Any]:
        answer = function(**arguments)
        text = await answer if inspect.isawaitable(answer) else answer
        return {"content": [{"type": "text", "text": text}]}

    provider = Provider(script)
    callers = {n: os.environ.pop(n) for n in list(os.environ) if n.startswith(("ANTHROPIC", "CLAUDE"))}
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            given: dict[str, Any] = {
                "env": {
                    "HOME": home,
                    "CLAUDE_CONFIG_DIR": home,
                    "ANTHROPIC_BASE_URL": provider.url,
                    "ANTHROPIC_API_KEY": "none",
                    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                    "DISABLE_AUTOUPDATER": "1",
                },
                "cwd": home,
                "model": "scripted",
                "system_prompt": "none",
                "setting_sources": [],
                "tools": [],
                "mcp_servers": {"tests": create_sdk_mcp_server("tests", tools=[shell])},
                "allowed_tools": [PREFIX + "shell"],
            }
            yield ClaudeAgentOptions(**{**given, **others})
    finally:
        os.environ.update(callers)
        provider.close()


async def seen(messages: Any) -> Seen:
    saw: list[str] = []
    final = ""
    async for message in messages:
        if isinstance(message, UserMessage) and isinstance(message.content, list):
            saw += [text(b.content) for b in message.content if isinstance(b, ToolResultBlock)]
        if isinstance(message, ResultMessage):
            final = message.result or ""
    return Seen(saw, final)


def text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(b.get("text", "") for b in content or ())


class ClaudeAgent(Driver):
    """In the mode ``async`` it is the client, in the mode ``stream`` the query."""

    modes = ("async", "stream")
    threads = False  # a tool is a coroutine function

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        with scripted(script, tool) as given:
            if mode == "stream":
                return await seen(governed_query(prompt="go", options=given, session=session, names=plain, **options))
            async with GovnodeClient(given, session, names=plain, **options) as client:
                await client.query("go")
                return await seen(client.receive_response())


DRIVER = ClaudeAgent()


class TestClaudeAgent(Laws):
    driver = DRIVER
