"""CrewAI by the adapter contract (section 8): global hooks, and the wrap that they take the place of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError
from ..integration.hooks import KernelSession
from ._texts import Texts
from ._wrapped import Wrapped

try:
    from crewai.hooks import HookAborted, InterceptionPoint

    from ..adapters.crewai import GovnodeHooks

    _HOOKS_AVAILABLE = True
except ImportError:
    GovnodeHooks = object  # type: ignore[assignment,misc]
    _HOOKS_AVAILABLE = False


class CrewAIKernel(FrameworkKernel):
    """Governs CrewAI crews and agents (section 8.1). Further options are those of BaseIntegration."""

    backend = "crewai"
    framework = "crewai.hooks"
    install = "govnode[crewai]"
    replacement = "as_hooks"

    def as_hooks(self, agent_id: str = "crewai", session_id: str | None = None, **options: Any) -> Any:
        """Return four hooks (section 8.2): ``register()`` governs the whole process, ``with`` what runs in a block.

        They are one session. The arguments of ``Gate`` may follow.
        """
        self._require()
        return GovernanceHooks(self, self.create_context(agent_id, session_id), **options)

    def wrap(self, crew: Any) -> Any:
        """Return a crew whose kickoffs are governed; a denial ends them. Deprecated (section 8.4)."""
        self._deprecate()
        return GovernedCrew(self, crew, self.create_context("crewai"))

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the crew that was wrapped."""
        return governed_agent._agent if isinstance(governed_agent, GovernedCrew) else governed_agent


class GovernanceHooks(GovnodeHooks):
    """Asks before each call of a tool, and has looked at what goes to the model and what tools and models give."""

    _active: GovernanceHooks | None = None
    _activating = threading.Lock()

    def __init__(self, kernel: CrewAIKernel, ctx: ExecutionContext, **options: Any) -> None:
        session = KernelSession(kernel, ctx)
        super().__init__(session, **options)
        self._texts = Texts(kernel, session)
        self._hooks = {**self._hooks, InterceptionPoint.POST_MODEL_CALL: self.post_model_call}

    def register(self) -> Any:
        """Govern all crews of this process (section 8.3). One set of hooks may do that at a time."""
        with self._activating:
            if GovernanceHooks._active is not None:
                raise RuntimeError("govnode: other hooks are registered: unregister those first")
            GovernanceHooks._active = self
        super().register()
        return self

    def unregister(self) -> None:
        """Take the hooks back."""
        super().unregister()
        with self._activating:
            if GovernanceHooks._active is self:
                GovernanceHooks._active = None

    # What CrewAI calls.

    def pre_model_call(self, context: Any) -> None:
        """End the run of a session that is killed; have what is new for the model looked at."""
        super().pre_model_call(context)
        for message in context.messages or ():
            if isinstance(message.get("content"), str):
                used = _judged(self._texts.given, message["content"])
                if used != message["content"]:
                    message["content"] = used

    def post_model_call(self, context: Any) -> str | None:
        """Have what the model said looked at."""
        said = context.response
        if not isinstance(said, str) or not said:
            return None
        used = _judged(self._texts.made, said)
        return used if used != said else None

    def post_tool_call(self, context: Any) -> str | None:
        """End the call, and have what the tool gave looked at."""
        refusal = super().post_tool_call(context)
        result = context.tool_result
        if refusal is None and isinstance(result, str) and result:
            try:
                used = self._texts.made(result, context.tool_name)
                return used if used != result else None
            except Exception as e:
                return self._texts.refuse(e)
        return refusal


def _judged(look: Callable[[str], str], text: str) -> str:
    """Return a text as it may be used. What is not a HookAborted CrewAI would swallow, and go on."""
    try:
        return look(text)
    except PolicyViolationError as e:
        raise HookAborted(str(e), "govnode") from e
    except Exception as e:
        raise HookAborted(f"no decision: {e}", "govnode") from e


class GovernedCrew(Wrapped):
    """A crew between the checks of its kernel (section 8.4)."""

    def kickoff(self, inputs: Any = None, **named: Any) -> Any:
        """Run the crew."""
        with self._hooked():
            return self._kernel.governed(self._ctx, inputs, lambda: self._agent.kickoff(inputs=inputs, **named))

    async def kickoff_async(self, inputs: Any = None, **named: Any) -> Any:
        """Run the crew, in a thread."""
        with self._hooked():
            return await self._kernel.agoverned(
                self._ctx, inputs, lambda: self._agent.kickoff_async(inputs=inputs, **named)
            )

    async def akickoff(self, inputs: Any = None, **named: Any) -> Any:
        """Run the crew, on the loop."""
        with self._hooked():
            return await self._kernel.agoverned(self._ctx, inputs, lambda: self._agent.akickoff(inputs=inputs, **named))

    def kickoff_for_each(self, inputs: list[Any], **named: Any) -> list[Any]:
        """Run the crew for each of several inputs."""
        return [self.kickoff(one, **named) for one in inputs]

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        assert isinstance(self._kernel, CrewAIKernel)
        with GovernanceHooks(self._kernel, self._ctx, on_denied="raise"):
            yield
