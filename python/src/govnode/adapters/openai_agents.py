"""The OpenAI Agents SDK: an agent whose tools, handoffs and MCP servers are governed.

    from govnode.adapters.openai_agents import govern_agent

    result = await Runner.run(govern_agent(agent, session), "go")

A tool guardrail cannot change arguments, and hooks cannot deny, so the tools themselves are replaced, in a copy of the
agent and of all it can hand off to. Hosted tools run where no hook is: they are refused unless named in ``ungoverned``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from .._review import written
from ..errors import Denied
from ._gate import Gate, Killed, PolicyViolationError, Sessions, missing, text_of

try:
    from agents import Agent, FunctionTool, Handoff, handoff
    from pydantic import TypeAdapter
except ImportError as e:
    raise missing("the OpenAI Agents SDK", "openai-agents") from e


def govern_agent(agent: Any, session: Sessions, *, ungoverned: Collection[str] = (), **options: Any) -> Any:
    """Return a copy of an agent that asks govnode before each call of a tool and each handoff.

    ``session`` is a session, or a function that returns that of a group by its id (``RunConfig.group_id``, empty if
    there is none). The arguments of ``Gate`` may follow. The model reads why a tool is denied; a handoff that is denied
    ends the run, and so does a session that is killed.
    """
    return _Governor(Gate(session, **options), ungoverned).agent(agent)


def govern_tool(tool: Any, session: Sessions, **options: Any) -> Any:
    """Return a copy of one FunctionTool that asks govnode before it runs. ``Agent.as_tool()`` makes one too."""
    return _tool(Gate(session, **options), tool)


class _Governor:
    """Governs the agents that hand off to each other, each once."""

    def __init__(self, gate: Gate, ungoverned: Collection[str]) -> None:
        self._gate = gate
        self._ungoverned = ungoverned
        self._done: dict[int, tuple[Any, Any]] = {}  # the original is kept, lest its id should be given out anew

    def agent(self, agent: Any) -> Any:
        if id(agent) in self._done:
            return self._done[id(agent)][1]
        governed = agent.clone(tools=[self._any_tool(agent, tool) for tool in agent.tools])
        self._done[id(agent)] = (agent, governed)
        self._done[id(governed)] = (governed, governed)
        governed.handoffs = [self._handoff(h) for h in agent.handoffs]
        governed.mcp_servers = [_Server(self._gate, server) for server in agent.mcp_servers]
        return governed

    def _any_tool(self, agent: Any, tool: Any) -> Any:
        if isinstance(tool, FunctionTool):
            return _tool(self._gate, tool)
        if tool.name in self._ungoverned:
            return tool
        raise ValueError(
            f"govnode: tool {tool.name} of agent {agent.name} runs where no hook is: "
            "take it out, or name it in ungoverned"
        )

    def _handoff(self, to: Any) -> Any:
        if isinstance(to, Agent):
            to = handoff(to)
        if not isinstance(to, Handoff):
            raise ValueError(f"govnode: handoffs: {type(to).__name__} is neither an Agent nor a Handoff")
        inner = to.on_invoke_handoff

        async def invoke(ctx: Any, arguments: str) -> Any:
            asked = _read(arguments)
            if asked is None:
                raise PolicyViolationError(_malformed(to.tool_name))
            passage = await self._gate.aenter(
                to.tool_name,
                asked,
                call_id=getattr(ctx, "tool_call_id", "") or "",
                conversation=_group(ctx),
                options={"kind": "handoff"},
            )
            if passage.denied is not None:
                raise Killed(passage.denied) if passage.killed else PolicyViolationError(passage.denied)
            changed = json.dumps(passage.arguments) if passage.changed else arguments
            return self.agent(await passage.arun(lambda: inner(ctx, changed)))

        return dataclasses.replace(to, on_invoke_handoff=invoke)


def _tool(gate: Gate, tool: Any) -> Any:
    inner = tool.on_invoke_tool
    if getattr(inner, "__govnode__", False):
        return tool
    # The SDK marks functions that it runs in threads.
    threaded = bool(getattr(inner, "__agents_sync_function_tool__", False))

    async def invoke(ctx: Any, arguments: str) -> Any:
        asked = _read(arguments)
        if asked is None:  # a tool of one's own might take them all the same, and nobody could judge them
            if gate.on_denied == "raise":
                raise PolicyViolationError(_malformed(tool.name))
            return text_of(_malformed(tool.name))
        passage = await gate.aenter(ctx.tool_name, asked, call_id=ctx.tool_call_id or "", conversation=_group(ctx))
        if passage.denied is not None:
            if passage.killed:
                raise Killed(passage.denied)
            return passage.text
        if passage.changed:
            arguments = json.dumps(passage.arguments)
            if getattr(ctx, "_function_tool_arguments", None) is not None:
                ctx._function_tool_arguments = None  # as they were read before
        return await passage.arun(lambda: inner(ctx, arguments), threaded=threaded, seen=_seen_of(tool, ctx))

    invoke.__govnode__ = True  # type: ignore[attr-defined]
    if threaded:
        invoke.__agents_sync_function_tool__ = True  # type: ignore[attr-defined]
    return dataclasses.replace(tool, on_invoke_tool=invoke)


def _malformed(tool: str) -> Denied:
    return Denied("REJECTED", f"the arguments of {tool} are no JSON object: call it again with one")


def _seen_of(tool: Any, ctx: Any) -> Callable[[Any], Any]:
    """Return what tells how the SDK shows a result: as a text, or as JSON where that is declared or a program asks."""
    adapter = getattr(tool, "_output_type_adapter", None)
    if adapter is None:
        by_program = getattr(getattr(ctx, "tool_call", None), "caller", None) is not None
        if not by_program and getattr(tool, "output_json_schema", None) is None:
            return lambda result: result
        adapter = TypeAdapter(Any)
    return lambda result: result if isinstance(result, str) else adapter.dump_python(result, mode="json", by_alias=True)


def _read(arguments: str) -> dict[str, Any] | None:
    """Return the arguments of a call; None for what is no object in JSON."""
    try:
        read = json.loads(arguments) if arguments else {}
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


def _group(ctx: Any) -> str:
    return getattr(getattr(ctx, "run_config", None), "group_id", None) or ""


class _Server:
    """An MCP server whose calls are governed. All else is the server's own."""

    def __init__(self, gate: Gate, server: Any) -> None:
        self.__dict__["_gate"] = gate
        self.__dict__["_server"] = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._server, name, value)

    async def call_tool(self, tool_name: str, arguments: dict[str, Any] | None, *args: Any, **more: Any) -> Any:
        """Ask, and call the tool with the arguments that are allowed."""
        passage = await self._gate.aenter(tool_name, arguments or {}, options={"server_label": self._server.name})
        if passage.denied is not None:
            if passage.killed:
                raise Killed(passage.denied)
            from mcp.types import CallToolResult, TextContent

            return CallToolResult(content=[TextContent(type="text", text=passage.text)], isError=True)
        changed = passage.arguments if passage.changed else arguments
        return await passage.arun(
            lambda: self._server.call_tool(tool_name, changed, *args, **more),
            failed=_is_error,
            seen=self._seen,
            told=_told,
        )

    def _seen(self, result: Any) -> Any:
        """Return what the SDK shows a model of a result: what is structured, where it is to, else its content."""
        structured = getattr(result, _structured(result))
        if structured and getattr(self._server, "use_structured_content", False) and not _is_error(result):
            return structured
        return "\n".join(c.text if c.type == "text" else c.model_dump_json() for c in result.content)


def _told(result: Any, shown: Any) -> Any:
    """Return a result of an MCP server with what is to be shown in the place of all that it holds."""
    from mcp.types import TextContent

    content = [TextContent(type="text", text=written(shown))]
    return result.model_copy(update={"content": content, _structured(result): None})


def _structured(result: Any) -> str:
    """Return where a result holds what is structured: the name is another one from version 2 of mcp on."""
    return "structured_content" if hasattr(result, "structured_content") else "structuredContent"


def _is_error(result: Any) -> bool:
    return bool(getattr(result, "isError", getattr(result, "is_error", False)))


__all__: Sequence[str] = ("govern_agent", "govern_tool")
