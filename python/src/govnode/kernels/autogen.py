"""AutoGen by the adapter contract (section 9): an intervention handler, and the govern that it takes the place of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError
from ..integration.hooks import KernelSession

try:
    from autogen_core import DropMessage, FunctionCall
    from autogen_core.models import FunctionExecutionResult

    from ..adapters.autogen import GovnodeHandler, Refusal, Refused, govern_agent

    _HAS_HANDLER = True
except ImportError:
    GovnodeHandler = object  # type: ignore[assignment,misc]
    _HAS_HANDLER = False

_PLAIN = (int, float, bool, type(None))


class AutoGenKernel(FrameworkKernel):
    """Governs AutoGen agents (section 9.1). Further options are those of BaseIntegration."""

    backend = "autogen"
    framework = "autogen_core"
    install = "govnode[autogen]"
    replacement = "as_handler"

    def __init__(self, policy: Any = None, evaluator: Any | None = None, **options: Any) -> None:
        super().__init__(policy, evaluator, **options)
        self._restores: dict[int, tuple[Any, Callable[[], None]]] = {}

    def as_handler(self, agent_id: str = "autogen", session_id: str | None = None, **options: Any) -> Any:
        """Return a handler of the runtime (section 9.2). It is one session. The arguments of ``Gate`` may follow.

            handler = kernel.as_handler()
            runtime = handler.serve(SingleThreadedAgentRuntime(intervention_handlers=[handler]))

        An AssistantAgent sends none of its calls through the runtime: give those to ``govern_agent`` of
        ``govnode.adapters.autogen`` with ``kernel.session_of(name)``.
        """
        self._require()
        return GovernanceInterventionHandler(self, self.create_context(agent_id, session_id), **options)

    def govern(self, *agents: Any) -> list[Any]:
        """Govern agents in place, and return them. Deprecated (section 9.5).

        A denial ends the run of an AssistantAgent, or the ``send`` of another agent, with PolicyViolationError.
        """
        self._deprecate("govern")
        return [self._govern(agent) for agent in agents]

    def wrap(self, agent: Any) -> Any:
        """Govern an agent in place, and return it. Deprecated."""
        self._deprecate()
        return self._govern(agent)

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent as it was before."""
        _, restore = self._restores.pop(id(governed_agent), (None, None))
        if restore is not None:
            restore()
        return governed_agent

    def _govern(self, agent: Any) -> Any:
        if id(agent) in self._restores:
            return agent
        name = str(getattr(agent, "name", "") or type(agent).__name__)
        ctx = self.create_context(name)
        if hasattr(agent, "_workbench"):
            before = {k: vars(agent).get(k) for k in ("_workbench", "_handoff_tools")}
            govern_agent(agent, KernelSession(self, ctx), on_denied="raise")

            def restore() -> None:
                vars(agent).update(before)
                vars(agent).pop("on_messages_stream", None)

        elif callable(getattr(agent, "send", None)):
            inner = agent.send

            @functools.wraps(inner)
            def send(message: Any, *args: Any, **named: Any) -> Any:
                text = getattr(message, "content", message)
                return self.governed(ctx, text, lambda: inner(message, *args, **named))

            agent.send = send

            def restore() -> None:
                vars(agent).pop("send", None)

        else:
            raise TypeError(f"{name} is no AssistantAgent, and has no send: govern its runtime with as_handler()")
        self._restores[id(agent)] = (agent, restore)
        return agent


class GovernanceInterventionHandler(GovnodeHandler):
    """Governs all that goes through a runtime (section 9.2.1).

    A FunctionCall is judged where it arrives, and a denial of it is answered: a sender whose call was dropped could not
    tell its model why. Other messages that are blocked are dropped, and their senders get MessageDroppedException. A
    message that is published and blocked comes to nobody, since a runtime that drops it never gets idle again.
    """

    def __init__(self, kernel: AutoGenKernel, ctx: ExecutionContext, **options: Any) -> None:
        super().__init__(KernelSession(kernel, ctx), **options)
        self._kernel = kernel
        self._ctx = ctx

    async def on_send(self, message: Any, *, message_context: Any, recipient: Any) -> Any:
        """See to it that a call is governed where it arrives; have any other message looked at."""
        if not isinstance(message, FunctionCall):
            return await self._looked(message, "message", DropMessage)
        return await super().on_send(message, message_context=message_context, recipient=recipient)

    async def on_publish(self, message: Any, *, message_context: Any) -> Any:
        """Have a message looked at. A call that is published comes to nobody."""
        if isinstance(message, FunctionCall):
            return await super().on_publish(message, message_context=message_context)
        return await self._looked(message, "message", Refused(type(message).__name__))

    async def on_response(self, message: Any, *, sender: Any, recipient: Any) -> Any:
        """Have an answer looked at."""
        if message is None or isinstance(message, Refusal):
            return message
        if isinstance(message, FunctionExecutionResult):
            try:
                content = await self._kernel.alook(self._ctx, message.content, "output", message.name)
            except PolicyViolationError as e:
                return Refusal(
                    content=f"Denied by govnode: {e}", call_id=message.call_id, name=message.name, is_error=True
                )
            return message if content == message.content else message.model_copy(update={"content": content})
        return await self._looked(message, "output", DropMessage)

    async def _looked(self, message: Any, kind: str, blocked: Any) -> Any:
        """Return a message as it may be used, or what stands for one that may not."""
        try:
            return await self._with_texts(message, kind)
        except PolicyViolationError:
            return blocked
        except Exception as e:  # no exception may leave a handler: it would be the sender's, or end the runtime
            self._kernel._violated(f"the message cannot be judged: {e}", "error", "")
            return blocked

    async def _with_texts(self, value: Any, kind: str) -> Any:
        """Return a value with its texts as they may be used."""
        if isinstance(value, (_PLAIN, bytes, FunctionCall, Refusal)):
            return value  # a call is judged where it arrives, and its refusal may quote what is blocked
        if isinstance(value, str):
            return await self._kernel.alook(self._ctx, value, kind) if value else value
        if isinstance(value, (list, tuple)):
            items = [await self._with_texts(v, kind) for v in value]
            return value if _same(items, value) else type(value)(items)
        fields = _fields(value)
        if fields is None:
            text = str(value)
            if await self._kernel.alook(self._ctx, text, kind) != text:
                raise PolicyViolationError(f"the {kind} holds personal data, and cannot be redacted", category="scan")
            return value
        used = {k: await self._with_texts(v, kind) for k, v in fields.items()}
        changed = {k: v for k, v in used.items() if v is not fields[k]}
        if not changed:
            return value
        if isinstance(value, dict):
            return {**value, **changed}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(value, **changed)
        return value.model_copy(update=changed)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return what a message is made of; None where that is not known."""
    if isinstance(value, dict):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if hasattr(type(value), "model_fields"):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return None


def _same(items: list[Any], before: Any) -> bool:
    return all(a is b for a, b in zip(items, before, strict=True))
