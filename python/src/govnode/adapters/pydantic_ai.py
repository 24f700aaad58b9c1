"""PydanticAI: a capability for tools, and a limiter for agents and models.

    from govnode.adapters.pydantic_ai import GovnodeCapability, GovnodeLimiter

    agent = Agent(model, capabilities=[GovnodeCapability(session)], max_concurrency=GovnodeLimiter(client, "agents"))

The capability judges innermost, wherever it stands in the list: nothing changes the arguments after it.
"""

from __future__ import annotations

import contextvars
import threading
from dataclasses import replace
from typing import Any

from .._behind import releasing
from .._calls import HeldSlot
from ..client import AsyncClient, AsyncSlot, Client
from ..errors import Denied
from ._gate import Gate, Killed, Passage, Sessions, missing, on_loop, text_of

try:
    from pydantic_ai import ApprovalRequired, CallDeferred, ToolFailed, ToolReturn
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.concurrency import AbstractConcurrencyLimiter
    from pydantic_ai.exceptions import ConcurrencyLimitExceeded
    from pydantic_core import to_jsonable_python
except ImportError as e:
    raise missing("PydanticAI", "pydantic-ai") from e

# The call that is being executed, by whom that is wrapped: what is admitted inside is ended outside.
_executed: contextvars.ContextVar[dict[int, Passage] | None] = contextvars.ContextVar("govnode_executed", default=None)


class GovnodeCapability(AbstractCapability):
    """Asks govnode before each tool call, and ends the call with the tool.

    ``session`` is a session, or a function that returns that of a conversation by its id. The arguments of ``Gate`` may
    follow. A denial is a ToolFailed: the model reads it, and it uses up no retry. The run of a session that is killed
    ends with Killed.
    """

    def __init__(self, session: Sessions, **options: Any) -> None:
        self.gate = Gate(session, **options)

    def get_ordering(self) -> Any:
        """Stand innermost."""
        return CapabilityOrdering(position="innermost")

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """End the run of a session that is killed."""
        killed = self.gate.killed(ctx.conversation_id or "")
        if killed is not None:
            raise Killed(killed)
        return request_context

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """End the call that is begun inside, however the tool ends. Arguments may still change here."""
        passage = Passage(self.gate, args)
        token = _executed.set({**(_executed.get() or {}), id(self): passage})
        try:
            return await passage.arun(
                lambda: handler(args),
                threaded=_threaded(ctx, call.tool_name),
                interrupts=(ApprovalRequired, CallDeferred),
                seen=seen,
                told=_told,
            )
        finally:
            _executed.reset(token)

    async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        """Ask, and return the arguments that are allowed."""
        outer = (_executed.get() or {}).get(id(self))
        if outer is None:
            raise ToolFailed("Denied by govnode: nothing would end this call")
        passage = await self.gate.aenter(
            call.tool_name,
            args,
            call_id=call.tool_call_id or "",
            run_id=ctx.conversation_id or ctx.run_id or "",
            conversation=ctx.conversation_id or "",
        )
        if passage.denied is not None:
            raise self._refusal(passage.denied, passage.killed, call.tool_name, args)
        outer.call, outer.ways, outer.base = passage.call, passage.ways, passage.base
        return passage.arguments if passage.changed else args

    def _refusal(self, denied: Denied, killed: bool, tool: str, args: Any) -> Exception:
        """Return what is raised for a call that is denied."""
        return Killed(denied) if killed else ToolFailed(text_of(denied))


def seen(result: Any) -> Any:
    """Return what a model sees of a result: as JSON, and of a ToolReturn its content too."""
    if isinstance(result, ToolReturn):
        return seen(result.return_value) if result.content is None else seen([result.return_value, result.content])
    return to_jsonable_python(result, by_alias=True, bytes_mode="base64", serialize_unknown=True)


def _told(result: Any, shown: Any) -> Any:
    return replace(result, return_value=shown, content=None) if isinstance(result, ToolReturn) else shown


def _threaded(ctx: Any, name: str) -> bool:
    """Report whether a tool is a synchronous one, which runs on in its thread when its task is cancelled."""
    tool: Any = (getattr(ctx.tool_manager, "tools", None) or {}).get(name)
    while hasattr(tool, "source_tool"):  # of several toolsets put together
        tool = tool.source_tool
    return getattr(tool, "is_async", True) is False


class GovnodeLimiter(AbstractConcurrencyLimiter):
    """Takes a slot of a pool for each run of an agent, or each request of a model, in the whole fleet.

    ``wait`` is how long one waits for a slot; after that ConcurrencyLimitExceeded ends the run.
    """

    def __init__(self, client: Client | AsyncClient, pool: str, *, wait: float = 10.0) -> None:
        self._client = on_loop(client)
        self._pool = pool
        self._wait = wait
        self._lock = threading.Lock()
        self._held: list[HeldSlot] = []  # they are alike, and may be given back by other tasks than took them

    async def acquire(self, source: str) -> None:
        """Take a slot, or wait for one."""
        try:
            slot = await self._client._acquire(AsyncSlot, self._pool, {"wait": self._wait, "label": source[:64]})
        except Denied as e:
            raise ConcurrencyLimitExceeded(text_of(e)) from e
        with self._lock:
            self._held.append(slot)

    def release(self) -> None:
        """Give a slot back, behind the caller."""
        with self._lock:
            slot = self._held.pop()
        lease, keeper = slot._lease, slot._live.keeper
        if lease is None or slot._elsewhere() or not keeper.ended(lease):
            return
        keeper.later(releasing(lease.release(slot._live.name)["release"]), max(lease.ttl, 1.0))
        keeper.forget(lease)
