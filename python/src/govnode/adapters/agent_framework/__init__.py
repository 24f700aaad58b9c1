"""Microsoft Agent Framework: middleware, approvals, history and sessions.

    from govnode.adapters.agent_framework import GovnodeMiddleware

    agent = Agent(client=client, tools=[...], middleware=[..., GovnodeMiddleware(session)])

``GovnodeMiddleware`` governs tools, ``GovnodeAgentMiddleware`` runs of agents (each round of a loop too), and
``GovnodeChatMiddleware`` requests to models. ``GovnodeApprovals`` brings the prompts of the framework and the approvals
of the service together. ``GovnodeHistory`` and ``GovnodeSessionStore`` keep conversations where every process has them.
``sampling`` judges what MCP servers ask of the model.
"""

import warnings

from .._gate import missing

try:
    import agent_framework as _framework  # noqa: F401
except ImportError as e:
    raise missing("Microsoft Agent Framework", "agent-framework") from e

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # stores of sessions are experimental there: who makes one is told
    from ._agent import GovnodeAgentMiddleware
    from ._approvals import GovnodeApprovals
    from ._chat import GovnodeChatMiddleware
    from ._mcp import sampling
    from ._middleware import GovnodeMiddleware
    from ._state import Conflict, GovnodeHistory, GovnodeSessionStore

__all__ = [
    "Conflict",
    "GovnodeAgentMiddleware",
    "GovnodeApprovals",
    "GovnodeChatMiddleware",
    "GovnodeHistory",
    "GovnodeMiddleware",
    "GovnodeSessionStore",
    "sampling",
]
