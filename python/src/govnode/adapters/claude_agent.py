"""Claude Agent SDK: a client and a query whose tools are governed, and the hooks that both of them use.

    from govnode.adapters.claude_agent import GovnodeClient, governed_query

    async with GovnodeClient(options, session) as client:
        ...
    async for message in governed_query(prompt="go", options=options, session=session):
        ...

The CLI runs all hooks of a call at once, with the arguments that the model gave: what a hook beside this one puts in
their place would not be judged, so that is denied. And no hook is told of a call that was interrupted: the messages
tell of it, so these are looked through.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import Denied
from ._gate import Gate, Passage, PolicyViolationError, Sessions, missing

try:
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        ClaudeSDKClient,
        HookMatcher,
        PermissionResultAllow,
        PermissionResultDeny,
        ResultMessage,
        TaskNotificationMessage,
        TaskUpdatedMessage,
        ToolResultBlock,
        UserMessage,
    )
except ImportError as e:
    raise missing("Claude Agent SDK", "claude-agent") from e

if TYPE_CHECKING:
    from .._options import CallOptions

log = logging.getLogger("govnode")

Hook = Callable[[Any, "str | None", Any], Awaitable[Any]]

_BEYOND_WAITING = 60.0  # what the CLI gives a hook beside the time that it may wait
_LONGEST = 2_000_000.0  # the CLI counts milliseconds in 31 bits
_CHANGED = "Denied by govnode: a hook has changed the arguments, which nothing would judge: pass it in before=[...]"


@dataclass
class _Call:
    """A call that was admitted, and is not known to have ended."""

    passage: Passage
    tool: str
    arguments: dict[str, Any]  # that may run
    session_id: str
    agent_id: str  # of a subagent


class GovnodeHooks:
    """What one connection asks govnode, and which of its calls are under way.

        with GovnodeHooks(session) as hooks:
            async with ClaudeSDKClient(hooks.govern(options)) as client:
                async for message in hooks.watch(client.receive_response()):
                    ...

    ``session`` is a session, or a function that returns that of a conversation by the CLI's ``session_id``. The
    arguments of ``Gate`` may follow. ``before`` are hooks that may change the arguments of a call: they run one after
    the other, and what they leave is judged. ``names`` makes the name that policies know of the CLI's name of a tool.
    """

    def __init__(
        self,
        session: Sessions,
        *,
        before: Sequence[Hook] = (),
        names: Callable[[str], str] = str,
        wait: float = 10.0,
        approval_wait: float = 0.0,
        **options: Any,
    ) -> None:
        self.gate = Gate(session, wait=wait, approval_wait=approval_wait, **options)
        self._before = tuple(before)
        self._names = names
        self._timeout = min(wait + approval_wait + _BEYOND_WAITING, _LONGEST)
        self._calls: dict[str, _Call] = {}
        self._released = 0
        self._violation: PolicyViolationError | None = None

    # The options.

    def govern(self, options: Any = None) -> Any:
        """Return options that ask before each tool, for one connection at a time."""
        options = options or ClaudeAgentOptions()
        if options.permission_prompt_tool_name:
            raise ValueError("govnode: a permission_prompt_tool_name may change arguments, which nothing would judge")
        hooks = {event: list(matchers) for event, matchers in (options.hooks or {}).items()}
        hooks_given = [hook for matchers in hooks.values() for m in matchers for hook in m.hooks]
        if any(isinstance(getattr(hook, "__self__", None), GovnodeHooks) for hook in hooks_given):
            raise ValueError("govnode: these options are governed already")
        for event, wrap in (("PreToolUse", _unchanging), ("PermissionRequest", self._judging)):
            hooks[event] = [replace(m, hooks=[wrap(h) for h in m.hooks]) for m in hooks.get(event, ())]
        ours: dict[str, Hook] = {
            "PreToolUse": self._begin,
            "PostToolUse": self._end,
            "PostToolUseFailure": self._end,
            "PostToolBatch": self._end_batch,
            "SubagentStop": self._stop_subagent,
            "Stop": self._stop,
            "UserPromptSubmit": self._prompt,
        }
        for event, hook in ours.items():
            matcher = HookMatcher(matcher=None, hooks=[hook], timeout=self._timeout)
            if event == "PreToolUse":
                matcher.on_failure = "block"  # or the tool runs when the hook fails
            hooks[event] = [*hooks.get(event, ()), matcher]
        permit = options.can_use_tool
        return replace(
            options,
            hooks={event: matchers for event, matchers in hooks.items() if matchers},
            can_use_tool=self._permitting(permit) if permit is not None else None,
        )

    # The hooks.

    async def _begin(self, data: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """Ask before a tool runs. What is admitted still needs the permission that it needs without us."""
        try:
            arguments, output = await self._ask_others(data, tool_use_id, context)
            said = {"hookEventName": "PreToolUse", **output.pop("hookSpecificOutput", {})}
            if output.get("decision") == "block" or said.get("permissionDecision") in ("deny", "defer"):
                return {**output, "hookSpecificOutput": said}
            id, agent_id = data["tool_use_id"], data.get("agent_id") or ""
            denied = await self._judge(data["tool_name"], arguments, id, data["session_id"], agent_id)
            if denied is None:
                allowed = self._calls[id].arguments
                if not _same(allowed, data["tool_input"]):
                    said["updatedInput"] = allowed
                return {**output, "hookSpecificOutput": said}
        except Exception as e:
            log.exception("govnode: a call is denied: the adapter failed")
            denied = f"Denied by govnode: no decision: {type(e).__name__}: {e}"
        said = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": denied}
        return {**self._verdict(data["session_id"]), "hookSpecificOutput": said}

    async def _ask_others(self, data: Any, tool_use_id: str | None, context: Any) -> tuple[Any, dict[str, Any]]:
        """Return the arguments that the hooks before us leave, and what they answered beside."""
        arguments = data["tool_input"]
        answer: dict[str, Any] = {}
        said: dict[str, Any] = {}
        for hook in self._before:
            given = {**data, "tool_input": copy.deepcopy(arguments)}  # what a hook changes in place does not count
            output = dict(await hook(given, tool_use_id, context) or {})
            says = dict(output.pop("hookSpecificOutput", None) or {})
            changed = says.pop("updatedInput", None)
            arguments = arguments if changed is None else copy.deepcopy(changed)
            if says.get("permissionDecision") not in (None, "allow", "ask", "deny", "defer"):
                raise ValueError(f"a hook decided {says['permissionDecision']!r}")
            answer, said = {**answer, **output}, {**said, **says}
            if answer.get("decision") == "block" or said.get("permissionDecision") in ("deny", "defer"):
                break
        return arguments, {**answer, "hookSpecificOutput": said}

    async def _judge(self, tool: str, arguments: dict[str, Any], id: str, session_id: str, agent_id: str) -> str | None:
        """Begin a call, or return what the model is to read."""
        if self._violation is not None:
            return str(self._violation)
        self._give_back(id)
        connection = self._released
        try:
            passage = await self.gate.aenter(
                self._names(tool), arguments, call_id=id, run_id=session_id, conversation=session_id
            )
        except PolicyViolationError as e:
            self._violation = e
            return str(e)
        if passage.denied is not None:
            return passage.text
        if connection != self._released:  # nothing would end it
            passage.end_behind("cancelled")
            return "Denied by govnode: the connection is closed"
        allowed = passage.arguments if passage.changed else dict(arguments)
        self._calls[id] = _Call(passage, tool, allowed, session_id, agent_id)
        return None

    async def _end(self, data: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """End a call with its tool."""
        call = self._calls.pop(data["tool_use_id"], None)
        if call is not None:
            if not _same(data["tool_input"], call.arguments):
                log.error(
                    "govnode: %s ran with other arguments than were judged: is there a hook in a file?", call.tool
                )
            if data["hook_event_name"] == "PostToolUse":
                response = data.get("tool_response")
                await call.passage.aend("succeeded", _said(response))
                if call.passage.shown is not None:
                    shown = {"updatedToolOutput": _shaped(response, call.passage.shown)}
                    return {
                        **self._verdict(data["session_id"]),
                        "hookSpecificOutput": {"hookEventName": "PostToolUse", **shown},
                    }
            elif data.get("is_interrupt"):
                await call.passage.aend("cancelled")
            else:
                await call.passage.aend("failed", data.get("error") if call.passage.reviews else None)
                if call.passage.shown is not None:  # a hook cannot show another error, so the run ends
                    self._violation = PolicyViolationError(Denied("OUTPUT_REVIEWED", str(call.passage.shown)))
        return self._verdict(data["session_id"])

    async def _end_batch(self, data: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """Give back what is left of a turn: calls that others denied."""
        for call in data.get("tool_calls") or ():
            self._give_back(call["tool_use_id"])
        return self._verdict(data["session_id"])

    async def _stop(self, data: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """Give back what is left of the main agent. Subagents may go on."""
        self._give_back_of("")
        return {}

    async def _stop_subagent(self, data: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        self._give_back_of(data["agent_id"])
        return {}

    async def _prompt(self, data: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        return self._verdict(data["session_id"])

    def _verdict(self, session_id: str) -> dict[str, Any]:
        """Return what ends the run, if it is to end."""
        denied: Denied | PolicyViolationError | None = self._violation or self.gate.killed(session_id)
        return {"continue_": False, "stopReason": str(denied)} if denied is not None else {}

    # What others change.

    def _judging(self, hook: Hook) -> Hook:
        """Judge what a hook of permissions changes: it is asked after us."""

        async def judged(data: Any, tool_use_id: str | None, context: Any) -> Any:
            given = copy.deepcopy(data["tool_input"])
            output = await hook(data, tool_use_id, context)
            said = (output.get("hookSpecificOutput") or {}) if isinstance(output, Mapping) else {}
            decision = said.get("decision") or {}
            changed = decision.get("updatedInput")
            if changed is None or _same(changed, given):
                return output
            denied, allowed = await self._judge_anew(tool_use_id, changed)
            decision = {**decision, "updatedInput": allowed}
            if denied is not None:
                decision = {"behavior": "deny", "message": denied}
            return {**output, "hookSpecificOutput": {**said, "decision": decision}}

        return judged

    def _permitting(self, permit: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Judge what ``can_use_tool`` changes: it is asked after us."""

        async def permitting(tool: str, arguments: dict[str, Any], context: Any) -> Any:
            given = copy.deepcopy(arguments)
            result = await permit(tool, arguments, context)
            if not isinstance(result, PermissionResultAllow):
                return result
            changed = arguments if result.updated_input is None else result.updated_input  # or changed in place
            if _same(changed, given):
                return result
            denied, allowed = await self._judge_anew(context.tool_use_id, changed)
            return (
                PermissionResultDeny(message=denied) if denied is not None else replace(result, updated_input=allowed)
            )

        return permitting

    async def _judge_anew(self, id: str | None, arguments: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
        call = self._calls.get(id or "")
        if id is None or call is None:
            return _CHANGED, {}
        denied = await self._judge(call.tool, arguments, id, call.session_id, call.agent_id)
        return denied, self._calls[id].arguments if denied is None else {}

    # What was torn down.

    async def watch(self, messages: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Pass messages on, and give back the slots of calls that, by what these say, are over.

        With ``on_denied="raise"`` this raises PolicyViolationError, where the run has ended.
        """
        last = None
        try:
            async for last in messages:
                self._look(last)
                yield last
        except PolicyViolationError:
            raise
        except Exception:
            self.release()
            raise
        if not isinstance(last, ResultMessage):  # after a result the connection may go on
            self.release()

    def _look(self, message: Any) -> None:
        if isinstance(message, UserMessage) and isinstance(message.content, list):
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    self._give_back(block.tool_use_id)
        elif isinstance(message, TaskNotificationMessage | TaskUpdatedMessage):
            if message.status in ("failed", "stopped", "killed"):
                self._give_back_of(message.task_id)  # a subagent is the task of its id
        elif isinstance(message, ResultMessage):
            if message.deferred_tool_use is not None:
                self._give_back(message.deferred_tool_use.id)
            if self._violation is not None:
                violation, self._violation = self._violation, None
                raise violation

    def release(self) -> None:
        """Give back all that is under way: the connection is closed."""
        self._released += 1
        for id in list(self._calls):
            self._give_back(id)

    def __enter__(self) -> GovnodeHooks:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _give_back_of(self, agent_id: str) -> None:
        for id in [id for id, call in self._calls.items() if call.agent_id == agent_id]:
            self._give_back(id)

    def _give_back(self, id: str) -> None:
        call = self._calls.pop(id, None)
        if call is not None:
            call.passage.end_behind("cancelled")


class GovnodeClient(ClaudeSDKClient):
    """A ClaudeSDKClient whose tools are governed.

    The other arguments are those of ``GovnodeHooks``, whose ``options`` are ``call_options`` here.
    """

    def __init__(
        self,
        options: Any,
        session: Sessions,
        *,
        transport: Any = None,
        call_options: CallOptions | None = None,
        **gate_options: Any,
    ) -> None:
        self.hooks = GovnodeHooks(session, options=call_options, **gate_options)
        super().__init__(self.hooks.govern(options), transport)

    async def receive_messages(self) -> AsyncGenerator[Any, None]:
        """Receive all messages, as ``GovnodeHooks.watch`` does."""
        async for message in self.hooks.watch(super().receive_messages()):
            yield message

    async def disconnect(self) -> None:
        """Disconnect, and give all slots back."""
        try:
            await super().disconnect()
        finally:
            self.hooks.release()


async def governed_query(
    *, prompt: str | AsyncIterable[dict[str, Any]], options: Any = None, session: Sessions, **client_options: Any
) -> AsyncGenerator[Any, None]:
    """Do what ``query`` does, with governed tools. The other arguments are those of ``GovnodeClient``.

    A ``query`` that is left early is torn down by the loop, some time later: this one is when it is closed, so that its
    tools have ended when the slots are back.
    """
    client = GovnodeClient(options, session, **client_options)
    try:
        await client.connect(_prompts(prompt) if isinstance(prompt, str) else prompt)
        async for message in client.receive_messages():
            yield message
    finally:
        await client.disconnect()


async def _prompts(prompt: str) -> AsyncGenerator[dict[str, Any], None]:
    """Yield a prompt: after the last that is yielded the CLI ends."""
    message = {"role": "user", "content": prompt}
    yield {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": ""}


def _unchanging(hook: Hook) -> Hook:
    """Deny what a hook beside ours changes."""

    async def unchanging(data: Any, tool_use_id: str | None, context: Any) -> Any:
        given = copy.deepcopy(data["tool_input"])
        output = await hook(data, tool_use_id, context)
        said = (output.get("hookSpecificOutput") or {}) if isinstance(output, Mapping) else {}
        changed = said.get("updatedInput")
        if changed is None or _same(changed, given):
            return output
        denial = {"permissionDecision": "deny", "permissionDecisionReason": _CHANGED}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **denial}}

    return unchanging


def _same(one: Any, other: Any) -> bool:
    """Compare arguments as the CLI reads them, where 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _shaped(response: Any, shown: Any) -> Any:
    """Return what is to be shown in the shape of a tool's own response: the CLI keeps the response otherwise."""
    if isinstance(response, Mapping) and isinstance(shown, Mapping):
        return shown
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    if isinstance(response, list):
        return [{"type": "text", "text": text}]
    if not isinstance(response, Mapping):
        return text
    left = [text]  # for the first text of the response; the others are taken away

    def shape(value: Any) -> Any:
        if isinstance(value, str):
            return left.pop() if left else ""
        if isinstance(value, Mapping):
            return {name: shape(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [shape(inner) for inner in value]
        return None if value is None else type(value)()  # the kind counts: of a number nothing is left

    return shape(response)


def _said(response: Any) -> Any:
    """Return the text of what a tool of an MCP server answered."""
    if not isinstance(response, list):
        return response
    return "\n".join(
        str(b["text"]) if isinstance(b, Mapping) and b.get("type") == "text" and "text" in b else str(b)
        for b in response
    )
