"""The session of a context as the native hooks of a framework use it: everybody here judges first, the service last.

    ctx = kernel.create_context("anna")
    middleware = GovnodeMiddleware(KernelSession(kernel, ctx))

The hooks know the call that they end, so nothing here has to find it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from ..adapters._gate import text_of
from ..client import AsyncCall, AsyncSession
from ..errors import Denied, NoAnswer
from ..messages import Ended
from ._checks import confidence_of
from .admission import Refusal
from .values import ExecutionContext, GovernanceEventType, ToolCallRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options import CallOptions
    from .base import BaseIntegration

T = TypeVar("T")

_MOST_REFUSALS = 1000


class KernelCall(AsyncCall):
    """A call of a context, which follows its end."""

    async def _end(
        self,
        status: str | None,
        output: Any,
        tokens: int | None,
        spent: Mapping[str, str | int | float | Decimal] | None,
    ) -> Ended | None:
        first = not self._settled
        ended = await super()._end(status, output, tokens, spent)
        if first and ended is not None and isinstance(self._session, KernelSession):
            self._session.kernel._ended(self._session.ctx, ended)
        return ended


class KernelSession(AsyncSession):
    """The session of a context of a kernel."""

    def __init__(self, kernel: BaseIntegration, ctx: ExecutionContext) -> None:
        super().__init__(kernel.client._core, ctx.session_id, None, None, None, None, None)
        self.kernel = kernel
        self.ctx = ctx
        #: The latest texts for models that say why something was denied. They may quote what is blocked.
        self.refusals: deque[str] = deque(maxlen=_MOST_REFUSALS)

    async def begin(
        self, tool: str, arguments: Mapping[str, Any] | str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncCall:
        """Have everybody judge a call, and begin it. Raises Denied where somebody here refuses."""
        kernel, ctx, kind = self.kernel, self.ctx, options.get("kind") or "tool"
        given = dict(arguments or {}) if not isinstance(arguments, str) else arguments
        metadata = dict(options.get("metadata") or {})
        request = ToolCallRequest(tool, given, options.get("call_id") or "", ctx.agent_id, metadata)  # type: ignore[arg-type]
        kernel.emit(GovernanceEventType.POLICY_CHECK, {"agent_id": ctx.agent_id, "tool_name": tool})
        try:
            confidence = confidence_of(request)
            _, judged = await self._apart(lambda: kernel._judge(ctx, request, kind, confidence, 0))
            call = await self._ask(request, {**judged, **options})
        except Exception as e:
            why = kernel._failed(e)
            kernel._refuse(ctx, request, kind, why)
            if isinstance(e, Refusal):
                killed = kernel._killed and why.category == "signal"
                denied = Denied("KILLED" if killed else why.category.upper(), why.reason, why.retry_after)
                self.refusals.append(text_of(denied))
                raise denied from e
            raise
        kernel._braked(ctx, call.signal)
        if not call.admitted:
            kernel._refuse(ctx, request, kind, _why(call))
            self.refusals.append(text_of(call.denied()))
            return call
        if request.arguments != given:  # by an interceptor: the framework uses what it is told here
            call._answer = {"modifiedArguments": request.arguments, **call._answer}
        kernel._took(ctx, request, kind, call)
        return call

    async def _ask(self, request: ToolCallRequest, options: Any) -> KernelCall:
        """Begin a call, with an answer of the callback where people are asked and there is one."""
        kernel, core = self.kernel, self._core
        if kernel._approval_callback is None:
            return await core._begin(self, KernelCall, request.tool_name, request.arguments, options)
        at_once: Any = {**options, "approval_wait": 0}
        call = await core._begin(self, KernelCall, request.tool_name, request.arguments, at_once)
        if call.outcome != "APPROVAL_REQUIRED":
            return call
        again: Any = {**options, "call_id": call.id}
        try:
            await self._apart(lambda: kernel._call_back(request, call))
            return await core._begin(self, KernelCall, request.tool_name, request.arguments, again)
        except NoAnswer as e:
            e.pending = True
            raise

    async def _apart(self, work: Callable[[], T]) -> T:
        """Do what blocks: on a thread where there is a loop to leave free."""
        return await asyncio.to_thread(work) if self._core._on_loop else work()


def _why(call: AsyncCall) -> Refusal:
    """Return the answer of the service to a call that it does not admit."""
    denied = call.denied()
    reason = denied.reason or denied.outcome.lower()
    if denied.approval is not None:
        return Refusal(reason, "human_approval_required", denied.approval.id)
    return Refusal(reason, call.decision.category or denied.outcome.lower(), "", denied.retry_after)
