"""Google ADK: a plugin for an app.

    from govnode.adapters.google_adk import GovnodePlugin

    app = App(name="writer", root_agent=agent, plugins=[*others, GovnodePlugin(session)])

What is judged is what runs: a call whose arguments someone could still change after this plugin is denied.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from ._gate import Gate, Killed, Passage, Sessions, missing

try:
    from google.adk.agents import LlmAgent
    from google.adk.plugins.base_plugin import BasePlugin
    from pydantic_core import to_jsonable_python
except ImportError as e:
    raise missing("Google ADK", "google-adk") from e


class GovnodePlugin(BasePlugin):
    """Asks govnode before each tool call, and ends the call with the tool.

    ``session`` is a session, or a function that returns that of an ADK session by its id. The arguments of ``Gate`` may
    follow. The model reads why a call is denied, as the tool's ``error``. The run of a session that is killed ends with
    a RuntimeError, whose cause is Killed.

    A plugin after this one that has a ``before_tool_callback``, and an agent that has one of its own, could change what
    was judged: calls that they would see are denied. Make the agent's one a plugin, and put this one last. What a tool
    returns it is shown first all the same, and what rules have changed of that no other is asked about.
    """

    def __init__(self, session: Sessions, *, name: str = "govnode", **options: Any) -> None:
        super().__init__(name=name)
        self.gate = Gate(session, **options)
        self._open: dict[int, tuple[Any, Passage]] = {}  # by the context, of which all hooks of a call are given one

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        """End the run of a session that is killed."""
        killed = self.gate.killed(callback_context.session.id)
        if killed is not None:
            raise Killed(killed)

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        """Ask, and put the arguments that are allowed in the place of the others. An answer is one for the model."""
        try:
            behind = self._behind(tool_context)
            self._stand_first(tool_context._invocation_context.plugin_manager)
        except Exception as e:  # the framework is not as it is known: then nobody knows what would run
            behind = f"{type(e).__name__}: {e}"
        if behind:
            return {"error": f"Denied by govnode: {behind}"}
        passage = await self.gate.aenter(
            tool.name,
            tool_args,
            call_id=tool_context.function_call_id or "",
            # Not the invocation: a call that a person confirms comes again in another.
            run_id=f"{tool_context.session.user_id}/{tool_context.session.id}",
            conversation=tool_context.session.id,
        )
        if passage.denied is not None:
            if passage.killed:
                raise Killed(passage.denied)
            return {"error": passage.text}
        if passage.changed:
            changed = passage.arguments
            tool_args.clear()
            tool_args.update(changed)
        self._open[id(tool_context)] = (tool_context, passage)
        task = asyncio.current_task()
        if task is not None:  # a hook that breaks keeps those below from this one
            task.add_done_callback(lambda done: self._left(tool_context, done))
        return None

    async def after_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any) -> Any:
        """End the call, unless it waits for a person to confirm it: then the same call comes again."""
        passage = self._take(tool_context)
        if passage is None:  # it was denied
            return None
        asked = tool_context.actions.requested_tool_confirmations
        if tool_context.tool_confirmation is None and tool_context.function_call_id in asked:
            passage._interrupted()
            return None
        try:
            output = passage.output(seen, result)
        except Exception as e:
            await passage.afail(e)
            raise
        await passage.aend("succeeded", output)
        if passage.shown is None:
            return None
        return passage.shown if isinstance(passage.shown, dict) else {"result": passage.shown}

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, error: BaseException
    ) -> Any:
        """End the call of a tool that failed, of one that is not there, or of one that is cancelled."""
        passage = self._take(tool_context)
        if passage is None:
            return None
        if isinstance(error, Exception):
            await passage.aend("failed", passage._error_of(error))
            if passage.shown is not None:
                return {"error": str(passage.shown)}
        elif _threaded(tool, tool_context):
            _lapse(passage)
        else:
            passage.end_behind("cancelled")
        return None

    def _behind(self, tool_context: Any) -> str:
        """Return who could change the arguments after this plugin."""
        context = tool_context._invocation_context
        if isinstance(context.agent, LlmAgent) and context.agent.canonical_before_tool_callbacks:
            return f"agent {context.agent.name} has a before_tool_callback, which could change what was judged"
        plugins = context.plugin_manager.plugins
        for plugin in plugins[plugins.index(self) + 1 :]:
            own = getattr(plugin.before_tool_callback, "__func__", None)
            if own is not BasePlugin.before_tool_callback:
                return f"plugin {plugin.name} stands behind this one, and could change what was judged"
        return ""

    def _stand_first(self, manager: Any) -> None:
        """See to it that no plugin is given an output before this one, which is last: ADK stops at one that answers."""
        if not any(isinstance(p, _First) and p.of is self for p in manager.plugins):
            manager.plugins = [_First(self), *manager.plugins]  # a new list: who goes through the old one goes on

    def _take(self, tool_context: Any) -> Passage | None:
        return self._open.pop(id(tool_context), (None, None))[1]

    def _left(self, tool_context: Any, task: asyncio.Task[Any]) -> None:
        """End a call whose end no hook has told."""
        passage = self._take(tool_context)
        if passage is not None:
            failed = not task.cancelled() and task.exception() is not None
            passage.end_behind("cancelled" if task.cancelled() else "failed" if failed else "succeeded")


class _First(BasePlugin):
    """Hands on what the tools of a plugin return, before any other is asked about it."""

    def __init__(self, of: GovnodePlugin) -> None:
        super().__init__(name=f"{of.name}_first_{id(of)}")  # ADK wants each name once
        self.of = of

    async def after_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any) -> Any:
        """Have a call ended that the plugin has admitted."""
        if id(tool_context) not in self.of._open:
            return None
        return await self.of.after_tool_callback(
            tool=tool, tool_args=tool_args, tool_context=tool_context, result=result
        )


def seen(result: Any) -> Any:
    """Return what a model sees of a result: all of it, as JSON."""
    return to_jsonable_python(result, bytes_mode="base64", serialize_unknown=True)


def _threaded(tool: Any, tool_context: Any) -> bool:
    """Report whether a tool may run on in a thread when its task is cancelled."""
    config = getattr(tool_context._invocation_context, "run_config", None)
    if getattr(config, "tool_thread_pool_config", None) is None:
        return False
    return not inspect.iscoroutinefunction(getattr(tool, "func", None))


def _lapse(passage: Passage) -> None:
    """Renew a call no longer. Nothing tells when its thread ends: until the lease is over it keeps its slot."""
    call, passage.call = passage.call, None
    if call is not None and call._lease is not None and call._live.keeper.ended(call._lease):
        call._live.keeper.forget(call._lease)
