"""What stands between the tools of a framework and govnode: one module for each framework, imported by its users.

An adapter decides nothing. It turns the hook of its framework into the begin of a call and its end, and a refusal into
what the model of that framework can read.
"""

from __future__ import annotations

from ._gate import Gate, Killed, PolicyViolationError

__all__ = ["Gate", "Killed", "PolicyViolationError"]
