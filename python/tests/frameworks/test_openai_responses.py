from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import Killed, PolicyViolationError

pytest.importorskip("openai", reason="the OpenAI SDK is not installed")

from openai import AsyncOpenAI, OpenAI

from govnode.adapters.openai_responses import ResponsesGate, TurnsExceeded, calls_of, govern_responses

SHELL: Any = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}


class Provider:
    """The Responses API on the loopback: each request gets the next turn of a script. A turn may also be a whole body,
    or a list of items."""

    def __init__(self, script: Script) -> None:
        self.requests: list[Any] = []
        turns = iter(enumerate(script))

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                asked = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
                self.requests.append(asked)
                n, step = next(turns)
                response = self.response(n, step, asked)
                if asked.get("stream"):
                    kind = {"completed": "completed", "incomplete": "incomplete"}[response["status"]]
                    events: list[Any] = [
                        {"type": "response.created", "response": {**response, "output": []}},
                        {"type": f"response.{kind}", "response": response},
                    ]
                    lines = [
                        f"event: {e['type']}\ndata: {json.dumps({**e, 'sequence_number': i})}\n\n"
                        for i, e in enumerate(events)
                    ]
                    data, content = "".join(lines).encode(), "text/event-stream"
                else:
                    data, content = json.dumps(response).encode(), "application/json"
                handler.send_response(200)
                handler.send_header("content-type", content)
                handler.send_header("content-length", str(len(data)))
                handler.end_headers()
                handler.wfile.write(data)

            def log_message(handler, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """What a client that is made without arguments finds it by."""
        return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": self.url}

    @staticmethod
    def response(n: int, step: Any, asked: Any) -> dict[str, Any]:
        if isinstance(step, str):
            part = {"type": "output_text", "text": step, "annotations": []}
            step = [
                {"type": "message", "id": f"msg_{n}", "role": "assistant", "status": "completed", "content": [part]}
            ]
        body = {"status": "completed", "output": step} if isinstance(step, list) else dict(step)
        body["output"] = [call(f"{n}-{i}", *x) if isinstance(x, tuple) else x for i, x in enumerate(body["output"])]
        kept = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        response = {"id": f"resp_{n}", "object": "response", "created_at": 0, "model": "scripted", **kept, **body}
        if conversation := asked.get("conversation"):
            response["conversation"] = {"id": conversation if isinstance(conversation, str) else conversation["id"]}
        return response

    @property
    def outputs(self) -> list[Any]:
        """What the model was told its calls gave."""
        last = [r["input"] for r in self.requests if isinstance(r["input"], list)]
        seen = {i["call_id"]: i["output"] for items in last for i in items if i.get("type", "").endswith("_output")}
        return list(seen.values())

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def call(id: str, name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "type": "function_call",
        "id": f"fc_{id}",
        "call_id": f"call-{id}",
        "name": name,
        "arguments": text,
        "status": "completed",
        **more,
    }


class Responses(Driver):
    modes = ("sync", "async", "stream")

    def go(self, session: Any, script: Script, tool: Any, request: Any = None, **options: Any) -> Seen:
        with Provider(script) as provider, OpenAI(api_key="none", base_url=provider.url) as client:
            responses = govern_responses(client, session, {"shell": tool}, **options)
            response = responses.create(model="scripted", input="go", tools=[SHELL], **(request or {}))
            return Seen([str(o) for o in provider.outputs], response.output_text)

    async def ago(
        self, session: Any, script: Script, tool: Any, mode: str, request: Any = None, **options: Any
    ) -> Seen:
        with Provider(script) as provider:
            async with AsyncOpenAI(api_key="none", base_url=provider.url) as client:
                responses = govern_responses(client, session, {"shell": tool}, **options)
                asked = {"model": "scripted", "input": "go", "tools": [SHELL], **(request or {})}
                if mode == "async":
                    last = await responses.create(**asked)
                else:
                    async for event in await responses.create(**asked, stream=True):
                        if event.type == "response.completed":
                            last = event.response
            return Seen([str(o) for o in provider.outputs], last.output_text)


DRIVER = Responses()


class TestOpenAIResponses(Laws):
    driver = DRIVER

    # Where the next request finds what came before.

    @pytest.mark.parametrize(
        ("request_", "second"),
        [
            ({"conversation": "conv_1"}, {"conversation": "conv_1"}),
            ({}, {"previous_response_id": "resp_0"}),
            ({"previous_response_id": "resp_x"}, {"previous_response_id": "resp_0"}),
        ],
    )
    def test_outputs_follow_what_the_provider_kept(self, session: govnode.Session, request_: Any, second: Any) -> None:
        asked = run(session, [[("shell", {"command": "ls"})], "done"], request=request_).requests[1]
        output = {"type": "function_call_output", "call_id": "call-0-0", "output": "ran ls"}
        assert asked == {"model": "scripted", "tools": [SHELL], "input": [output], **second}

    @pytest.mark.parametrize("input_", ["go", [{"role": "user", "content": "go"}]])
    def test_without_a_store_all_goes_along(self, session: govnode.Session, input_: Any) -> None:
        thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"}
        script: Script = [[thought, call("0-0", "shell", {"command": "ls"})], [("shell", {"command": "pwd"})], "done"]
        provider = run(session, script, request={"input": input_, "store": False})
        kinds = [i.get("type", i.get("role")) for i in provider.requests[2]["input"]]
        pair = ["function_call", "function_call_output"]
        assert kinds == ["user", "reasoning", *pair, *pair]
        assert provider.requests[2]["input"][1] == thought

    def test_what_is_forced_is_forced_once(self, session: govnode.Session) -> None:
        forced = {"type": "function", "name": "shell"}
        provider = run(session, [[("shell", {"command": "ls"})], "done"], request={"tool_choice": forced})
        assert [r["tool_choice"] for r in provider.requests] == [forced, "auto"]

    def test_session_of_each_conversation(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        for name in ("a", "b", "b"):
            run(of, [[("shell", {"command": "ls"})], "done"], request={"conversation": {"id": name}})
        assert client.get_session(f"{session.id}-a").executions == 1
        assert client.get_session(f"{session.id}-b").executions == 2

    # What is not run.

    @pytest.mark.parametrize(
        ("item", "why"),
        [
            (call("0-0", "rm", {}), "there is no function rm"),
            (call("0-0", "shell", '{"command": "l'), "no JSON object"),
            (call("0-0", "shell", "[1]"), "no JSON object"),
            (call("0-0", "shell", {"command": "ls"}, status="incomplete"), "not whole"),
            (call("0-0", "shell", {"command": "ls"}, namespace="other"), "there is no function other.shell"),
            (call("0-0", "shell", '{"command": "ls", "command": "rm -rf /"}'), "rm -rf"),
        ],
    )
    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_what_is_no_call_of_a_function_is_denied(
        self, session: govnode.Session, item: Any, why: str, mode: str
    ) -> None:
        tool = Tool(mode)
        seen = DRIVER.run(session, [[item], "done"], tool.function, mode)
        assert seen.model_saw[0].startswith("Denied by govnode")
        assert why in seen.model_saw[0]
        assert tool.executed == []
        with pytest.raises(PolicyViolationError):
            DRIVER.run(session, [[item], "done"], tool.function, mode, on_denied="raise")

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_response_that_is_not_whole_runs_nothing(self, session: govnode.Session, stream: bool) -> None:
        session.open()
        cut = {"status": "incomplete", "output": [call("0-0", "shell", {"command": "ls"})]}
        provider = run(session, [cut], request={"stream": stream})
        assert len(provider.requests) == 1
        assert session.read().attempts == 0

    def test_calls_that_only_the_caller_can_answer_come_back(self, session: govnode.Session) -> None:
        session.open()
        asks = {"type": "mcp_approval_request", "id": "a", "arguments": "{}", "name": "drop", "server_label": "db"}
        provider = run(session, [[call("0-0", "shell", {"command": "ls"}), asks]])
        assert len(provider.requests) == 1
        assert session.read().attempts == 0

    def test_functions_in_namespaces_are_called_by_both_names(self, session: govnode.Session) -> None:
        tool = Tool()
        item = call("0-0", "shell", {"command": "ls"}, namespace="unix")
        run(session, [[item], "done"], tools={"unix.shell": tool.function})
        assert tool.executed == ["ls"]

    def test_custom_tools_and_programs(self, session: govnode.Session) -> None:
        program = {"type": "program", "caller_id": "prog_1"}
        item = {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "ls", "caller": program}
        provider = run(session, [[item], "done"], tools={"shell": lambda input: f"ran {input}"})
        answer = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ran ls", "caller": program}
        assert provider.requests[1]["input"] == [answer]

    @pytest.mark.parametrize(
        ("result", "told"),
        [
            (None, ""),
            ({"files": 2}, '{"files": 2}'),
            ([1, 2], "[1, 2]"),
            ([{"type": "input_text", "text": "hi"}], [{"type": "input_text", "text": "hi"}]),
        ],
    )
    def test_what_a_function_may_return(self, session: govnode.Session, result: Any, told: Any) -> None:
        provider = run(session, [[("shell", {})], "done"], tools={"shell": lambda: result})
        assert provider.outputs == [told]

    # Errors, several at once, ends.

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_errors_are_the_callers_or_are_told(self, session: govnode.Session, mode: str) -> None:
        def shell(command: str) -> str:
            raise ValueError("no such file")

        script: Script = [[("shell", {"command": "ls"})], "done"]
        with pytest.raises(ValueError, match="no such file"):
            DRIVER.run(session, script, shell, mode)
        seen = DRIVER.run(session, script, shell, mode, on_error=lambda e: f"failed: {e}")
        assert seen.model_saw == ["failed: no such file"]
        assert session.read().failures == 2

    @pytest.mark.parametrize("mode", ["sync", "async"])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_several_at_once(self, session: govnode.Session, mode: str, is_async: bool) -> None:
        """All of them run before one of them may end; the answers keep their order."""
        if mode == "sync" and is_async:
            pytest.skip("an OpenAI awaits nothing")
        together = threading.Barrier(3)

        def shell(command: str) -> str:
            together.wait(30)
            return f"ran {command}"

        async def ashell(command: str) -> str:
            return await asyncio.to_thread(shell, command)

        script: Script = [[("shell", {"command": f"ls {i}"}) for i in range(3)], "done"]
        seen = DRIVER.run(session, script, ashell if is_async else shell, mode, parallel=3)
        assert seen.model_saw == ["ran ls 0", "ran ls 1", "ran ls 2"]

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_the_first_of_several_that_fails_ends_them(self, session: govnode.Session, mode: str) -> None:
        def shell(command: str) -> str:
            raise ValueError(command)

        script: Script = [[("shell", {"command": f"ls {i}"}) for i in range(6)], "done"]
        with pytest.raises(ValueError, match="ls"):
            DRIVER.run(session, script, shell, mode, parallel=2)
        eventually(lambda: session.read().open_calls == ())
        assert session.read().executions < 6

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_ids_that_come_twice_are_two_calls(self, session: govnode.Session, mode: str) -> None:
        tool = Tool(mode)
        twins = [call("same", "shell", {"command": c}) for c in ("ls", "pwd")]
        DRIVER.run(session, [twins, "done"], tool.function, mode, parallel=2)
        assert sorted(tool.executed) == ["ls", "pwd"]
        assert session.read().executions == 2

    @pytest.mark.parametrize("parallel", [1, 4])
    def test_kill_among_several_ends_the_run(
        self, client: govnode.Client, session: govnode.Session, parallel: int
    ) -> None:
        def shell(command: str) -> str:
            client.signal("KILL", session_id=session.id, reason="enough")
            return "ok"

        script: Script = [[("shell", {"command": f"ls {i}"}) for i in range(4)]] * 2
        with pytest.raises(Killed):
            DRIVER.run(session, script, shell, "sync", parallel=parallel, on_error=str)
        eventually(lambda: session.read().open_calls == ())

    def test_a_killed_conversation_asks_no_model(self, client: govnode.Client, session: govnode.Session) -> None:
        def shell(command: str) -> str:
            client.signal("KILL", session_id=session.id, reason="enough")
            return "ok"

        with Provider([[("shell", {"command": "ls"})]] * 9) as provider:
            client_ = OpenAI(api_key="none", base_url=provider.url)
            responses = govern_responses(client_, session, {"shell": shell})
            for _ in range(2):
                with pytest.raises(Killed):
                    responses.create(model="scripted", input="go")
            assert len(provider.requests) == 1

    def test_a_killed_agent_in_a_function_ends_the_outer_one(self, session: govnode.Session) -> None:
        def shell(command: str) -> str:
            raise Killed(govnode.Denied("KILLED", "enough"))

        with pytest.raises(Killed):
            DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], shell, "sync", on_error=str)

    def test_a_model_that_never_ends(self, session: govnode.Session) -> None:
        tool = Tool()
        with pytest.raises(TurnsExceeded) as raised:
            run(session, [[("shell", {"command": "ls"})]] * 9, tools={"shell": tool.function}, max_turns=3)
        assert len(tool.executed) == 2
        assert calls_of(raised.value.response)

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session, mode: str) -> None:
        tool = Tool()
        with Provider([[("shell", {"command": "ls"})], "done"]) as provider:
            request: Any = {"model": "scripted", "input": "go", "stream": True}
            if mode == "sync":
                events = govern_responses(
                    OpenAI(api_key="none", base_url=provider.url), session, {"shell": tool.function}
                ).create(**request)
                next(events)
                events.close()
            else:

                async def scenario() -> None:
                    client = AsyncOpenAI(api_key="none", base_url=provider.url)
                    events = await govern_responses(client, session, {"shell": tool.function}).create(**request)
                    await anext_(events)
                    await events.aclose()
                    await client.close()

                asyncio.run(scenario())
            assert len(provider.requests) == 1
        assert tool.executed == []

    # What cannot be governed is said at once.

    def test_what_is_refused(self, session: govnode.Session) -> None:
        client = OpenAI(api_key="none", base_url="http://127.0.0.1:9")
        with pytest.raises(TypeError, match="AsyncOpenAI: shell"):
            govern_responses(client, session, {"shell": Tool("async").function})
        with pytest.raises(TypeError, match="neither"):
            govern_responses(object(), session, {})
        with pytest.raises(ValueError, match="background"):
            govern_responses(client, session, {}).create(model="scripted", input="go", background=True)
        with pytest.raises(ValueError, match="parallel"):
            govern_responses(client, session, {}, parallel=0)

    # A loop of one's own.

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_a_loop_of_ones_own(self, session: govnode.Session, mode: str) -> None:
        tool = Tool(mode)
        gate = ResponsesGate(session)
        with Provider(SCRIPT) as provider:
            if mode == "sync":
                client = OpenAI(api_key="none", base_url=provider.url)
                todo: Any = "go"
                while todo:
                    response = client.responses.create(model="scripted", input=todo, conversation="conv_1")
                    todo = [gate.output_of(i, tool.function, conversation="conv_1") for i in calls_of(response)]
            else:

                async def scenario() -> None:
                    todo: Any = "go"
                    async with AsyncOpenAI(api_key="none", base_url=provider.url) as client:
                        while todo:
                            response = await client.responses.create(model="scripted", input=todo)
                            todo = [await gate.aoutput_of(i, tool.function) for i in calls_of(response)]

                asyncio.run(scenario())
        assert tool.executed == ["ls"]
        assert provider.outputs[0] == "ran ls"
        assert "rm -rf" in provider.outputs[1]

    def test_a_response_that_comes_again_after_an_approval_is_the_same_call(self, client: govnode.Client) -> None:
        client.put_policy(
            "name: asks-again\nallowed_tools: [shell]\nrequire_human_approval: true\napproval: {timeout: 60s}\n"
        )
        session = client.session(agent="tester", policy="asks-again")
        tool = Tool()
        with Provider([[("shell", {"command": "ls"})]]) as provider:
            response = OpenAI(api_key="none", base_url=provider.url).responses.create(model="scripted", input="go")
        assert "approval" in ResponsesGate(session, {"shell": tool.function}).outputs(response)[0]["output"]
        [approval] = client.list_approvals(state="pending", session_id=session.id)
        client.approve(approval.id, approver="carla")
        assert ResponsesGate(session, {"shell": tool.function}).outputs(response)[0]["output"] == "ran ls"

    def test_an_item_of_another_kind_is_no_call(self, session: govnode.Session) -> None:
        with Provider(["done"]) as provider:
            response = OpenAI(api_key="none", base_url=provider.url).responses.create(model="scripted", input="go")
        with pytest.raises(TypeError, match="message is no call"):
            ResponsesGate(session).output_of(response.output[0], Tool().function)


def run(session: Any, script: Script, tools: Any = None, request: Any = None, **options: Any) -> Provider:
    """Run a loop, and return what the provider was asked."""
    with Provider(script) as provider, OpenAI(api_key="none", base_url=provider.url) as client:
        responses = govern_responses(client, session, tools or {"shell": Tool().function}, **options)
        last = responses.create(**{"model": "scripted", "input": "go", "tools": [SHELL], **(request or {})})
        if (request or {}).get("stream"):
            list(last)
    return provider


async def anext_(events: Any) -> Any:
    async for event in events:
        return event
    return None
