"""AutoGen: an assistant whose workbenches and handoffs are governed, and a handler for calls between agents.

    from govnode.adapters.autogen import govern_agent

    agent = govern_agent(AssistantAgent("worker", client, tools=[...], max_tool_iterations=10), session)

An AssistantAgent never sends its calls through the runtime, so a handler does not see them. GovnodeHandler is for
agents that do: those that send FunctionCall to a ToolAgent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from .._review import written
from ..errors import Denied
from ._gate import Gate, Killed, Passage, PolicyViolationError, Sessions, missing

try:
    from autogen_core import CancellationToken, DefaultInterventionHandler, FunctionCall
    from autogen_core.models import FunctionExecutionResult
    from autogen_core.tool_agent import ToolException
    from autogen_core.tools import StaticStreamWorkbench, TextResultContent, ToolResult, Workbench
except ImportError as e:
    raise missing("AutoGen", "autogen") from e

log = logging.getLogger("govnode")


class Admitted(Protocol):
    """What runs a tool that may run, and ends its call."""

    async def arun(
        self,
        work: Callable[[], Awaitable[Any]],
        *,
        threaded: bool,
        failed: Callable[[Any], bool],
        seen: Callable[[Any], Any],
        told: Callable[[Any, Any], Any],
    ) -> Any:
        """Run the tool, as ``Passage.arun`` does."""


class WrappedWorkbench(Workbench):
    """Another workbench, or some tools, behind what a subclass asks before each call.

    It is no StaticStreamWorkbench: those are called in a second way. No exception may leave a workbench, or the run of
    its agent never ends: what is to end the run is kept in ``violation``, and raised around the agent.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner if isinstance(inner, Workbench) else StaticStreamWorkbench(list(inner))
        self.violation: PolicyViolationError | None = None
        self._calls: set[asyncio.Future[Any]] = set()

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: Any = None,
        call_id: str | None = None,
    ) -> Any:
        """Ask, run the tool with the arguments that are allowed, and report its end."""
        call = asyncio.ensure_future(self._call(name, arguments, cancellation_token, call_id or ""))
        self._calls.add(call)
        try:
            if cancellation_token is not None:
                cancellation_token.link_future(call)
            return await call
        except asyncio.CancelledError:
            return error_of(name, "cancelled")
        except Exception as e:
            log.exception("govnode: %s failed", name)
            return error_of(name, f"Error: {e}")
        finally:
            self._calls.discard(call)

    async def _call(self, name: str, arguments: Mapping[str, Any] | None, token: Any, call_id: str) -> Any:
        raise NotImplementedError

    async def _run(
        self, admitted: Admitted, name: str, arguments: Mapping[str, Any] | None, token: Any, call_id: str
    ) -> Any:
        """Run a tool that may run."""
        original = getattr(self.inner, "_override_name_to_original", {}).get(name, name)
        threaded = threads(getattr(self.inner, "_tools", ()), original)
        if threaded:
            token = CancellationToken()  # it could cancel the wait for the thread, but not the thread
        return await admitted.arun(
            lambda: self.inner.call_tool(name, arguments, token, call_id),
            threaded=threaded,
            failed=lambda result: bool(result.is_error),
            seen=lambda result: result.to_text(),
            told=_of_workbench,
        )

    def abandon(self) -> None:
        """Cancel the calls that are under way: when a run is cancelled AutoGen lets them run on."""
        for call in list(self._calls):
            call.cancel()

    # The rest is the other workbench's.

    async def list_tools(self) -> Any:
        """List the tools."""
        return await self.inner.list_tools()

    async def start(self) -> None:
        """Start the workbench."""
        await self.inner.start()

    async def stop(self) -> None:
        """Stop the workbench."""
        await self.inner.stop()

    async def reset(self) -> None:
        """Reset the workbench."""
        await self.inner.reset()

    async def save_state(self) -> Any:
        """Save the state of the workbench."""
        return await self.inner.save_state()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the state of the workbench."""
        await self.inner.load_state(state)


class GovnodeWorkbench(WrappedWorkbench):
    """Asks govnode before each call of another workbench, or of some tools, and ends the call with the tool.

    ``session`` is a session, or a function that returns one. The arguments of ``Gate`` may follow. A denial is an
    error of the tool that the model reads. What is to end the run (a session that is killed, ``on_denied="raise"``)
    ``govern_agent`` raises.
    """

    def __init__(self, inner: Any, session: Sessions | Gate, **options: Any) -> None:
        super().__init__(inner)
        self.gate = session if isinstance(session, Gate) else Gate(session, **options)
        #: What the calls of a run have in common: the model gives their ids out anew.
        self.run_id = ""

    async def _call(self, name: str, arguments: Mapping[str, Any] | None, token: Any, call_id: str) -> Any:
        try:
            passage = await self.gate.aenter(name, arguments or {}, call_id=call_id, run_id=self.run_id)
        except PolicyViolationError as e:
            self.violation = e
            return error_of(name, str(e))
        if passage.denied is not None:
            if passage.killed:
                self.violation = Killed(passage.denied)
            return error_of(name, passage.text)
        return await self._run(passage, name, passage.arguments if passage.changed else arguments, token, call_id)


def govern_agent(agent: Any, session: Sessions, **options: Any) -> Any:
    """Let an AssistantAgent ask govnode before each call of a tool and each handoff, and return it.

    The arguments of ``Gate`` may follow. The model reads why a tool is denied. A handoff that is denied, and a session
    that is killed, end the run with PolicyViolationError. What an agent that is used as a tool says on its way is not
    streamed.
    """
    if any(isinstance(bench, GovnodeWorkbench) for bench in agent._workbench):
        raise ValueError(f"govnode: agent {agent.name} is governed already")
    if any(isinstance(bench, WrappedWorkbench) for bench in agent._workbench):
        raise ValueError(f"govnode: agent {agent.name} is guarded already: what guards it could change what was judged")
    gate = Gate(session, **options)
    watch = GovnodeWorkbench([], gate)
    benches = [GovnodeWorkbench(bench, gate) for bench in agent._workbench]
    agent._workbench = benches
    agent._handoff_tools = [_Handoff(tool, watch) for tool in agent._handoff_tools]

    def begin() -> None:
        run_id = gate.draw()
        for bench in (watch, *benches):
            bench.run_id = run_id

    end_with_violations(agent, [watch, *benches], begin, gate.killed)
    return agent


def end_with_violations(
    agent: Any, benches: Sequence[WrappedWorkbench], begin: Callable[[], None], killed: Callable[[], Denied | None]
) -> None:
    """Let the runs of an agent end with what its workbenches came to, and its calls with its runs."""
    inner = agent.on_messages_stream

    def check() -> None:
        for bench in benches:
            if bench.violation is not None:
                raise bench.violation
        if (by := killed()) is not None:
            raise Killed(by)

    async def on_messages_stream(messages: Any, cancellation_token: Any) -> AsyncGenerator[Any, None]:
        for bench in benches:
            bench.violation = None
        check()
        begin()
        events = inner(messages, cancellation_token)
        try:
            async for event in events:
                yield event
                check()
        finally:
            for bench in benches:
                bench.abandon()
            await events.aclose()

    agent.on_messages_stream = on_messages_stream


class _Handoff:
    """The tool of a handoff. That is made by its name, whatever the tool answers, so a denial ends the run."""

    def __init__(self, tool: Any, watch: GovnodeWorkbench) -> None:
        self._tool = tool
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def run_json(self, args: Mapping[str, Any], cancellation_token: Any, call_id: str | None = None) -> Any:
        watch = self._watch
        try:
            passage = await watch.gate.aenter(
                self._tool.name, args, call_id=call_id or "", run_id=watch.run_id, options={"kind": "handoff"}
            )
            if passage.denied is None:
                return await passage.arun(lambda: self._tool.run_json(args, cancellation_token, call_id))
            watch.violation = (Killed if passage.killed else PolicyViolationError)(passage.denied)
        except PolicyViolationError as e:
            watch.violation = e
        return str(watch.violation)


class GovnodeHandler(DefaultInterventionHandler):
    """Governs every FunctionCall that is sent in a runtime.

        handler = GovnodeHandler(session)
        runtime = handler.serve(SingleThreadedAgentRuntime(intervention_handlers=[handler]))

    The verdict is given where the call arrives: in the handler itself a wait would hold up the whole runtime, and the
    end of a call that fails would not be seen. The sender reads a denial as a FunctionExecutionResult. To the sender a
    session that is killed is an error. A FunctionCall that is published is not delivered: nothing could answer it.
    """

    def __init__(self, session: Sessions, **options: Any) -> None:
        self.gate = Gate(session, **options)
        self._runtime: Any = None

    def serve(self, runtime: Any) -> Any:
        """Tell the handler its runtime, and return that."""
        self._runtime = runtime
        return runtime

    async def on_send(self, message: Any, *, message_context: Any, recipient: Any) -> Any:
        """See to it that the recipient of a call is governed."""
        if isinstance(message, FunctionCall):
            if self._runtime is None:
                raise RuntimeError("govnode: the handler does not know its runtime: call handler.serve(runtime)")
            self._govern(await self._runtime.try_get_underlying_agent_instance(recipient))
        return message

    async def on_publish(self, message: Any, *, message_context: Any) -> Any:
        """Keep back calls: an exception here would leave the runtime waiting for ever."""
        return Refused(message.name) if isinstance(message, FunctionCall) else message

    def _govern(self, agent: Any) -> None:
        inner = agent.on_message
        if getattr(inner, "__govnode__", None) is self:
            return

        async def on_message(message: Any, ctx: Any) -> Any:
            if not isinstance(message, FunctionCall):
                return await inner(message, ctx=ctx)
            # As in a workbench, and unlike in a bare runtime, its token cancels the call too, and not the wait alone.
            return await ctx.cancellation_token.link_future(asyncio.ensure_future(_judged(message, ctx)))

        async def _judged(message: Any, ctx: Any) -> Any:
            arguments = _read(message.arguments)
            if arguments is None:
                return _result(message, "Denied by govnode: the arguments are not an object in JSON")
            passage = await self.gate.aenter(message.name, arguments, call_id=message.id, known_by=message)
            if passage.denied is not None:
                if passage.killed:
                    raise Killed(passage.denied)
                return _result(message, passage.text)
            return await _run(passage, message, ctx)

        async def _run(passage: Passage, message: Any, ctx: Any) -> Any:
            if passage.changed:
                message = dataclasses.replace(message, arguments=json.dumps(passage.arguments))
            threaded = threads(getattr(agent, "tools", ()), message.name)
            if threaded:
                ctx = dataclasses.replace(ctx, cancellation_token=CancellationToken())

            async def work() -> Any:
                try:
                    return await inner(message, ctx=ctx)
                except ToolException as e:  # no Exception: it would be taken for a cancellation
                    return e

            result = await passage.arun(
                work,
                threaded=threaded,
                failed=lambda result: not _succeeded(result),
                seen=lambda result: result.content if isinstance(result, _WITH_CONTENT) else result,
                told=lambda result, shown: _of_agent(message, result, written(shown)),
            )
            if isinstance(result, ToolException):
                raise result
            return result

        on_message.__govnode__ = self  # type: ignore[attr-defined]
        agent.on_message = on_message


@dataclasses.dataclass
class Refused:
    """What is published in place of a call: no agent handles it."""

    tool: str


def _read(arguments: str) -> dict[str, Any] | None:
    try:
        read = json.loads(arguments) if arguments else {}
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


def threads(tools: Sequence[Any], name: str) -> bool:
    """Report whether a tool is a synchronous one, which runs on in its thread when the wait for it is cancelled."""
    tool: Any = next((t for t in tools if t.name == name), None)
    tool = getattr(tool, "guarded", tool)
    body = getattr(tool, "_func", None)
    if body is None or getattr(tool, "_has_cancellation_support", False):
        return False
    return not inspect.iscoroutinefunction(body)


def error_of(name: str, text: str) -> Any:
    """Return the result of a tool that the model reads as an error."""
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=True)


class Refusal(FunctionExecutionResult):
    """What the sender of a call reads that was denied."""


def _result(call: Any, text: str) -> Any:
    return Refusal(content=text, call_id=call.id, is_error=True, name=call.name)


def _of_workbench(result: Any, shown: Any) -> Any:
    """Return a result of a workbench with what is to be shown in the place of all its parts."""
    return result.model_copy(update={"result": [TextResultContent(content=written(shown))]})


_WITH_CONTENT = (FunctionExecutionResult, ToolException)


def _of_agent(call: Any, result: Any, text: str) -> Any:
    """Return what an agent answers to a call, with what is to be shown in the place of its content."""
    if isinstance(result, FunctionExecutionResult):
        return result.model_copy(update={"content": text})
    if isinstance(result, ToolException):
        return dataclasses.replace(result, content=text)
    return FunctionExecutionResult(content=text, call_id=call.id, is_error=False, name=call.name)


def _succeeded(result: Any) -> bool:
    return not isinstance(result, ToolException) and not getattr(result, "is_error", False)
