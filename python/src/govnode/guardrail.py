"""Providers that judge a tool call before it is made: allow it, deny it, or change its arguments (proposal 004)."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

__all__ = ["Decision", "GuardrailProvider", "GuardrailResult", "denial", "evaluate_chain"]

_log = logging.getLogger(__name__)


class Decision(Enum):
    """What a provider comes to."""

    ALLOW = "allow"
    DENY = "deny"
    MODIFY = "modify"


@dataclass
class GuardrailResult:
    """What a provider comes to, and why. ``modified_args`` counts with MODIFY only."""

    decision: Decision
    reason: str | None = None
    modified_args: Mapping[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class GuardrailProvider(Protocol):
    """Judges tool calls."""

    async def evaluate(
        self,
        *,
        tool_name: str,
        args: Mapping[str, Any],
        agent_name: str | None = None,
        call_id: str | None = None,
        cancellation_token: Any = None,
    ) -> GuardrailResult:
        """Tell whether a call should be made, and with which arguments."""
        ...


async def evaluate_chain(
    providers: Sequence[GuardrailProvider],
    *,
    tool_name: str,
    args: Mapping[str, Any],
    agent_name: str | None = None,
    call_id: str | None = None,
    cancellation_token: Any = None,
    results: list[GuardrailResult] | None = None,
) -> GuardrailResult:
    """Ask the providers in turn: each sees the arguments as those before left them, and the first DENY ends.

    A provider that raises, or that answers with anything but a result, denies. Each has a copy of the arguments: it
    changes them with MODIFY alone. The metadata of all come together, where later providers win. ``results`` is given
    what each of them came to.
    """
    current, metadata, changed = args, dict[str, Any](), False
    for provider in providers:
        try:
            result = await provider.evaluate(
                tool_name=tool_name,
                args=copy.deepcopy(current),
                agent_name=agent_name,
                call_id=call_id,
                cancellation_token=cancellation_token,
            )
            if not isinstance(result, GuardrailResult) or not isinstance(result.decision, Decision):
                raise TypeError(f"evaluate must return a GuardrailResult, got {type(result).__name__}")
            if result.modified_args is not None and not isinstance(result.modified_args, Mapping):
                raise TypeError(f"modified_args must be a mapping, got {type(result.modified_args).__name__}")
            if results is not None:
                results.append(result)
            metadata.update(result.metadata)
            if result.decision is Decision.MODIFY and result.modified_args is not None:
                current, changed = copy.deepcopy(result.modified_args), True
        except asyncio.CancelledError:
            raise
        except Exception as e:
            _log.warning("govnode: guardrail %s failed, so the call is denied", type(provider).__name__, exc_info=True)
            reason = f"guardrail {type(provider).__name__} failed (fail-closed): {e}"
            return GuardrailResult(Decision.DENY, reason, metadata=metadata)
        if result.decision is Decision.DENY:
            return GuardrailResult(Decision.DENY, result.reason, metadata=metadata)
    if changed:
        return GuardrailResult(Decision.MODIFY, modified_args=current, metadata=metadata)
    return GuardrailResult(Decision.ALLOW, metadata=metadata)


def denial(result: GuardrailResult) -> str:
    """Return what the model reads in place of the result of a tool that was denied."""
    return f"Tool call denied: {result.reason or 'policy violation'}"
