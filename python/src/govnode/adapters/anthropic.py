"""The Anthropic SDK: tools of a tool runner that are governed.

    from govnode.adapters.anthropic import govern_tools

    client.beta.messages.tool_runner(tools=govern_tools([shell], session), ...).until_done()

No tool passes through a middleware, so the tools themselves are replaced. A tool is not told the id of its call: each
call has one of its own here, and one that waits for people and is made again is the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ._gate import Gate, Killed, Passage, PolicyViolationError, Sessions, missing
from ._recall import Recall

try:
    from anthropic.lib.tools import (
        BetaAsyncBuiltinFunctionTool,
        BetaAsyncFunctionTool,
        BetaAsyncRunnableToolset,
        BetaBuiltinFunctionTool,
        BetaFunctionTool,
        BetaRunnableToolset,
        ToolError,
    )
except ImportError as e:
    raise missing("the Anthropic SDK", "anthropic") from e

__all__ = ["RunDenied", "govern_tools"]

_SYNC = (BetaFunctionTool, BetaBuiltinFunctionTool, BetaRunnableToolset)
_ASYNC = (BetaAsyncFunctionTool, BetaAsyncBuiltinFunctionTool, BetaAsyncRunnableToolset)
_TOOLSETS = (BetaRunnableToolset, BetaAsyncRunnableToolset)


class RunDenied(BaseException):
    """Ends a run: its session is killed, or a call is denied with ``on_denied="raise"``.

    The runner makes a text for the model of any Exception. The cause is Killed or PolicyViolationError.
    """


def govern_tools(
    tools: Iterable[Any], session: Sessions, *, ungoverned: Collection[str] = (), **options: Any
) -> list[Any]:
    """Return copies of tools and toolsets that ask govnode before each call.

    ``session`` is a session, or a function that returns one. The arguments of ``Gate`` may follow. The model reads why
    a call is denied, in a result that is an error. The run of a session that is killed ends with RunDenied. A member
    of a toolset is judged as ``browser.navigate``. What is only a definition runs where no hook is, at the provider or
    in the application: it is refused unless named in ``ungoverned``.
    """
    governor = _Governor(Gate(session, **options))
    return [governor.tool(tool, ungoverned) for tool in tools]


class _Governor:
    """Asks for the calls of tools, and makes them."""

    def __init__(self, gate: Gate) -> None:
        self._recall = Recall(gate)

    def tool(self, tool: Any, ungoverned: Collection[str]) -> Any:
        """Return what takes the place of a tool."""
        if isinstance(tool, Mapping):
            name = str(tool.get("name") or tool.get("mcp_server_name") or tool.get("type"))
            if name in ungoverned:
                return tool
            raise ValueError(f"govnode: tool {name} runs where no hook is: take it out, or name it in ungoverned")
        if not isinstance(tool, (*_SYNC, *_ASYNC)):
            raise TypeError(f"govnode: {type(tool).__name__} is no tool of a tool runner")
        if hasattr(tool, "__govnode__"):
            raise ValueError(f"govnode: tool {_name(tool)} is governed already")
        return _copy(tool, _calling(tool, self.acall if isinstance(tool, _ASYNC) else self.call))

    def call(self, name: str, given: Any, make: Callable[[Any], Any]) -> Any:
        """Ask, and make a call with the arguments that are allowed."""
        try:
            passage = self._recall.enter(name, given)
        except PolicyViolationError as e:
            raise RunDenied(str(e)) from e
        allowed = _allowed(passage, given)
        return passage.run(lambda: _whole(make(allowed)))

    async def acall(self, name: str, given: Any, make: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what ``call`` does."""
        try:
            passage = await self._recall.aenter(name, given)
        except PolicyViolationError as e:
            raise RunDenied(str(e)) from e
        allowed = _allowed(passage, given)

        async def work() -> Any:
            return _whole(await make(allowed))

        return await passage.arun(work)


def _allowed(passage: Passage, given: Any) -> Any:
    if passage.denied is not None:
        if passage.killed:
            raise RunDenied(passage.text) from Killed(passage.denied)
        raise ToolError(passage.text)
    return passage.arguments if passage.changed else given


def _whole(result: Any) -> Any:
    """Return a result that is there. A generator would do its work when the runner reads it, after its call."""
    return list(result) if isinstance(result, Iterator) else result


def _calling(tool: Any, ask: Callable[[str, Any, Callable[[Any], Any]], Any]) -> Callable[..., Any]:
    """Return what stands in for ``tool.call``."""
    inner = tool.call
    if isinstance(tool, _TOOLSETS):

        def member(context: Any, name: str, input: Any) -> Any:
            return ask(f"{tool.toolset_name}.{name}", input, lambda given: inner(context, name, given))

        return member

    def call(input: Any) -> Any:
        return ask(tool.name, input, inner)

    return call


def _copy(tool: Any, call: Callable[..., Any]) -> Any:
    """Return a tool of the same kind and state with another ``call``, which nobody can replace again."""
    kind = type(tool)
    governed = object.__new__(type(kind.__name__, (kind,), {"call": property(lambda _: call), "__govnode__": True}))
    governed.__dict__ = tool.__dict__
    return governed


def _name(tool: Any) -> str:
    return str(tool.toolset_name if isinstance(tool, _TOOLSETS) else tool.name)
