"""What the kernels of frameworks share (adapter contract 6.3, 7.4, 18, 20.4)."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ._checks import owner_now
from .admission import Refusal
from .base import BaseIntegration
from .hooks import KernelSession
from .values import ExecutionContext, PolicyViolationError, ToolCallRequest

T = TypeVar("T")


class FrameworkKernel(BaseIntegration):
    """An adapter of one framework."""

    #: The module of the framework, and what installs it.
    framework = ""
    install = ""
    #: What takes the place of ``wrap``, where that is deprecated.
    replacement = ""

    def session_of(self, agent_id: str, session_id: str | None = None) -> KernelSession:
        """Return the session of a new context, for the native hooks of ``govnode.adapters``."""
        return KernelSession(self, self.create_context(agent_id, session_id))

    # Texts to and from models, to memories, and between agents.

    def look(self, ctx: ExecutionContext, text: Any, kind: str, tool: str = "") -> str:
        """Return a text as it may be used: personal data may be redacted. ``kind`` is input, output, memory or message.

        Raises PolicyViolationError where it may not be used at all (section 7.4).
        """
        try:
            return self._scan(ctx, text, kind, tool, redact=True)
        except Exception as e:
            why = e if isinstance(e, Refusal) else self._failed(e)
            self._refuse(ctx, ToolCallRequest(tool, {}, agent_id=ctx.agent_id), kind, why)
            raise PolicyViolationError(why.reason, category=why.category, tool_name=tool) from e

    async def alook(self, ctx: ExecutionContext, text: Any, kind: str, tool: str = "") -> str:
        """Do what ``look`` does, and leave the loop free."""
        return await asyncio.to_thread(self.look, ctx, text, kind, tool)

    def heed(self, ctx: ExecutionContext, kind: str) -> None:
        """Raise PolicyViolationError where this adapter is stopped or killed (section 13.3)."""
        if self._killed or self._stopped:
            why = self._signalled()
            self._refuse(ctx, ToolCallRequest("", {}, agent_id=ctx.agent_id), kind, why)
            raise PolicyViolationError(why.reason, category=why.category)

    # Around an execution, for what is wrapped.

    def governed(self, ctx: ExecutionContext, input_data: Any, work: Callable[[], T], *, kind: str = "") -> T:
        """Do something between both checks (section 3). Raises PolicyViolationError where one refuses."""
        self.pre_execute_check(ctx, input_data, kind=kind).require()
        try:
            result = work()
        except BaseException as e:
            self.post_execute_check(ctx, e)
            raise
        self.post_execute_check(ctx, result).require()
        return result

    async def agoverned(
        self, ctx: ExecutionContext, input_data: Any, work: Callable[[], Awaitable[T]], *, kind: str = ""
    ) -> T:
        """Do what ``governed`` does, on a loop."""
        (await self.async_pre_execute_check(ctx, input_data, kind=kind)).require()
        try:
            result = await work()
        except Exception as e:
            await self.async_post_execute_check(ctx, e)
            raise
        except BaseException as e:
            self.post_behind(ctx, e)
            raise
        (await self.async_post_execute_check(ctx, result)).require()
        return result

    def post_behind(self, ctx: ExecutionContext, error: BaseException) -> None:
        """Do the check after an execution without waiting for it: a task that is cancelled could not."""
        args = (ctx, error, owner_now(), None, None, None)
        threading.Thread(target=self._post, args=args, name="govnode-post", daemon=True).start()

    # Where the framework is missing, or the way is an old one.

    def _missing(self) -> str:
        """Return what to do about the missing framework, or nothing where it is there."""
        try:
            found = importlib.util.find_spec(self.framework) is not None
        except ModuleNotFoundError:  # of what it lies in
            found = False
        if found:
            return ""
        return f"{type(self).__name__} needs {self.framework}: pip install '{self.install}'"

    def _require(self) -> None:
        """Raise RuntimeError where the framework is missing, as a factory must."""
        if missing := self._missing():
            raise RuntimeError(missing)

    def _deprecate(self, method: str = "wrap") -> None:
        """Warn whoever called the caller, and raise ImportError where the framework is missing."""
        if self.replacement:
            warnings.warn(
                f"{type(self).__name__}.{method}() is deprecated. Use {self.replacement}().",
                DeprecationWarning,
                stacklevel=3,
            )
        if missing := self._missing():
            raise ImportError(missing)
