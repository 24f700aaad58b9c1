"""LangChain: a middleware for ``create_agent``.

    from govnode.adapters.langchain import GovnodeMiddleware

    agent = create_agent(model, tools, middleware=[..., GovnodeMiddleware(session)])

It belongs last: what stands behind it could still change the arguments. Retries placed before it are calls, each.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from .._review import written
from ..errors import Denied
from ._gate import Gate, Passage, Sessions, missing, text_of

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.tools import BaseTool
    from langgraph.errors import GraphBubbleUp
    from typing_extensions import NotRequired
except ImportError as e:
    raise missing("LangChain", "langchain") from e


class GovernedState(AgentState):
    """The state of an agent, and what makes the ids of its calls unique: the model gives them out anew in each run."""

    govnode_run: NotRequired[Annotated[str, PrivateStateAttr]]  # type: ignore[valid-type]


class GovnodeMiddleware(AgentMiddleware):
    """Asks govnode before each tool call, and ends the call with the tool.

    ``session`` is a session, or a function that returns that of a thread by its id (``configurable.thread_id``, empty
    if there is none). The arguments of ``Gate`` may follow. A denial is a ToolMessage with the status ``error``. When
    the session is killed the run ends before its model is asked again.
    """

    state_schema = GovernedState

    def __init__(self, session: Sessions, **options: Any) -> None:
        super().__init__()
        self.gate = Gate(session, **options)

    # The names of the arguments are LangChain's: it looks at them.

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Name the run. What was interrupted goes on under the name that it has."""
        return {"govnode_run": self.gate.draw()}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Name the run."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run of a session that is killed."""
        info = getattr(runtime, "execution_info", None)
        killed = self.gate.killed(getattr(info, "thread_id", None) or "")
        if killed is None:
            return None
        return {"jump_to": "end", "messages": [AIMessage(content=text_of(killed))]}

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run of a session that is killed."""
        jump: dict[str, Any] | None = self.before_model(state, runtime)
        return jump

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Ask, run the tool with the arguments that are allowed, and report its end."""
        passage = self.gate.enter(**_asked(request))
        if passage.denied is not None:
            return _refusal(request, passage.denied)
        request = _changed(request, passage)
        return passage.run(
            lambda: handler(request),
            failed=_failed,
            interrupts=(GraphBubbleUp,),
            seen=_seen,
            told=lambda result, shown: _told(request, result, shown),
        )

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Ask, run the tool with the arguments that are allowed, and report its end."""
        passage = await self.gate.aenter(**_asked(request))
        if passage.denied is not None:
            return _refusal(request, passage.denied)
        request = _changed(request, passage)
        return await passage.arun(
            lambda: handler(request),
            threaded=_threaded(request.tool),
            failed=_failed,
            interrupts=(GraphBubbleUp,),
            seen=_seen,
            told=lambda result, shown: _told(request, result, shown),
        )


def _asked(request: Any) -> dict[str, Any]:
    call, info = request.tool_call, getattr(request.runtime, "execution_info", None)
    state = request.state if isinstance(request.state, Mapping) else {}
    return {
        "tool": call["name"],
        "arguments": call["args"],
        "call_id": call["id"] or "",
        "run_id": state.get("govnode_run", ""),
        "conversation": getattr(info, "thread_id", None) or "",
    }


def _refusal(request: Any, denied: Denied) -> Any:
    call = request.tool_call
    return ToolMessage(content=text_of(denied), tool_call_id=call["id"], name=call["name"], status="error")


def _seen(result: Any) -> Any:
    """Return what a model may see of a result. It sees no artifact; of a Command it may see all, by the state."""
    if isinstance(result, list):
        return [_seen(r) for r in result]
    return result.content if isinstance(result, ToolMessage) else result


def _told(request: Any, result: Any, shown: Any) -> Any:
    """Return what rules left of a result. Of a Command nothing else is left."""
    call, status = request.tool_call, getattr(result, "status", "success")
    return ToolMessage(content=written(shown), tool_call_id=call["id"], name=call["name"], status=status)


def _changed(request: Any, passage: Passage) -> Any:
    if not passage.changed:
        return request
    return request.override(tool_call={**request.tool_call, "args": passage.arguments})


def _failed(result: Any) -> bool:
    """Report whether a tool failed: wrong arguments and unknown tools come back as messages, not as exceptions."""
    return isinstance(result, ToolMessage) and result.status == "error"


def _threaded(tool: Any) -> bool:
    """Report whether a tool is a synchronous one, which runs on in its thread when its task is cancelled."""
    if tool is None:
        return False
    if hasattr(tool, "coroutine"):
        return tool.coroutine is None
    return inspect.getattr_static(type(tool), "_arun", None) is inspect.getattr_static(BaseTool, "_arun")
