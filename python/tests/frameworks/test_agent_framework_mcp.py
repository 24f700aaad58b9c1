"""The MCP tools of Microsoft Agent Framework, with a real server in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import govnode

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed")
pytest.importorskip(
    "mcp.client.context", reason="Microsoft Agent Framework wants mcp 2, which no other framework here has"
)

from agent_framework import Agent, MCPStdioTool
from maf import ScriptedClient, results
from mcp.types import CreateMessageRequestParams, ErrorData, SamplingMessage, TextContent, Tool

from govnode.adapters.agent_framework import GovnodeMiddleware, sampling

SERVER = """
import sys

from mcp.server import MCPServer

server = MCPServer("files")


@server.tool()
def read(path: str) -> str:
    \"\"\"Reads a file.\"\"\"
    with open(sys.argv[1], "a") as ran:
        print(path, file=ran)
    return f"content of {path}"


server.run()
"""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "ran").touch()
    return tmp_path / "ran"


def connect(ran: Path, model: Any = None, **options: Any) -> MCPStdioTool:
    return MCPStdioTool(
        name="files",
        command=sys.executable,
        args=[str(ran.parent / "server.py"), str(ran)],
        approval_mode="never_require",
        client=model,
        **options,
    )


def test_its_tools_are_judged(session: govnode.Session, ran: Path) -> None:
    async def scenario() -> list[str]:
        async with connect(ran) as tool:
            script = [[("read", {"path": "notes"}), ("read", {"path": "rm -rf /"})], "done"]
            agent = Agent(client=ScriptedClient(script), tools=[tool], middleware=[GovnodeMiddleware(session)])
            return results(await agent.run("go"))

    allowed, denied = asyncio.run(scenario())
    assert "content of notes" in allowed
    assert "Denied by govnode" in denied
    assert ran.read_text() == "notes\n"
    info = session.read()
    assert (info.executions, info.attempts, info.calls_by_tool) == (1, 2, {"read": 1})


def test_only_declared_arguments_go_out(session: govnode.Session, ran: Path) -> None:
    """What the model adds is judged, and the server never gets it."""

    async def scenario() -> list[str]:
        async with connect(ran) as tool:
            script = [
                [("read", {"path": "notes", "session_id": "s", "extra": 1}), ("read", {"path": "a", "x": "rm -rf /"})],
                "done",
            ]
            agent = Agent(client=ScriptedClient(script), tools=[tool], middleware=[GovnodeMiddleware(session)])
            return results(await agent.run("go"))

    allowed, denied = asyncio.run(scenario())
    assert "content of notes" in allowed
    assert "Denied by govnode" in denied
    assert ran.read_text() == "notes\n"


async def sample(tool: MCPStdioTool, text: str = "what is it?", **more: Any) -> str:
    """Have the framework answer a server that asks for the model, as it does when that asks."""
    asks = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    given: Any = None  # of the connection: what judges does not look at it
    params = CreateMessageRequestParams(messages=[asks], max_tokens=50, **more)
    answer = await tool.sampling_callback(given, params)
    return str(answer.message if isinstance(answer, ErrorData) else answer.content.text)


@pytest.mark.filterwarnings("ignore")  # sampling itself is on its way out of MCP
def test_sampling_is_judged(client: govnode.Client, ran: Path) -> None:
    client.put_policy("name: sampled\nmax_sampling_requests: 2\n")
    session = client.session(agent="tester", policy="sampled")
    model = ScriptedClient(["first", "second", "third", "fourth"])

    async def scenario() -> list[str]:
        said = []
        for server in ("files", "files", "files", "other"):  # each a tool of its own, as in many processes
            judge = sampling(session, server)
            said.append(await sample(connect(ran, model, sampling_approval_callback=judge)))
        return said

    said = asyncio.run(scenario())
    assert [said[0], said[1], said[3]] == ["first", "second", "third"]
    assert "denied by the 'sampling_approval_callback'" in said[2]
    assert session.read().open_calls == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "asked",
    [
        {"text": "say forbidden things"},
        {"system_prompt": "say forbidden things"},
        {"tools": [Tool(name="a", description="says forbidden things", input_schema={"type": "object"})]},
    ],
)
def test_all_that_a_server_asks_is_judged(client: govnode.Client, ran: Path, asked: dict[str, Any]) -> None:
    client.put_policy("name: sampled-words\nblocked_patterns: [FORBIDDEN]\n")
    model = ScriptedClient(["never"])
    judge = sampling(client.session(agent="tester", policy="sampled-words"), "files")
    said = asyncio.run(sample(connect(ran, model, sampling_approval_callback=judge), **asked))
    assert "denied by the 'sampling_approval_callback'" in said
    assert model.turn == 0


@pytest.mark.filterwarnings("ignore")
def test_sampling_without_a_decision(session: govnode.Session, ran: Path) -> None:
    model = ScriptedClient(["never"])
    with govnode.Client("127.0.0.1:9", timeout=0.5) as nobody:
        for judge in (
            sampling(nobody.session("s", agent="tester", policy="plain"), "files"),
            sampling(session, "a server with a name that is no name \n", on_denied="raise"),
        ):
            said = asyncio.run(sample(connect(ran, model, sampling_approval_callback=judge)))
            assert "denied by the 'sampling_approval_callback'" in said
    assert model.turn == 0
