"""smolagents by the adapter contract (section 16): a step callback, the queue of approvals, and the old wrap."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..adapters import Gate, Killed
from ..integration import (
    ExecutionContext,
    FrameworkKernel,
    GovernancePolicy,
    PolicyConfig,
    PolicyViolationError,
)
from ..integration.hooks import KernelSession

try:
    from smolagents import ActionStep

    from ..adapters.smolagents import govern_agent

    _HAS_CALLBACKS = True
except ImportError:
    _HAS_CALLBACKS = False

_DEFAULTS = PolicyConfig()
_MOST_KEPT = 10_000  # decisions


class SmolagentsKernel(FrameworkKernel):
    """Governs smolagents (section 16.1). Further options are those of BaseIntegration.

    Without a ``policy`` a PolicyConfig is made of the convenience arguments.
    """

    backend = "smolagents"
    framework = "smolagents"
    install = "govnode[smolagents]"
    replacement = "as_step_callback"

    def __init__(
        self,
        policy: PolicyConfig | GovernancePolicy | str | None = None,
        on_violation: Callable[[PolicyViolationError], Any] | None = None,
        evaluator: Any | None = None,
        max_tool_calls: int = 50,
        max_agent_calls: int = 20,
        timeout_seconds: int = 300,
        allowed_tools: list[str] | None = None,
        blocked_tools: list[str] | None = None,
        blocked_patterns: list[str] | None = None,
        require_human_approval: bool = False,
        sensitive_tools: list[str] | None = None,
        max_budget: float | None = None,
        **options: Any,
    ) -> None:
        given = PolicyConfig(
            max_tool_calls=max_tool_calls,
            max_agent_calls=max_agent_calls,
            timeout_seconds=timeout_seconds,
            allowed_tools=list(allowed_tools or ()),
            blocked_tools=list(blocked_tools or ()),
            blocked_patterns=list(blocked_patterns or ()),
            require_human_approval=require_human_approval,
            sensitive_tools=list(sensitive_tools or ()),
            max_budget=max_budget,
        )
        if policy is not None:
            for name, value in vars(given).items():
                if value != getattr(_DEFAULTS, name):
                    raise ValueError(f"{name}: there is a policy: set it there")
        super().__init__(policy if policy is not None else given, evaluator, on_violation=on_violation, **options)
        self._original_forwards: dict[int, tuple[Any, Any]] = {}
        self._approved_calls: dict[str, bool] = {}

    def as_step_callback(self, agent_id: str = "smolagents", session_id: str | None = None, **options: Any) -> Any:
        """Return what goes into ``Agent(step_callbacks=[...])`` (section 16.2). It is one session.

        smolagents calls it after a step. So the tools of an agent's first step have run by then, and are judged and
        counted afterwards; from then on the agent is governed before its tools run. ``govern`` does that from the
        beginning. The arguments of ``Gate`` may follow.
        """
        self._require()
        return GovernanceStepCallback(self, self.create_context(agent_id, session_id), options)

    def govern(self, agent: Any, agent_id: str = "", session_id: str | None = None, **options: Any) -> Any:
        """Govern an agent and all that it manages, in place, before its first step; return it."""
        self._require()
        callback = self.as_step_callback(
            agent_id or getattr(agent, "name", None) or "smolagents", session_id, **options
        )
        callback.govern(agent)
        agent.step_callbacks.register(ActionStep, callback)
        return agent

    # The queue of approvals is the service's (section 16.3).

    @property
    def _pending_approvals(self) -> dict[str, dict[str, Any]]:
        return self.get_pending_approvals()

    def approve(self, call_id: str, *, reason: str = "") -> bool:
        """Vote for a call by its id, or by that of its approval. Tell whether it may come again now."""
        return self._decided(call_id, super().approve(call_id, reason=reason), True)

    def deny(self, call_id: str, *, reason: str = "") -> bool:
        """Vote against a call by its id, or by that of its approval. Tell whether it is refused now."""
        return self._decided(call_id, super().deny(call_id, reason=reason), False)

    def _decided(self, call_id: str, done: bool, yes: bool) -> bool:
        if done:
            self._approved_calls[call_id] = yes
            while len(self._approved_calls) > _MOST_KEPT:
                del self._approved_calls[next(iter(self._approved_calls))]
        return done

    # The old way.

    def wrap(self, agent: Any) -> Any:
        """Govern the ``forward`` of each tool of an agent, in place, and return that. Deprecated (section 16.4)."""
        self._deprecate()
        ctx = self.create_context(getattr(agent, "name", None) or "smolagents")
        gate = Gate(KernelSession(self, ctx), on_denied="raise")
        for name, tool in self._extract_tools(agent).items():
            if name != "final_answer" and id(tool) not in self._original_forwards:
                self._wrap_tool(gate, name, tool)
        return agent

    def _wrap_tool(self, gate: Gate, name: str, tool: Any) -> None:
        inner = tool.forward
        inputs = list(getattr(tool, "inputs", ()))

        @functools.wraps(inner)
        def forward(*args: Any, **named: Any) -> Any:
            given = {**dict(zip(inputs, args, strict=False)), **named}
            passage = gate.enter(name, given)
            return passage.run(lambda: inner(**(passage.arguments if passage.changed else given)))

        self._original_forwards[id(tool)] = (tool, vars(tool).get("forward"))
        tool.forward = forward

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent, with the tools as they were."""
        for tool in self._extract_tools(governed_agent).values():
            _, before = self._original_forwards.pop(id(tool), (None, _NOTHING))
            if before is None:
                vars(tool).pop("forward", None)
            elif before is not _NOTHING:
                tool.forward = before
        return governed_agent

    @staticmethod
    def _extract_tools(agent: Any) -> dict[str, Any]:
        """Return the tools of an agent by their names (section 16.5); today's agents have them in ``tools``."""
        box = getattr(agent, "toolbox", None)
        for found in (getattr(box, "tools", None), box, getattr(agent, "tools", None)):
            if isinstance(found, dict):
                return dict(found)
        return {}


_NOTHING: Any = object()


class GovernanceStepCallback:
    """Governs the agents whose steps it is told of (section 16.2).

    What goes to the model of a step is looked at: blocked outputs are replaced.
    """

    def __init__(self, kernel: SmolagentsKernel, ctx: ExecutionContext, options: dict[str, Any]) -> None:
        self._kernel = kernel
        self._ctx = ctx
        self._options = options
        self._gate = Gate(KernelSession(kernel, ctx), **{**options, "on_denied": "raise"})

    def govern(self, agent: Any) -> None:
        """Have an agent ask from now on."""
        govern_agent(agent, KernelSession(self._kernel, self._ctx), **self._options)

    def __call__(self, step: Any, agent: Any = None) -> None:
        """Judge what an agent did that is not governed yet, and govern it; look at what it goes on with."""
        if agent is not None and not hasattr(agent, "__govnode__"):
            self._afterwards(step)
            self.govern(agent)
            executor = getattr(agent, "python_executor", None)
            if executor is not None:  # it has the tools as they were when the run began
                executor.send_tools({**agent.tools, **agent.managed_agents})
        if (killed := self._gate.killed()) is not None:
            raise Killed(killed)
        if isinstance(getattr(step, "observations", None), str):
            step.observations = self._looked(step.observations)
        if isinstance(getattr(step, "action_output", None), str):
            step.action_output = self._looked(step.action_output)

    def _afterwards(self, step: Any) -> None:
        """Count the calls of a step. One that would have been denied, or would have been another, ends the run."""
        for call in getattr(step, "tool_calls", None) or ():
            if call.name == "final_answer":
                continue
            if call.name == "python_interpreter":  # what tools its code called nobody knows
                self._kernel.look(self._ctx, str(call.arguments), "message", call.name)
                continue
            arguments = call.arguments if isinstance(call.arguments, dict) else {"input": str(call.arguments)}
            passage = self._gate.enter(call.name, arguments, call_id=str(call.id))
            if why := passage.refuse_unfit():
                self._kernel._violated(why, "not_governed", call.name)
                raise PolicyViolationError(
                    f"{call.name}: {why}: use govern", category="not_governed", tool_name=call.name
                )
            passage.end("succeeded")

    def _looked(self, text: str) -> str:
        try:
            return self._kernel.look(self._ctx, text, "output") if text else text
        except PolicyViolationError as e:
            return f"Denied by govnode: {e}"
