"""CrewAI: hooks for the tool calls and the model calls of a crew, an agent or a flow.

    from govnode.adapters.crewai import govern

    with govern(session):
        crew.kickoff()

CrewAI swallows every exception of a hook but its own, and lets the tool run then: here each becomes a denial. Within
the block the hooks stand behind all global ones, so that nothing changes the arguments after them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from types import TracebackType
from typing import Any

from ._gate import Gate, Killed, Passage, PolicyViolationError, Sessions, missing

try:
    from crewai.hooks import HookAborted, InterceptionPoint, register_hook, unregister_hook
    from crewai.hooks.dispatch import get_scoped_hooks, scoped_hooks
except ImportError as e:
    raise missing("CrewAI", "crewai") from e

log = logging.getLogger("govnode")

_BLOCKED = "Tool execution blocked by hook."
_FAILED = ("Error executing tool", "I encountered an error while trying to use the tool")


def govern(session: Sessions, **options: Any) -> GovnodeHooks:
    """Return hooks to run crews in: ``with govern(session): ...``. They follow into threads and tasks begun inside."""
    return GovnodeHooks(session, **options)


class GovnodeHooks:
    """Asks govnode before each tool call, and ends the call when the tool has ended.

    ``session`` is a session, or a function that returns that of a crew by its id (empty for an agent without a crew).
    The arguments of ``Gate`` may follow. The model reads why a tool is denied. The run of a session that is killed ends
    with HookAborted before its model is asked again, and so does every run whose tool is denied, with
    ``on_denied="raise"``; the cause is what the gate says. CrewAI does not tell its hooks what it took from its cache:
    that is a call too. A tool that the text protocol tries again after an error is one call.
    """

    def __init__(self, session: Sessions, **options: Any) -> None:
        self.gate = Gate(session, **options)
        self._hooks = {
            InterceptionPoint.PRE_MODEL_CALL: self.pre_model_call,
            InterceptionPoint.PRE_TOOL_CALL: self.pre_tool_call,
            InterceptionPoint.POST_TOOL_CALL: self.post_tool_call,
        }
        self._lock = threading.Lock()
        # What is under way, by the identity of its arguments: those alone are the same before a tool and after it.
        self._under_way: dict[int, tuple[Any, Passage | PolicyViolationError]] = {}
        self._scope: Any = None

    def __enter__(self) -> GovnodeHooks:
        if self._scope is not None:
            raise RuntimeError("govnode: these hooks are in use already: every block wants its own")
        hooks = {point: get_scoped_hooks(point) for point in InterceptionPoint}
        for point, hook in self._hooks.items():
            hooks[point].append(hook)
        self._scope = scoped_hooks(hooks)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.__exit__(kind, error, trace)
        self._scope = None
        if kind is None or not issubclass(kind, asyncio.CancelledError):
            self._give_up()  # a tool of a run that was cancelled goes on in its thread, and is ended there

    def register(self) -> Any:
        """Govern all of the process, and return the hooks. What is registered later could still change arguments."""
        for point, hook in self._hooks.items():
            register_hook(point, hook)
        return self

    def unregister(self) -> None:
        """Take the hooks back."""
        for point, hook in self._hooks.items():
            unregister_hook(point, hook)
        self._give_up()

    # What CrewAI calls.

    def pre_model_call(self, context: Any) -> None:
        """End the run of a session that is killed."""
        killed = self.gate.killed(_crew(context))
        if killed is not None:
            raise HookAborted(str(killed), "govnode") from Killed(killed)

    def pre_tool_call(self, context: Any) -> None:
        """Ask, and put the arguments that are allowed in the place of the others."""
        arguments = context.tool_input
        outcome: Passage | PolicyViolationError
        try:
            outcome = self.gate.enter(context.tool_name, arguments, conversation=_crew(context))
            if outcome.denied is None and outcome.changed:
                changed = outcome.arguments
                arguments.clear()
                arguments.update(changed)
        except PolicyViolationError as e:
            outcome = e
        except Exception as e:
            log.exception("govnode: %s is denied: the adapter failed", context.tool_name)
            raise HookAborted(f"no decision: {e}", "govnode") from e
        with self._lock:
            _, before = self._under_way.get(id(arguments), (None, None))
            self._under_way[id(arguments)] = (arguments, outcome)
        if isinstance(before, Passage):  # no hook was called after it
            before.end_behind("cancelled")
        if isinstance(outcome, PolicyViolationError):
            raise HookAborted(str(outcome), "govnode") from outcome
        if outcome.denied is not None:
            raise HookAborted(outcome.text, "govnode")

    def post_tool_call(self, context: Any) -> str | None:
        """End the call, or tell the model why there was none: it never sees the reason of a HookAborted."""
        with self._lock:
            _, outcome = self._under_way.pop(id(context.tool_input), (None, None))
        if outcome is None:
            return None
        if isinstance(outcome, PolicyViolationError):
            raise HookAborted(str(outcome), "govnode") from outcome
        if outcome.denied is not None:
            return outcome.text
        result = context.tool_result
        if isinstance(result, str) and result.startswith(_BLOCKED):  # by another hook
            outcome.end("cancelled")
        else:
            outcome.end(
                "failed" if isinstance(result, str) and result.lstrip().startswith(_FAILED) else "succeeded", result
            )
        return None if outcome.shown is None else str(outcome.shown)

    def _give_up(self) -> None:
        """End what CrewAI will say nothing of any more: after KeyboardInterrupt it calls no hook."""
        with self._lock:
            left = list(self._under_way.values())
            self._under_way.clear()
        for _, outcome in left:
            if isinstance(outcome, Passage):
                outcome.end_behind("cancelled")


def _crew(context: Any) -> str:
    crew = getattr(context, "crew", None)
    return str(crew.id) if crew is not None else ""
