"""Agno: an agent or a team whose tools are governed.

    from govnode.adapters.agno import govern_agent

    govern_agent(agent, session).run("go")

What runs are the arguments that the first of an agent's tool hooks is given, whatever later ones pass on: so this one
is put first. A hook that is a coroutine function is left out of a synchronous run, without an error: so this is none,
and serves both.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from typing import Any

from ._gate import Gate, Passage, PolicyViolationError, Sessions, missing

try:
    from agno.exceptions import StopAgentRun
    from agno.run.base import BaseRunOutputEvent
    from agno.tools import Function, Toolkit
    from agno.tools.function import ToolResult
except ImportError as e:
    raise missing("Agno", "agno") from e


class RunDenied(BaseException):
    """Ends a run whose call is denied, with ``on_denied="raise"``: Agno makes a text for the model of any Exception.

    Its cause is the PolicyViolationError.
    """


def govern_agent(agent: Any, session: Sessions, *, ungoverned: Collection[str] = (), **options: Any) -> Any:
    """Let an agent or a team, and the members of that, ask govnode before each call of a tool, and return it.

    ``session`` is a session, or a function that returns that of an Agno session by its id. The arguments of ``Gate``
    may follow. The model reads why a call is denied. The run of a session that is killed ends with StopAgentRun, and
    has no answer. To a member a team hands over by a tool: that is a call too, which lasts as long as the member works.

    Agno puts the hooks of an agent in the place of those that a tool has of its own, and a model's provider runs its
    built-in tools where no hook is: both are refused, the latter unless their type is named in ``ungoverned``.
    """
    return _govern(agent, GovnodeToolHook(session, **options), ungoverned)


def _govern(agent: Any, hook: GovnodeToolHook, ungoverned: Collection[str]) -> Any:
    hooks = list(agent.tool_hooks or ())
    if hook in hooks:
        return agent
    if any(isinstance(h, GovnodeToolHook) for h in hooks):
        raise ValueError(f"govnode: {agent.name} is governed already")
    for name in ("tools", "members"):
        if callable(getattr(agent, name, None)):
            raise ValueError(f"govnode: {name} of {agent.name} is a function, whose results could not be governed")
    for tool in agent.tools or ():
        if isinstance(tool, dict) and tool.get("type", tool.get("name", "")) not in ungoverned:
            raise ValueError(
                f"govnode: tool {tool.get('type', tool)} of {agent.name} runs where no hook is: "
                "take it out, or name it in ungoverned"
            )
        if not hooks and any(f.tool_hooks for f in _functions(tool)):
            raise ValueError(f"govnode: a tool of {agent.name} has hooks of its own: give them to the agent")
    agent.tool_hooks = [hook, *hooks]
    for member in getattr(agent, "members", None) or ():
        _govern(member, hook, ungoverned)
    return agent


def _functions(tool: Any) -> list[Any]:
    if isinstance(tool, Toolkit):
        return [*tool.functions.values(), *tool.async_functions.values()]
    return [tool] if isinstance(tool, Function) else []


class GovnodeToolHook:
    """Asks before a tool runs, and ends the call when the tool has ended: the first of ``tool_hooks``."""

    def __init__(self, session: Sessions, **options: Any) -> None:
        self.gate = Gate(session, **options)

    # The names of the arguments are Agno's: it looks at them.

    def __call__(
        self, function_name: str, function_call: Callable[..., Any], arguments: dict[str, Any], run_context: Any = None
    ) -> Any:
        """Ask, run the tool with the arguments that are allowed, and report its end."""
        conversation = getattr(run_context, "session_id", None) or ""
        if inspect.iscoroutinefunction(function_call):
            return self._on_loop(function_name, function_call, arguments, conversation)
        try:
            passage = self.gate.enter(function_name, arguments, conversation=conversation)
        except PolicyViolationError as e:
            raise RunDenied(str(e)) from e
        refusal = _prepared(passage, arguments)
        if refusal is not None:
            return refusal
        try:
            result = function_call(**copy.deepcopy(arguments))  # later hooks get no hold of what runs
        except BaseException as e:
            passage.fail(e)
            raise
        if inspect.isgenerator(result):
            return _outlived(passage, _whole(passage, result))
        if inspect.isasyncgen(result):
            return _outlived(passage, _awhole(passage, result))
        passage.end("succeeded", passage.output(_seen, result))
        return result if passage.shown is None else passage.shown

    async def _on_loop(
        self, name: str, function_call: Callable[..., Any], arguments: dict[str, Any], conversation: str
    ) -> Any:
        try:
            passage = await self.gate.aenter(name, arguments, conversation=conversation)
        except PolicyViolationError as e:
            raise RunDenied(str(e)) from e
        refusal = _prepared(passage, arguments)
        if refusal is not None:
            return refusal
        try:
            result = await function_call(**copy.deepcopy(arguments))
        except Exception as e:
            await passage.afail(e)
            raise
        except BaseException:
            passage.end_behind("cancelled")
            raise
        if inspect.isgenerator(result):
            return _outlived(passage, _whole(passage, result))
        if inspect.isasyncgen(result):
            return _outlived(passage, _awhole(passage, result))
        await passage.aend("succeeded", passage.output(_seen, result))
        return result if passage.shown is None else passage.shown


def _prepared(passage: Passage, arguments: dict[str, Any]) -> str | None:
    """Put the arguments that are allowed in the place of the others. Return what the model is to read instead."""
    if passage.denied is not None:
        if passage.killed:
            raise StopAgentRun(passage.text)
        return passage.text
    if passage.changed:
        if not arguments:  # Agno hands out a copy of none
            passage.end_behind("cancelled")
            return "Denied by govnode: a call without arguments cannot be given some"
        changed = passage.arguments
        arguments.clear()
        arguments.update(changed)
    return None


def _whole(passage: Passage, results: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Yield what a tool yields, and end its call with it. What rules look at is held back until they have."""
    held = []
    try:
        if passage.reviews:
            held = list(results)
        else:
            yield from results
    except BaseException as e:
        passage.fail(e)
        raise
    passage.end("succeeded", _joined(held))
    yield from held if passage.shown is None else [passage.shown]


async def _awhole(passage: Passage, results: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    held = []
    try:
        async for result in results:
            if passage.reviews:
                held.append(result)
            else:
                yield result
    except Exception as e:
        await passage.afail(e)
        raise
    except BaseException:
        passage.end_behind("cancelled")
        raise
    await passage.aend("succeeded", _joined(held))
    for result in held if passage.shown is None else [passage.shown]:
        yield result


def _seen(result: Any) -> Any:
    """Return what a model sees of a result: of one of Agno's own the content and the media, but no metadata."""
    if not isinstance(result, ToolResult):
        return result
    media = [m for kind in (result.images, result.videos, result.audios, result.files) for m in kind or ()]
    return "\n".join([result.content, *map(str, media)])


def _joined(pieces: list[Any]) -> str | None:
    return "".join(map(_piece, pieces)) if pieces else None


def _piece(piece: Any) -> str:
    """Return what a model sees of one piece of a result: of the events of an agent what that says."""
    if not isinstance(piece, BaseRunOutputEvent) or type(piece).__name__ == "CustomEvent":
        return str(piece)
    content = getattr(piece, "content", None)
    if content is None or type(piece).__name__ not in ("RunContentEvent", "WorkflowCompletedEvent"):
        return ""
    return content.model_dump_json() if hasattr(content, "model_dump_json") else str(content)


def _outlived(passage: Passage, results: Any) -> Any:
    """See to it that a call ends whose results nobody reads."""
    weakref.finalize(results, passage.end_behind, "cancelled")
    return results
