"""smolagents: an agent whose tools are governed, and the queue of approvals.

    from govnode.adapters.smolagents import govern_agent

    govern_agent(agent, session).run("go")

Step callbacks run after a tool, so the tools themselves are replaced. What the code of a CodeAgent does without a tool
(``additional_authorized_imports``) passes no hook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .._review import judged
from ..client import Client
from ..messages import Approval
from ._gate import Gate, Killed, PolicyViolationError, Sessions, missing

try:
    from smolagents import ActionStep, Tool
    from smolagents.local_python_executor import LocalPythonExecutor
except ImportError as e:
    raise missing("smolagents", "smolagents") from e


class DeniedByGovnode(Exception):
    """A call was denied: smolagents shows its text to the model."""


def govern_agent(agent: Any, session: Sessions, **options: Any) -> Any:
    """Let an agent, and those that it manages, ask govnode before each call of a tool or of one another; return it.

    ``session`` is a session, or a function that returns one. The arguments of ``Gate`` may follow. The model reads why
    a call is denied. A call that waits for people and is made again, with the same arguments, is the same call. A
    session that is killed ends the run after the step, and so does a denial with ``on_denied="raise"``. The tool
    ``final_answer`` is the end of a run, and no call. An agent whose code runs elsewhere is refused: there a tool is a
    copy that asks nobody.
    """
    return _Governor(Gate(session, **options)).agent(agent)


class _Governor:
    """Governs the agents that manage each other, each once."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._done: set[int] = set()

    def agent(self, agent: Any) -> Any:
        if id(agent) in self._done:
            return agent
        if hasattr(agent, "__govnode__"):
            raise ValueError(f"govnode: agent {_name(agent)} is governed already")
        executor = getattr(agent, "python_executor", None)
        if executor is not None and not isinstance(executor, LocalPythonExecutor):
            raise ValueError(f'govnode: agent {_name(agent)} runs its code where no hook is: use executor_type="local"')
        self._done.add(id(agent))
        violations: list[PolicyViolationError] = []
        inner = agent.run

        def run(*args: Any, **named: Any) -> Any:
            violations.clear()
            self._raise_killed()
            self._replace(agent, violations)  # what was added since
            return inner(*args, **named)

        def watch(step: Any, **_: Any) -> None:
            """End the run: an exception of a tool would be a text for the model."""
            if violations:
                raise violations[0]
            self._raise_killed()

        self._replace(agent, violations)
        agent.run = run
        agent.step_callbacks.register(ActionStep, watch)
        agent.__govnode__ = self
        return agent

    def _raise_killed(self) -> None:
        if (killed := self._gate.killed()) is not None:
            raise Killed(killed)

    def _replace(self, agent: Any, violations: list[PolicyViolationError]) -> None:
        in_code = hasattr(agent, "python_executor")
        for name, tool in list(agent.tools.items()):
            if name != "final_answer" and not isinstance(tool, _Tool):
                agent.tools[name] = _Tool(tool, self._asking(name, tool.inputs, "tool", violations, in_code))
        for name, member in list(agent.managed_agents.items()):
            if not isinstance(member, _Member):
                ask = self._asking(name, member.inputs, "agent", violations, in_code)
                agent.managed_agents[name] = _Member(self.agent(member), ask)

    def _asking(
        self, name: str, inputs: Mapping[str, Any], kind: str, violations: list[PolicyViolationError], in_code: bool
    ) -> Callable[..., Any]:
        """Return what asks for a call and makes it."""

        def ask(make: Callable[[dict[str, Any]], Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if len(args) == 1 and not named and isinstance(args[0], dict) and all(key in inputs for key in args[0]):
                named = args[0]
            elif len(args) > len(inputs):
                raise TypeError(f"{name} takes {len(inputs)} arguments")
            else:
                named = {**dict(zip(inputs, args, strict=False)), **named}
            try:
                passage = self._gate.enter(name, named, options={"kind": kind})
                if passage.denied is not None:
                    if passage.killed:
                        violations.append(Killed(passage.denied))
                    _refuse(passage.text)
                given = passage.arguments if passage.changed else named
                # Code could ask an object for more than its text, which is what is judged.
                as_text = in_code and passage.reviews
                return passage.run(lambda: judged(make(given)) if as_text else make(given))
            except PolicyViolationError as e:
                violations.append(e)
                raise

        return ask


def _name(agent: Any) -> str:
    return agent.name or type(agent).__name__


def _refuse(text: str) -> NoReturn:
    raise DeniedByGovnode(text)


class _Tool(Tool):
    """Stands in for a tool, which is reachable through this call alone: the code of a model may read attributes."""

    skip_forward_signature_validation = True

    def __init__(self, inner: Any, ask: Callable[..., Any]) -> None:
        self.name, self.description = inner.name, inner.description
        self.inputs, self.output_type = inner.inputs, inner.output_type
        self.output_schema = getattr(inner, "output_schema", None)
        super().__init__()

        def call(args: tuple[Any, ...], named: dict[str, Any], **how: Any) -> Any:
            return ask(lambda given: inner(**given, **how), args, named)

        self.call = call

    def __call__(self, *args: Any, sanitize_inputs_outputs: bool = False, **named: Any) -> Any:
        return self.call(args, named, sanitize_inputs_outputs=sanitize_inputs_outputs)

    def forward(self, *args: Any, **named: Any) -> Any:
        """Call the tool."""
        return self.call(args, named)


class _Member:
    """Stands in for an agent that another one manages: as a tool does."""

    def __init__(self, inner: Any, ask: Callable[..., Any]) -> None:
        self.name, self.description = inner.name, inner.description
        self.inputs, self.output_type = inner.inputs, inner.output_type

        def call(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return ask(lambda given: inner(**given), args, named)

        self.call = call

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.call(args, named)


class ApprovalQueue:
    """What waits for people, and their decisions, with a client that may approve: the agent itself may not.

    ``session_id`` is the session to look at; without one all are. ``approver`` is who decides.
    """

    def __init__(self, client: Client, *, approver: str, session_id: str = "") -> None:
        self._client = client
        self._approver = approver
        self._session_id = session_id

    def get_pending_approvals(self) -> list[Approval]:
        """Return what waits for a decision."""
        return self._client.list_approvals(state="pending", session_id=self._session_id)

    def approve(self, id: str, *, reason: str = "") -> Approval:
        """Allow a call, by the id of its approval or its own."""
        return self._client.approve(self._approval(id), approver=self._approver, reason=reason)

    def deny(self, id: str, *, reason: str = "") -> Approval:
        """Refuse a call, by the id of its approval or its own."""
        return self._client.deny(self._approval(id), approver=self._approver, reason=reason)

    def _approval(self, id: str) -> str:
        """Return the id of an approval. Ids of calls are unique in their session alone."""
        found = [a.id for a in self.get_pending_approvals() if id in (a.id, a.call_id)]
        if len(found) > 1:
            raise ValueError(f"govnode: {id} is a call in {len(found)} sessions: give the id of its approval")
        return found[0] if found else id
