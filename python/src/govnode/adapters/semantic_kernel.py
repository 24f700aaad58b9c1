"""Semantic Kernel: a kernel whose functions are governed.

    from govnode.adapters.semantic_kernel import govern

    agent = ChatCompletionAgent(kernel=govern(kernel, session), service=service)

Two filters make one call. That of the auto function invocation knows what the model calls it, and can end the run; that
of the function invocation judges, since the functions that a program or a template calls pass it alone. It does so
behind all other filters, those that are added later too: nothing changes the arguments after it.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import logging
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from .._review import text_of as text_of_output
from ..errors import Denied
from ._gate import Gate, Killed, Passage, PolicyViolationError, Sessions, missing, text_of

try:
    from semantic_kernel import Kernel
    from semantic_kernel.const import METADATA_EXCEPTION_KEY
    from semantic_kernel.functions import FunctionResult, KernelFunction, KernelFunctionFromMethod
except ImportError as e:
    raise missing("Semantic Kernel", "semantic-kernel") from e

log = logging.getLogger("govnode")

_INVOKE, _STREAM = "_invoke_internal", "_invoke_internal_stream"  # where a function's own work begins


def govern(
    kernel: Any,
    session: Sessions,
    *,
    conversation: Callable[[], str] | None = None,
    qualified: bool = False,
    **options: Any,
) -> Any:
    """Let a kernel ask govnode before each call of a function, and return it. Its clones ask too.

    ``session`` is a session, or a function that returns that of a conversation by its name, which ``conversation``
    tells when a function is called (the ``get`` of a ContextVar): Semantic Kernel has no name for it. The arguments of
    ``Gate`` may follow. With ``qualified`` a tool is ``plugin-function`` in place of ``function``.

    The result of a call that is denied says why. A session that is killed and ``on_denied="raise"`` end the run of the
    model with Killed or PolicyViolationError, and cancel what else the model called at once; a function that a program
    calls raises them.
    """
    filters = (*kernel.auto_function_invocation_filters, *kernel.function_invocation_filters)
    if any(hasattr(f, "__govnode__") for _, f in filters):
        raise ValueError("govnode: this kernel is governed already")
    governor = _Governor(Gate(session, **options), conversation, qualified)

    # Plain functions, since a clone of the kernel has deep copies of all filters that are none.
    async def auto(context: Any, next: Any) -> None:
        await governor.auto(context, next)

    async def function(context: Any, next: Any) -> None:
        await governor.function(context, next)

    auto.__govnode__ = function.__govnode__ = governor  # type: ignore[attr-defined]
    kernel.add_filter("auto_function_invocation", auto)
    kernel.add_filter("function_invocation", function)
    return kernel


class _Turn:
    """One call of a model, from the filter of the auto function invocation on."""

    def __init__(self, governor: _Governor, function: Any, id: str) -> None:
        self.governor = governor
        self.function = function
        self.id = id
        #: Whether its function runs: what that calls are calls of their own.
        self.running = False
        #: What ends the run. Raised before the turn's end it would only be a text for the model.
        self.violation: PolicyViolationError | None = None


_turns: contextvars.ContextVar[_Turn | None] = contextvars.ContextVar("govnode_turn", default=None)


class _Governor:
    """What the two filters do."""

    def __init__(self, gate: Gate, conversation: Callable[[], str] | None, qualified: bool) -> None:
        self._gate = gate
        self._conversation = conversation or str
        self._qualified = qualified
        self._tasks: dict[int, set[asyncio.Task[Any]]] = {}  # of the turns under way, by their chat history

    async def auto(self, context: Any, next: Callable[[Any], Awaitable[None]]) -> None:
        """Note the id of a call of the model, and end the run if it is to end."""
        if not any(getattr(f, "__govnode__", None) is self for _, f in context.kernel.function_invocation_filters):
            lost = Denied("ADAPTER_ERROR", "no decision: the filter of the function invocation is no longer there")
            context.function_result = _refusal(context.function, lost)
            return
        call, outer = context.function_call_content, _turns.get()
        turn = _Turn(self, context.function, (call and call.id) or "")
        task, history = asyncio.current_task(), id(context.chat_history)
        tasks = self._tasks.setdefault(history, set())
        assert task is not None
        tasks.add(task)
        token = _turns.set(turn)
        try:
            await next(context)
        finally:
            _turns.reset(token)
            tasks.discard(task)
            if not tasks:
                self._tasks.pop(history, None)
        if turn.violation is None:
            return
        if outer is not None and outer.governor is self:
            outer.violation = turn.violation
        for other in tasks:
            if _is_call(other):  # left alone it would run on, behind a run that has ended
                other.cancel()
        raise turn.violation

    async def function(self, context: Any, next: Any) -> None:
        """Judge behind the filters that are still to come: they were added later, and could change the arguments."""
        others, work = [], next
        while isinstance(work, functools.partial) and "next" in work.keywords:
            others.append(work)
            work = work.keywords["next"]
        if not isinstance(getattr(work, "__self__", None), KernelFunction) or work.__name__ not in (_INVOKE, _STREAM):
            context.result = _refusal(
                context.function, Denied("ADAPTER_ERROR", "no decision: what would run is unknown")
            )
            return

        async def judge(context: Any) -> None:
            await self._judge(context, work)

        stack: Any = judge
        for other in reversed(others):
            stack = functools.partial(other.func, *other.args, **{**other.keywords, "next": stack})
        await stack(context)

    async def _judge(self, context: Any, work: Any) -> None:
        function, turn = work.__self__, _turns.get()
        if turn is not None and turn.governor is not self:
            turn = None
        given: dict[str, Any] = {}
        conversation = ""
        try:
            given = _arguments(function, context.arguments)
            conversation = self._conversation()
            passage = await self._ask(function, given, turn, conversation)
        except PolicyViolationError as e:
            _end(turn, e)
            context.result = _refusal(function, e.denied)
            return
        except Exception as e:
            log.exception("govnode: %s is denied: the adapter failed", function.name)
            context.result = _refusal(function, Denied("ADAPTER_ERROR", f"no decision: {type(e).__name__}: {e}"))
            return
        if passage.denied is not None:
            if passage.killed:
                _end(turn, Killed(passage.denied))
            context.result = _refusal(function, passage.denied)
            return
        try:
            if work.__name__ == _STREAM:
                await _stream(passage, context, given, work)
            else:
                context.result = await passage.arun(
                    lambda: _run(passage, context, given, work, turn),
                    failed=_failed,
                    seen=_seen,
                    told=_told(function),
                )
        finally:
            if turn is not None and (killed := self._gate.killed(conversation)) is not None:
                turn.violation = Killed(killed)

    async def _ask(self, function: Any, given: dict[str, Any], turn: _Turn | None, conversation: str) -> Passage:
        name = function.fully_qualified_name if self._qualified else function.name
        kind = "handoff" if _is_handoff(function) else "tool"
        named = turn is not None and not turn.running and turn.function is function
        id = turn.id if turn is not None and named else ""
        return await self._gate.aenter(name, given, call_id=id, conversation=conversation, options={"kind": kind})


def _end(turn: _Turn | None, violation: PolicyViolationError) -> None:
    """See to it that a run ends. What the model called itself must not raise: the model would only read that."""
    if turn is not None:
        turn.violation = violation
    if turn is None or turn.running:
        raise violation


async def _run(passage: Passage, context: Any, given: dict[str, Any], work: Any, turn: _Turn | None) -> Any:
    _change(passage, context, given, work.__self__)
    if turn is None:
        await work(context)
        return context.result
    before, turn.running = turn.running, True
    try:
        await work(context)
    finally:
        turn.running = before
    return context.result


async def _stream(passage: Passage, context: Any, given: dict[str, Any], work: Any) -> None:
    """Get the values that a function yields. It runs as they are read: its call ends with them."""
    try:
        _change(passage, context, given, work.__self__)
        await work(context)
    except Exception as e:
        await passage.afail(e)
        raise
    except BaseException:
        passage.end_behind("cancelled")
        raise
    result = context.result
    values = None if result is None else result.value
    if not inspect.isasyncgen(values) and not inspect.isgenerator(values):
        await passage.aend("succeeded", _seen(result))
        if passage.shown is not None:
            context.result = _told(work.__self__)(result, passage.shown)
        return
    result.value = governed = _whole(passage, values)
    weakref.finalize(governed, passage.end_behind, "cancelled")  # if nobody begins to read them


async def _whole(passage: Passage, values: Any) -> AsyncGenerator[Any, None]:
    """Yield what a function yields, and end its call with it. What rules look at is held back until they have."""
    held = []
    try:
        if inspect.isasyncgen(values):
            async for value in values:
                if passage.reviews:
                    held.append(value)
                else:
                    yield value
        else:
            for value in values:
                if passage.reviews:
                    held.append(value)
                else:
                    yield value
    except Exception as e:
        await passage.afail(e)
        raise
    except BaseException:
        try:
            await values.aclose() if inspect.isasyncgen(values) else values.close()
        finally:
            passage.end_behind("cancelled")
        raise
    await passage.aend("succeeded", "".join(map(text_of_output, held)) if held else None)
    for value in held if passage.shown is None else [passage.shown]:
        yield value


def _seen(result: Any) -> Any:
    """Return the whole value of a result: its text is that of the first or the last of several alone."""
    return result.value if isinstance(result, FunctionResult) else result


def _told(function: Any) -> Callable[[Any, Any], Any]:
    """Return what makes a result of what rules left of one."""
    return lambda result, shown: FunctionResult(function=function.metadata, value=shown)


def _arguments(function: Any, arguments: Any) -> dict[str, Any]:
    """Return the arguments that a function takes. Those of its whole run are at hand too: only some take them all."""
    names = {p.name for p in function.parameters}
    if not isinstance(function, KernelFunctionFromMethod) or "arguments" in names:
        return dict(arguments)
    return {k: v for k, v in arguments.items() if k in names and k not in ("kernel", "service", "execution_settings")}


def _change(passage: Passage, context: Any, given: dict[str, Any], function: Any) -> None:
    """Put in the arguments that are allowed. Those of the caller stay as they are."""
    now = _arguments(function, context.arguments)
    if now.keys() != given.keys() or any(now[name] is not value for name, value in given.items()):
        raise RuntimeError(f"govnode: {function.name} does not run: its arguments changed while they were judged")
    if passage.changed:
        changed = copy.copy(context.arguments)
        for name in given:
            del changed[name]
        changed.update(passage.arguments)
        context.arguments = changed


def _refusal(function: Any, denied: Denied) -> Any:
    return FunctionResult(function=function.metadata, value=text_of(denied), metadata={"govnode": denied.outcome})


def _failed(result: Any) -> bool:
    return result is not None and METADATA_EXCEPTION_KEY in result.metadata


def _is_handoff(function: Any) -> bool:
    """Report whether a function is one by which an orchestration hands over. A name could be that of any tool."""
    method = getattr(getattr(function, "method", None), "func", None)
    of = (getattr(method, "__module__", ""), getattr(method, "__qualname__", ""))
    return of == ("semantic_kernel.agents.orchestration.handoffs", "HandoffAgentActor._handoff_to_agent")


def _is_call(task: asyncio.Task[Any]) -> bool:
    """Report whether a task is one call of a model, and nothing else."""
    return getattr(task.get_coro(), "cr_code", None) is Kernel.invoke_function_call.__code__
