"""GoogleADKKernel (adapter contract 12) on the real framework and a real node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernel_laws import KernelDriver, KernelLaws
from laws import Script, Seen

from govnode.integration import (
    FrameworkKernel,
)

pytest.importorskip("google.adk", reason="Google ADK is not installed")

from test_google_adk import ADK, WHO, said

from govnode.integrations import GoogleADKKernel

FRAMEWORK = ADK()


class GoogleADKKernelDriver(KernelDriver):
    kernel = GoogleADKKernel
    factory = "as_plugin"
    calls = 50
    asks_for_models = True  # runs of agents are calls, which may be denied too

    def told(self, kernel: FrameworkKernel, script: Script, tool: Any, mode: str, session_id: str | None = None) -> str:
        seen = self.run(kernel, script, tool, mode, session_id)
        return seen.model_saw[-1] if seen.model_saw else seen.final

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        return run(kernel.as_plugin("tester", session_id), FRAMEWORK.agent(script, tool))

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        runner = FRAMEWORK.runner([kernel.as_plugin("tester", session_id)], FRAMEWORK.agent(script, tool))
        return await FRAMEWORK.run_on(runner)

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        agent = FRAMEWORK.agent(script, tool)
        governed = kernel.wrap(agent)
        return agent, governed, lambda: run(None, governed)


def run(plugin: Any, agent: Any, text: str = "go") -> Seen:
    """Run an agent on a thread of the framework's, as its synchronous way does."""
    runner = FRAMEWORK.runner([plugin] if plugin is not None else [], agent)
    asyncio.run(runner.session_service.create_session(app_name="laws", **WHO))
    return FRAMEWORK.seen(list(runner.run(**WHO, new_message=said(text))))


DRIVER = GoogleADKKernelDriver()


class TestGoogleADKKernel(KernelLaws):
    driver = DRIVER
