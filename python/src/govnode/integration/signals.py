"""Events and signals of an adapter (adapter contract 3.9, 3.10, 13.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import Rejected
from ..messages import Signal
from .values import ExecutionContext, GovernanceEventType, logger

if TYPE_CHECKING:
    from ..client import Client

_POSIX = {"STOP": "SIGSTOP", "CONTINUE": "SIGCONT", "KILL": "SIGKILL"}


class Signals:
    """Listeners of events, handlers of signals, and the flags that stop everything here."""

    if TYPE_CHECKING:

        @property
        def client(self) -> Client:
            """The client that is asked."""

        def _living(self) -> list[ExecutionContext]: ...

    def __init__(self) -> None:
        self._signal_handlers: dict[str, Callable[[str], Any]] = {}
        self._event_listeners: dict[GovernanceEventType, list[Callable[[Any], Any]]] = {}
        self._stopped = self._killed = False

    def on(self, event_type: GovernanceEventType, callback: Callable[[Any], Any]) -> None:
        """Call ``callback`` with the data of each event of a type (section 3.9.1)."""
        self._event_listeners.setdefault(event_type, []).append(callback)

    def emit(self, event_type: GovernanceEventType, data: dict[str, Any]) -> None:
        """Tell the listeners. What they raise is logged, and stops nothing (section 3.9.2)."""
        for callback in list(self._event_listeners.get(event_type, ())):
            try:
                callback(data)
            except Exception:
                logger.warning("govnode: a listener of %s failed", event_type.value, exc_info=True)

    def on_signal(self, signal: str, handler: Callable[[str], Any]) -> None:
        """Call ``handler`` with the agent's id on a signal. The last one that is set counts (section 3.10.1).

        Signals of the service come as STOP, CONTINUE and KILL, and as SIGSTOP, SIGCONT and SIGKILL.
        """
        self._signal_handlers[signal] = handler

    def signal(self, agent_id: str, signal: str) -> None:
        """Call the handler of a signal, where there is one (section 3.10.2). The fleet is braked by the client's."""
        handler = self._signal_handlers.get(signal)
        if handler is not None:
            handler(agent_id)

    def signal_stop(self, reason: str = "") -> None:
        """Refuse everything here from now on, and stop the sessions of all contexts on the service.

        Raises what the service's absence raises; here it holds in any case.
        """
        self._stopped = True
        self._tell("STOP", reason)

    def signal_continue(self) -> None:
        """Take back what ``signal_stop`` did. Raises, and changes nothing here, where the service does not answer."""
        self._tell("CONTINUE", "")
        self._stopped = False

    def signal_kill(self, reason: str = "") -> None:
        """Refuse everything here for good, and kill the sessions of all contexts on the service."""
        self._killed = True
        self._tell("KILL", reason)

    def _tell(self, signal: str, reason: str) -> None:
        failed: Exception | None = None
        for session_id in {ctx.session_id: None for ctx in self._living()}:
            try:
                self.client.signal(signal, session_id=session_id, reason=reason)
            except Rejected as e:
                # There is none yet, here or in another process, or nothing goes on in it any more.
                if e.code != "not_found" and e.reason != "SESSION_CLOSED":
                    failed = e
            except Exception as e:
                failed = e
        if failed is not None:
            raise failed

    def _braked(self, ctx: ExecutionContext, signal: Signal | None) -> None:
        """Tell the handlers once of what the service has signalled, and of its end."""
        name = signal.signal.upper() if signal is not None else ""
        with ctx._lock:
            before, ctx._signalled = ctx._signalled, name
        if before == name:
            return
        if not name:
            name = "CONTINUE"
        for handled in (name, _POSIX.get(name, "")):
            try:
                self.signal(ctx.agent_id, handled)
            except Exception:
                logger.warning("govnode: the handler of %s failed", handled, exc_info=True)
