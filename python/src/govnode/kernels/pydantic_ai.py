"""PydanticAI by the adapter contract (section 15): a capability, approvals, and the wrap that it takes the place of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ..errors import Denied
from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError
from ..integration.hooks import KernelSession
from ._wrapped import Wrapped

try:
    from pydantic_ai import ToolFailed

    from ..adapters.pydantic_ai import GovnodeCapability, seen

    _HAS_CAPABILITY = True
except ImportError:
    GovnodeCapability = object  # type: ignore[assignment,misc]
    _HAS_CAPABILITY = False


class HumanApprovalRequired(PolicyViolationError):
    """People have to say yes to a call first, and have not (section 15.3).

    ``approval_id`` names what they are asked on the service; it is empty where the policy asks nobody. The same call,
    in the same session, goes on after the yes.
    """

    def __init__(self, tool_name: str, arguments: dict[str, Any], approval_id: str = "") -> None:
        message = f"Tool '{tool_name}' requires human approval"
        if approval_id:
            message += f" (approval {approval_id})"
        super().__init__(message, category="human_approval_required", tool_name=tool_name)
        self.arguments = arguments
        self.approval_id = approval_id


class PydanticAIKernel(FrameworkKernel):
    """Governs PydanticAI agents (section 15.1). Further options are those of BaseIntegration.

    ``approval_callback`` decides with the ``approver``, a client that may approve: the agent itself may not.
    """

    backend = "pydantic-ai"
    framework = "pydantic_ai"
    install = "govnode[pydantic-ai]"
    replacement = "as_capability"

    def __init__(
        self,
        policy: Any = None,
        approval_callback: Callable[[str, dict[str, Any]], bool] | None = None,
        evaluator: Any | None = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, evaluator, approval_callback=approval_callback, **options)

    def as_capability(self, agent_id: str = "pydantic-ai", session_id: str | None = None, **options: Any) -> Any:
        """Return what goes into ``Agent(capabilities=[...])`` (section 15.2). It is one session.

        The arguments of ``Gate`` may follow. The model reads why a call is denied. One that people have to be asked
        about, and have not said yes to, ends the run with HumanApprovalRequired.
        """
        self._require()
        return GovernanceCapability(self, self.create_context(agent_id, session_id), **options)

    def wrap(self, agent: Any, agent_id: str = "pydantic-ai", session_id: str | None = None) -> Any:
        """Return an agent whose runs are checked, and whose tools are governed; a denial ends the run. Deprecated."""
        self._deprecate()
        return GovernedAgent(self, agent, self.create_context(agent_id, session_id))

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was wrapped."""
        return governed_agent._agent if isinstance(governed_agent, GovernedAgent) else governed_agent


class GovernanceCapability(GovnodeCapability):
    """Asks before each call of a tool, and has what the tool gave looked at."""

    def __init__(self, kernel: PydanticAIKernel, ctx: ExecutionContext, **options: Any) -> None:
        super().__init__(KernelSession(kernel, ctx), **options)
        self._kernel = kernel
        self._ctx = ctx

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """End the call however the tool ends, and have its result looked at."""
        result = await super().wrap_tool_execute(ctx, call=call, tool_def=tool_def, args=args, handler=handler)
        if result is None:
            return result
        text = result if isinstance(result, str) else _text(seen(result))
        try:
            used = await self._kernel.alook(self._ctx, text, "output", call.tool_name)
        except PolicyViolationError as e:
            raise ToolFailed(f"Denied by govnode: {e}") from e
        if used == text:
            return result
        if isinstance(result, str):
            return used
        raise ToolFailed("Denied by govnode: the output holds personal data, and cannot be redacted")

    def _refusal(self, denied: Denied, killed: bool, tool: str, args: Any) -> Exception:
        approval, decision = denied.approval, getattr(denied.answer, "decision", None)
        if approval is not None and denied.outcome == "APPROVAL_REQUIRED":
            return HumanApprovalRequired(tool, dict(args), approval.id)
        if approval is None and getattr(decision, "category", "") == "human_approval_required":
            return HumanApprovalRequired(tool, dict(args))
        return super()._refusal(denied, killed, tool, args)


class GovernedAgent(Wrapped):
    """An agent between the checks of its kernel (section 15.5)."""

    async def run(self, user_prompt: Any = None, **named: Any) -> Any:
        """Run the agent."""
        return await self._kernel.agoverned(
            self._ctx, _prompt(user_prompt), lambda: self._agent.run(user_prompt, **self._with(named))
        )

    def run_sync(self, user_prompt: Any = None, **named: Any) -> Any:
        """Run the agent."""
        return self._kernel.governed(
            self._ctx, _prompt(user_prompt), lambda: self._agent.run_sync(user_prompt, **self._with(named))
        )

    @asynccontextmanager
    async def run_stream(self, user_prompt: Any = None, **named: Any) -> AsyncIterator[Any]:
        """Run the agent, and stream what it says."""
        (await self._kernel.async_pre_execute_check(self._ctx, _prompt(user_prompt))).require()
        try:
            async with self._agent.run_stream(user_prompt, **self._with(named)) as result:
                yield result
        except BaseException as e:
            self._kernel.post_behind(self._ctx, e)
            raise
        await asyncio.to_thread(self._kernel.post_execute_check, self._ctx, None)

    def _with(self, named: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(self._kernel, PydanticAIKernel)
        ours = GovernanceCapability(self._kernel, self._ctx, on_denied="raise")
        return {**named, "capabilities": [*(named.get("capabilities") or ()), ours]}


def _prompt(user_prompt: Any) -> Any:
    return user_prompt if isinstance(user_prompt, str) or user_prompt is None else _text(user_prompt)


def _text(value: Any) -> str:
    try:
        return json.dumps(value, default=str, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
