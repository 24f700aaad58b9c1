"""Approvals of an adapter: the service keeps them, and a client that may approve decides (adapter contract 16.3)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._transport import run
from .values import ExecutionContext, ToolCallRequest, logger

if TYPE_CHECKING:
    from .._calls import HeldCall
    from ..client import Client
    from ..messages import Approval


_ANONYMOUS = "anonymous"  # the service's name for those whom it does not know


class Approvals:
    """Who decides about calls that people are asked about, and how."""

    def __init__(
        self,
        approver: Client | None,
        approver_name: str | None,
        approval_callback: Callable[[str, dict[str, Any]], bool] | None,
    ) -> None:
        if approval_callback is not None and approver is None:
            raise ValueError("approval_callback: give approver too, a client that may approve: the agent's may not")
        self._approver = approver
        self._approver_name = approver_name
        self._approval_callback = approval_callback

    if TYPE_CHECKING:

        @property
        def client(self) -> Client:
            """The client that is asked."""

        def _living(self) -> list[ExecutionContext]: ...

    def approve(self, call_id: str, *, reason: str = "") -> bool:
        """Vote for a call by its id, or by that of its approval. Tell whether it may come again now.

        Raises KeyError where nothing of that id waits here.
        """
        approver, found = self._asked_for(call_id)
        name = self._name_of(approver)
        decided = approver.approve(found.id, approver=name, reason=reason, request_digest=found.request_digest)
        return decided.state in ("APPROVED", "USED")

    def deny(self, call_id: str, *, reason: str = "") -> bool:
        """Vote against a call by its id, or by that of its approval. Tell whether it is refused now."""
        approver, found = self._asked_for(call_id)
        name = self._name_of(approver)
        decided = approver.deny(found.id, approver=name, reason=reason, request_digest=found.request_digest)
        return decided.state == "DENIED"

    def get_pending_approvals(self) -> dict[str, dict[str, Any]]:
        """Return what waits for a decision in the contexts of this adapter, by the ids of the calls."""
        return {
            a.call_id: {
                "approval_id": a.id,
                "tool_name": a.tool,
                "arguments": a.arguments,
                "agent_id": a.agent_id,
                "session_id": a.session_id,
                "reason": a.reason,
            }
            for a in self._pending()
        }

    def _pending(self) -> list[Approval]:
        found: list[Approval] = []
        for session_id in {ctx.session_id: None for ctx in self._living()}:
            found += self.client.list_approvals(state="pending", session_id=session_id)
        return found

    def _asked_for(self, call_id: str) -> tuple[Client, Approval]:
        if self._approver is None:
            raise ValueError("approver: give the adapter a client that may approve")
        for a in self._pending():
            if call_id in (a.call_id, a.id, a.call_id.removeprefix(f"{a.session_id}:")):
                return self._approver, a
        raise KeyError(call_id)

    def _name_of(self, approver: Client) -> str:
        """Return the name to vote under: that which was given, else as whom the service knows the approver.

        The service is asked once whether it knows the approver. If so it takes votes under that name alone, and is left
        to fill it in, since another token that is drawn later has another name.
        """
        if self._approver_name is None:
            principal = run(approver._core._read("AccessService/WhoAmI", {})).get("principal", _ANONYMOUS)
            self._approver_name = "approver" if principal == _ANONYMOUS else ""
        return self._approver_name

    def _call_back(self, request: ToolCallRequest, call: HeldCall) -> None:
        """Ask the callback about a call, and vote as it says. One that fails, or says anything but True, is a no."""
        if self._approval_callback is None or self._approver is None or call.approval is None:
            return
        try:
            yes = self._approval_callback(request.tool_name, copy.deepcopy(request.arguments)) is True
        except Exception:
            logger.warning("govnode: approval_callback failed, so the call is denied", exc_info=True)
            yes = False
        vote = self._approver.approve if yes else self._approver.deny
        vote(call.approval.id, approver=self._name_of(self._approver), reason="approval_callback")
