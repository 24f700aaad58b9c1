from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import json
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import eventually, put
from laws import RULES, SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import PolicyViolationError

pytest.importorskip("claude_agent_sdk", reason="the Claude Agent SDK is not installed")

from claude_agent_sdk import (
    AgentDefinition,
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    ToolResultBlock,
    UserMessage,
    create_sdk_mcp_server,
    tool,
)
from mcp.types import ToolAnnotations

from govnode.adapters.claude_agent import GovnodeClient, GovnodeHooks, governed_query

# Milliseconds in which the CLI has to start, which it may need beside other load.
os.environ["CLAUDE_CODE_STREAM_CLOSE_TIMEOUT"] = "300000"

PREFIX = "mcp__tools__"
ONE: Script = [[("shell", {"command": "ls"})], "done"]
SPAWN = [("Agent", {"description": "d", "prompt": "go", "subagent_type": "sub", "run_in_background": False})]
SUBAGENT: Any = {
    "agents": {"sub": AgentDefinition(description="d", prompt="p", tools=[PREFIX + "shell"])},
    "tools": ["Agent"],
    "allowed_tools": ["Agent", PREFIX + "shell"],
}


class Provider:
    """Streams the next turn of a script to each request that offers a tool of ours, and a word to all others."""

    def __init__(self) -> None:
        scripts: list[Iterator[Any]] = []
        heard: list[str] = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                heard.append(body.decode())
                sent = json.loads(body or b"{}")
                ours = any(t.get("name", "").startswith(PREFIX) for t in sent.get("tools", []))
                with lock:
                    n, step = next(scripts[int(self.path.split("/")[1])]) if ours else (0, "ok")
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

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._scripts = scripts
        self.heard = heard  # what models were sent
        self._url = f"http://127.0.0.1:{server.server_address[1]}"

    def url(self, script: Script) -> str:
        self._scripts.append(iter(enumerate(script)))
        return f"{self._url}/{len(self._scripts) - 1}"


@functools.cache
def provider() -> Provider:
    return Provider()


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
                    "name": name if name == "Agent" else PREFIX + name,
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


def scripted_model(script: Script) -> dict[str, Any]:
    """Options with which the CLI knows of no account, no settings and no server but the scripted one."""
    home = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    callers = {n: "" for n in os.environ if n.startswith(("ANTHROPIC", "CLAUDE"))}
    env = {
        "HOME": home,
        "CLAUDE_CONFIG_DIR": home,
        "ANTHROPIC_BASE_URL": provider().url(script),
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    model = {"model": "scripted", "system_prompt": "none", "tools": [], "setting_sources": []}
    return {**model, "env": {**callers, **env}, "cwd": home}


def scripted(script: Script, function: Callable[..., Any], **others: Any) -> ClaudeAgentOptions:
    # The CLI runs side by side what only reads.
    @tool("shell", "Pretends to run a command.", {"command": str}, annotations=ToolAnnotations(readOnlyHint=True))
    async def shell(arguments: dict[str, Any]) -> dict[str, Any]:
        answer = function(**arguments)
        text = await answer if inspect.isawaitable(answer) else answer
        return {"content": [{"type": "text", "text": text}]}

    servers = {"tools": create_sdk_mcp_server("tools", tools=[shell])}
    ours = {"mcp_servers": servers, "allowed_tools": [PREFIX + "shell"]}
    return ClaudeAgentOptions(**{**scripted_model(script), **ours, **others})


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
        given = scripted(script, tool)
        if "options" in options:
            options["call_options"] = options.pop("options")
        if mode == "stream":
            return await seen(governed_query(prompt="go", options=given, session=session, names=plain, **options))
        async with GovnodeClient(given, session, names=plain, **options) as client:
            await client.query("go")
            return await seen(client.receive_response())


DRIVER = ClaudeAgent()


class TestClaudeAgent(Laws):
    driver = DRIVER

    @Laws.every_mode
    def test_what_rules_leave_of_an_error(self, client: govnode.Client, mode: str) -> None:
        """A hook cannot show another error, so the run ends before the model has read it."""
        client.put_policy(RULES)
        session = client.session(agent="tester", policy="reviewed")

        async def shell(command: str) -> str:
            raise ValueError(f"no such key: sk-{command}")

        before = len(provider().heard)
        with pytest.raises(PolicyViolationError, match=r"\[REDACTED\]"):
            self.driver.run(session, [[("shell", {"command": "secretive"})], "done"], shell, mode)
        self.driver.run(session, [[("shell", {"command": "1"})], "done"], shell, mode)
        said = "".join(provider().heard[before:])
        assert "sk-1" in said  # what no rule objects to
        assert "sk-secretive" not in said
        assert (session.read().failures, session.read().open_calls) == (2, ())

    def test_denial_is_an_error(self, session: govnode.Session) -> None:
        async def scenario() -> list[Any]:
            options = scripted(SCRIPT, Tool().function)
            return [m async for m in governed_query(prompt="go", options=options, session=session)]

        users = [m for m in asyncio.run(scenario()) if isinstance(m, UserMessage)]
        assert [bool(b.is_error) for m in users for b in m.content] == [False, True]

    def test_ids_and_names(self, session: govnode.Session) -> None:
        """A call has the id of the model behind that of the conversation, and the CLI's name of the tool."""
        calls: list[Any] = []
        of: list[str] = []

        def shell(command: str) -> str:
            calls.extend(session.read().open_calls)
            return ""

        def session_of(conversation: str) -> govnode.Session:
            of.append(conversation)
            return session

        async def scenario() -> None:
            options = scripted(ONE, shell)
            await seen(governed_query(prompt="go", options=options, session=session_of))

        asyncio.run(scenario())
        assert [(c.tool, c.call_id) for c in calls] == [(PREFIX + "shell", f"{of[0]}/toolu_0_0")]

    def test_session_of_each_conversation(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()
        ids = [str(uuid.uuid4()) for _ in range(2)]

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        async def one(id: str) -> None:
            options = scripted(ONE, Tool().function, session_id=id)
            await seen(governed_query(prompt="go", options=options, session=of))

        for id in ids:
            asyncio.run(one(id))
        assert [client.get_session(f"{session.id}-{id}").executions for id in ids] == [1, 1]

    def test_permission_is_not_granted(self, session: govnode.Session) -> None:
        """The gate lets through what the options would not: they still have their say, and the slot comes back."""
        tool = Tool()
        result = self.go(session, ONE, tool.function, {"allowed_tools": []})
        assert tool.executed == []
        assert "permission" in result.model_saw[0]
        assert session.read().attempts == 1

    def test_call_that_another_hook_denies(self, session: govnode.Session) -> None:
        tool = Tool()
        hooks = {"PreToolUse": [HookMatcher(hooks=[answering(permissionDecision="deny")])]}
        self.go(session, ONE, tool.function, {"hooks": hooks})
        assert tool.executed == []

    def test_call_that_another_hook_defers(self, session: govnode.Session) -> None:
        tool = Tool()
        hooks = {"PreToolUse": [HookMatcher(hooks=[answering(permissionDecision="defer")])]}
        self.go(session, ONE, tool.function, {"hooks": hooks})
        assert tool.executed == []

    @pytest.mark.parametrize("in_place", [True, False])
    def test_what_another_hook_changes_is_denied(self, session: govnode.Session, in_place: bool) -> None:
        """The CLI would run it with what that one says, and it asks all hooks at once."""

        async def rewriter(data: Any, tool_use_id: Any, context: Any) -> Any:
            changed = data["tool_input"] if in_place else {}
            changed["command"] = "rm -rf /"
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": changed}}

        tool = Tool()
        hooks = {"PreToolUse": [HookMatcher(matcher=PREFIX + "shell", hooks=[rewriter])]}
        result = self.go(session, ONE, tool.function, {"hooks": hooks})
        assert tool.executed == []
        assert "before=" in result.model_saw[0]

    def test_what_a_hook_before_changes_is_judged(self, session: govnode.Session) -> None:
        async def longer(data: Any, tool_use_id: Any, context: Any) -> Any:
            data["tool_input"]["command"] += " -l"
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": data["tool_input"]}}

        async def mute(data: Any, tool_use_id: Any, context: Any) -> Any:
            data["tool_input"]["command"] = "what is changed in place does not count"

        async def forcing(data: Any, tool_use_id: Any, context: Any) -> Any:
            changed = {"command": data["tool_input"]["command"].replace("rm -l", "rm -rf")}
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": changed}}

        tool = Tool()
        script: Script = [[("shell", {"command": "ls"})], [("shell", {"command": "rm"})], "done"]
        result = self.go(session, script, tool.function, before=[longer, mute, forcing])
        assert tool.executed == ["ls -l"]
        assert "rm -rf" in result.model_saw[1]

    @pytest.mark.parametrize("decision", ["ask", "deny", "Deny", "raise"])
    def test_what_a_hook_before_decides(self, session: govnode.Session, decision: str) -> None:
        async def decides(data: Any, tool_use_id: Any, context: Any) -> Any:
            if decision == "raise":
                raise ValueError("it is broken")
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": decision}}

        tool = Tool()
        self.go(session, ONE, tool.function, before=[decides])
        assert tool.executed == []
        assert session.read().attempts == (1 if decision == "ask" else 0)

    @pytest.mark.parametrize(
        ("way", "allowed"), [("hook", True), ("hook", False), ("can_use_tool", True), ("in place", False)]
    )
    def test_what_permissions_change_is_judged(self, session: govnode.Session, way: str, allowed: bool) -> None:
        changed = {"command": "ls -l" if allowed else "rm -rf /"}

        async def can_use_tool(tool: str, arguments: dict[str, Any], context: Any) -> Any:
            if way == "can_use_tool":
                return PermissionResultAllow(updated_input=changed)
            arguments.update(changed)
            return PermissionResultAllow()

        others: dict[str, Any] = {"can_use_tool": can_use_tool}
        if way == "hook":
            hook = answering("PermissionRequest", decision={"behavior": "allow", "updatedInput": changed})
            others = {"hooks": {"PermissionRequest": [HookMatcher(hooks=[hook])]}}
        tool = Tool()
        result = self.go(session, ONE, tool.function, {"allowed_tools": [], **others})
        assert tool.executed == (["ls -l"] if allowed else [])
        assert ("ran ls -l" if allowed else "rm -rf") in result.model_saw[0]
        assert session.read().attempts == 2

    def test_permissions_that_a_person_refuses(self, session: govnode.Session) -> None:
        async def can_use_tool(tool: str, arguments: dict[str, Any], context: Any) -> Any:
            return PermissionResultDeny(message="no", interrupt=True)

        tool = Tool()
        self.go(session, ONE, tool.function, {"allowed_tools": [], "can_use_tool": can_use_tool})
        assert tool.executed == []

    def test_what_a_hook_in_a_file_changes_is_logged(
        self, session: govnode.Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It cannot be seen before the tool has run."""
        said = {"hookEventName": "PreToolUse", "updatedInput": {"command": "pwd"}}
        command = "echo '" + json.dumps({"hookSpecificOutput": said}) + "'"
        settings = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": command}]}]}}
        tool = Tool()
        self.go(session, ONE, tool.function, {"settings": json.dumps(settings)})
        assert tool.executed == ["pwd"]
        assert "other arguments than were judged" in caplog.text

    def test_interrupt_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            started = asyncio.Event()
            options = scripted([*ONE, "more"], endless(started))
            async with GovnodeClient(options, session) as client:
                await client.query("go")
                reader = asyncio.create_task(seen(client.receive_response()))
                await asyncio.wait_for(started.wait(), 30)
                assert len(session.read().open_calls) == 1
                await client.interrupt()
                await reader
                await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())
                await client.query("go on")
                assert (await seen(client.receive_response())).final == "done"

        asyncio.run(scenario())

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            options = scripted(ONE, endless(asyncio.Event()))
            messages = governed_query(prompt="go", options=options, session=session)
            async for message in messages:
                if isinstance(message, AssistantMessage):
                    break
            await asyncio.to_thread(eventually, lambda: len(session.read().open_calls) == 1)
            await messages.aclose()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        session.open()
        asyncio.run(scenario())

    def test_call_that_is_admitted_after_the_end_gives_the_slot_back(self, client: govnode.Client) -> None:
        put(client, "claude-one", concurrent=1)
        session = client.session(agent="tester", policy="claude-one")
        hooks = GovnodeHooks(session, wait=60)
        begin = hooks.govern().hooks["PreToolUse"][0].hooks[0]
        data = {"session_id": "s", "tool_use_id": "t", "tool_name": "shell", "tool_input": {"command": "ls"}}

        async def scenario() -> None:
            with session.call("other"):
                begun = asyncio.create_task(begin(data, "t", None))
                await asyncio.to_thread(eventually, lambda: any(c.waiting for c in session.read().open_calls))
                hooks.release()
            assert (await begun)["hookSpecificOutput"]["permissionDecision"] == "deny"
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_cli_that_is_killed_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            started = asyncio.Event()
            options = scripted(ONE, endless(started))
            async with GovnodeClient(options, session) as client:
                await client.query("go")
                await asyncio.wait_for(started.wait(), 30)
                client._transport._process.kill()
                with pytest.raises(Exception, match="exit code"):
                    await seen(client.receive_response())
                await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_hooks_of_a_plain_client(self, session: govnode.Session) -> None:
        async def scenario() -> Seen:
            with GovnodeHooks(session) as hooks:
                options = hooks.govern(scripted(SCRIPT, tool.function))
                async with ClaudeSDKClient(options) as client:
                    await client.query("go")
                    return await seen(hooks.watch(client.receive_response()))

        tool = Tool()
        assert "rm -rf" in asyncio.run(scenario()).model_saw[1]
        assert tool.executed == ["ls"]

    def test_parallel_calls_stay_within_the_limit(self, client: govnode.Client) -> None:
        put(client, "claude-two", concurrent=2)
        session = client.session(agent="tester", policy="claude-two")
        running = most = 0

        async def shell(command: str) -> str:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.to_thread(eventually, lambda: held.is_set() or (most == 2 and waiting()))
            held.set()
            running -= 1
            return "ok"

        def waiting() -> bool:  # a third call, while two run
            return any(c.waiting for c in session.read().open_calls)

        held = threading.Event()
        script: Script = [[("shell", {"command": str(i)}) for i in range(6)], "done"]
        result = self.go(session, script, shell, wait=60)
        assert result.model_saw == ["ok"] * 6
        assert most == 2

    def test_subagent(self, session: govnode.Session) -> None:
        """Its calls are judged, and it is a call itself."""
        tool = Tool()
        script: Script = [SPAWN, *SCRIPT[:2], "the report", "done"]
        result = self.go(session, script, tool.function, SUBAGENT)
        assert tool.executed == ["ls"]
        assert result.final == "done"
        info = session.read()
        assert (info.executions, info.attempts) == (2, 3)

    def test_subagent_of_a_killed_session(self, client: govnode.Client, session: govnode.Session) -> None:
        """What a hook of a subagent ends is the subagent: the run ends with the hook after it."""
        tool = Tool()

        def shell(command: str) -> str:
            client.signal("KILL", session_id=session.id, reason="enough")
            return str(tool.function(command))

        result = self.go(session, [SPAWN, ONE[0], ONE[0], "never", "never"], shell, SUBAGENT)
        assert tool.executed == ["ls"]
        assert result.final == ""

    def test_subagent_that_is_interrupted_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            started = asyncio.Event()
            options = scripted([SPAWN, *ONE], endless(started), **SUBAGENT)
            async with GovnodeClient(options, session) as client:
                await client.query("go")
                reader = asyncio.create_task(seen(client.receive_response()))
                await asyncio.wait_for(started.wait(), 30)
                assert len(session.read().open_calls) == 2
                await client.interrupt()
                await reader
                await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_killed_session_asks_no_model(self, client: govnode.Client, session: govnode.Session) -> None:
        async def scenario() -> None:
            def shell(command: str) -> str:
                client.signal("KILL", session_id=session.id, reason="enough")
                return ""

            options = scripted([ONE[0], ONE[0], "never", "never"], shell)
            async with GovnodeClient(options, session) as other:
                for asked in (True, False):
                    await other.query("go")
                    result = [m async for m in other.receive_response()][-1]
                    assert isinstance(result, ResultMessage)
                    assert result.result != "never"
                    assert (result.num_turns > 0) == asked
                assert "enough" in (result.result or "")

        asyncio.run(scenario())

    def test_run_that_raised_is_over(self, session: govnode.Session) -> None:
        """The client can be asked again: what it reads then is of the next run."""

        async def scenario() -> None:
            options = scripted([*SCRIPT[1:2], "done"], Tool().function)
            async with GovnodeClient(options, session, on_denied="raise") as client:
                await client.query("go")
                with pytest.raises(PolicyViolationError, match="rm -rf"):
                    await seen(client.receive_response())
                await client.query("go on")
                assert (await seen(client.receive_response())).final == "done"

        asyncio.run(scenario())

    def test_options_are_governed_once(self, session: govnode.Session) -> None:
        options = GovnodeHooks(session).govern(ClaudeAgentOptions())
        with pytest.raises(ValueError, match="already"):
            GovnodeClient(options, session)

    def test_tool_that_gives_permissions_is_refused(self, session: govnode.Session) -> None:
        with pytest.raises(ValueError, match="permission_prompt_tool_name"):
            GovnodeHooks(session).govern(ClaudeAgentOptions(permission_prompt_tool_name="mcp__tools__ask"))

    def test_hook_may_take_longer_than_it_waits(self, session: govnode.Session) -> None:
        """The CLI denies what a hook has not answered in time, by itself after a minute."""
        hooks = GovnodeHooks(session, wait=100, approval_wait=1000).govern().hooks
        assert hooks["PreToolUse"][0].timeout > 1100
        assert hooks["PreToolUse"][0].on_failure == "block"

    @staticmethod
    def go(session: Any, script: Script, function: Callable[..., Any], others: Any = None, **gate_options: Any) -> Seen:
        """Run a client; what was under way is given back while it is still connected."""

        async def scenario() -> Seen:
            options = scripted(script, function, **(others or {}))
            async with GovnodeClient(options, session, **gate_options) as client:
                await client.query("go")
                result = await seen(client.receive_response())
                await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())
                return result

        session.open()
        return asyncio.run(scenario())


def answering(event: str = "PreToolUse", **said: Any) -> Any:
    async def hook(data: Any, tool_use_id: Any, context: Any) -> Any:
        return {"hookSpecificOutput": {"hookEventName": event, **said}}

    return hook


def endless(started: asyncio.Event) -> Callable[..., Any]:
    async def shell(command: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    return shell
