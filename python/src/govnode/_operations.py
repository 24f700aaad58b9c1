"""What a client can ask of the service beside calls and slots: one method for each, written once for both clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from . import messages
from ._core import REPEATS, Core, Operation
from ._wire import duration, exact, policy_ref, put_arguments, put_context, put_metadata, put_order
from .errors import Denied
from .messages import decode

T = TypeVar("T")

Amount = str | int | float | Decimal


class Operations(Core):
    """One method for each thing that can be asked.

    What changes something has an id, so that sending it again has no second effect: ``request_id``, drawn if it is not
    given. Give one, and remember it, where the same thing is to be asked again after an ``Unknown``.
    """

    async def _list(self, method: str, field: str, kind: type[T], body: dict[str, Any] | None = None) -> list[T]:
        found: list[T] = []
        asked = {**(body or {}), "pageSize": 1000}
        while True:
            page = await self._read(method, asked)
            found += [decode(kind, m) for m in page.get(field, ())]
            if not page.get("nextPageToken"):
                return found
            asked["pageToken"] = page["nextPageToken"]

    # Policies.

    async def put_policy(
        self,
        yaml: str | None = None,
        *,
        name: str | None = None,
        files: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> messages.Policy:
        """Store a policy: one document, or a tree of files by their paths. The same content again changes nothing."""
        body: dict[str, Any] = {"name": name or ""}
        if yaml is not None:
            body["yaml"] = yaml
        if files:
            body["files"] = [{"path": p, "content": c} for p, c in files.items()]
        return decode(messages.Policy, await self._change("PolicyService/PutPolicy", body, request_id))

    async def get_policy(self, policy: str) -> messages.Policy:
        """Return a policy by its name, or by its digest (``sha256:…``)."""
        return decode(messages.Policy, (await self._read("PolicyService/GetPolicy", policy_ref(policy)))["policy"])

    async def list_policies(self) -> list[messages.Policy]:
        """Return all policies, without their files."""
        return await self._list("PolicyService/ListPolicies", "policies", messages.Policy)

    async def delete_policy(self, policy: str, *, request_id: str | None = None) -> None:
        """Remove a policy by its name or digest. Refused while sessions pin it."""
        await self._change("PolicyService/DeletePolicy", policy_ref(policy), request_id)

    async def evaluate(
        self,
        tool: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        policy: str | None = None,
        session_id: str | None = None,
        context: Mapping[str, Any] | str | None = None,
        agent: str = "",
        order: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        output: Any = None,
    ) -> messages.Evaluation:
        """Decide on a call by a policy, or by that which a session pins, without changing or counting anything.

        With ``output``, what it returned, ``review`` of the answer says what rules make of that.
        """
        body: dict[str, Any] = {"tool": tool, **_judge(policy, session_id)}
        put_arguments(body, arguments)
        put_context(body, context)
        put_order(body, order)
        if agent:
            body["agentId"] = agent
        if metadata:
            put_metadata(body, metadata)
        if output is not None:
            body["output"] = output
        return decode(messages.Evaluation, await self._read("PolicyService/Evaluate", body))

    async def scan(
        self,
        text: str,
        *,
        policy: str | None = None,
        session_id: str | None = None,
        kind: str = "input",
        tool: str = "",
    ) -> messages.Scan:
        """Judge a text (input, output, memory or message), without changing or counting anything."""
        body = {"text": text, "kind": "SCAN_KIND_" + kind.upper(), "tool": tool, **_judge(policy, session_id)}
        return decode(messages.Scan, await self._read("PolicyService/Scan", body))

    async def put_hash(self, tool: str, hash: str, *, request_id: str | None = None) -> messages.ToolHash:
        """Register the content hash of a tool, in place of an earlier one."""
        body = {"tool": tool, "hash": hash}
        return decode(messages.ToolHash, (await self._change("PolicyService/PutHash", body, request_id))["hash"])

    async def list_hashes(self) -> list[messages.ToolHash]:
        """Return the registered hashes."""
        return await self._list("PolicyService/ListHashes", "hashes", messages.ToolHash)

    async def delete_hash(self, tool: str, *, request_id: str | None = None) -> None:
        """Take the registration of a hash back."""
        await self._change("PolicyService/DeleteHash", {"tool": tool}, request_id)

    async def explain(self, decision_id: str) -> dict[str, Any]:
        """Return the record of a decision, with the names of the API, as long as it is kept."""
        record: dict[str, Any] = (await self._read("DecisionService/Explain", {"decisionId": decision_id}))["record"]
        return record

    # Sessions and signals.

    async def get_session(self, session_id: str) -> messages.SessionInfo:
        """Return a session as it stands."""
        answer = await self._read("SessionService/GetSession", {"sessionId": session_id})
        return decode(messages.SessionInfo, answer["session"])

    async def list_sessions(self, *, agent: str = "", policy_digest: str = "") -> list[messages.SessionInfo]:
        """Return sessions in the order of their ids."""
        body = {"agentId": agent, "policyDigest": policy_digest}
        return await self._list("SessionService/ListSessions", "sessions", messages.SessionInfo, body)

    async def close_session(self, session_id: str) -> int:
        """End a session, and return how many leases in pools that ended."""
        answer = await self._send("SessionService/CloseSession", {"sessionId": session_id}, session_id)
        return int(answer.get("released", 0))

    async def signal(
        self,
        signal: str,
        *,
        session_id: str = "",
        agent: str = "",
        policy: str = "",
        everything: bool = False,
        reason: str = "",
        request_id: str | None = None,
    ) -> messages.Signalled:
        """STOP, CONTINUE or KILL a session, an agent, a policy or everything. Any other signal is an event alone."""
        body: dict[str, Any] = {"signal": signal, "reason": reason}
        named = {"sessionId": session_id, "agentId": agent, "policyName": policy, "everything": everything}
        body.update({name: target for name, target in named.items() if target})
        return decode(messages.Signalled, await self._change("SessionService/Signal", body, request_id))

    async def list_signals(self) -> list[messages.Signal]:
        """Return what stands."""
        return await self._list("SessionService/ListSignals", "signals", messages.Signal)

    # Approvals.

    async def request_approval(
        self,
        tool: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        agent: str,
        message: str = "",
        timeout: float | None = None,
        on_timeout: str = "deny",
        required: int = 1,
        denials: int = 1,
        session_id: str = "",
        request_id: str | None = None,
    ) -> messages.Approval:
        """Ask people without a call. Nothing is admitted by it: read the answer with ``get_approval``."""
        body: dict[str, Any] = {"agentId": agent, "tool": tool, "message": message, "sessionId": session_id}
        body.update(required=required, denials=denials, onTimeout="ON_TIMEOUT_" + on_timeout.upper())
        put_arguments(body, arguments)
        if timeout is not None:
            body["timeout"] = duration(timeout)
        return decode(messages.Approval, (await self._change("ApprovalService/Request", body, request_id))["approval"])

    async def get_approval(self, id: str, *, wait: float = 0.0) -> messages.Approval:
        """Return an approval, after waiting for up to ``wait`` seconds until it is pending no more."""
        answer = await self._perform(Operation("ApprovalService/Get", {"id": id}, reads=True, wait=wait))
        return decode(messages.Approval, answer["approval"])

    async def list_approvals(
        self, *, state: str = "", session_id: str = "", agent: str = ""
    ) -> list[messages.Approval]:
        """Return the approvals that are open, and those that ended within the last hour."""
        body = {"sessionId": session_id, "agentId": agent}
        if state:
            body["state"] = "APPROVAL_STATE_" + state.upper()
        return await self._list("ApprovalService/List", "approvals", messages.Approval, body)

    async def approve(
        self, id: str, *, approver: str, reason: str = "", request_digest: str = "", request_id: str | None = None
    ) -> messages.Approval:
        """Vote for an approval. The agent that asks may not.

        With the ``request_digest`` of the approval that was shown, the vote is for that and nothing else.
        """
        return await self._decide("VOTE_APPROVE", id, approver, reason, request_digest, request_id)

    async def deny(
        self, id: str, *, approver: str, reason: str = "", request_digest: str = "", request_id: str | None = None
    ) -> messages.Approval:
        """Vote against an approval, as :meth:`approve` votes for it."""
        return await self._decide("VOTE_DENY", id, approver, reason, request_digest, request_id)

    async def _decide(
        self, vote: str, id: str, approver: str, reason: str, request_digest: str, request_id: str | None
    ) -> messages.Approval:
        body = {"id": id, "decision": vote, "approver": approver, "reason": reason, "requestDigest": request_digest}
        return decode(messages.Approval, (await self._change("ApprovalService/Decide", body, request_id))["approval"])

    async def cancel_approval(self, id: str, *, request_id: str | None = None) -> messages.Approval:
        """End an approval, and the call that waits for it."""
        answer = await self._change("ApprovalService/Cancel", {"id": id}, request_id)
        return decode(messages.Approval, answer["approval"])

    async def put_standing_approval(
        self,
        scope: str,
        name: str,
        tool: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        expiry: float,
        uses: int = 0,
        server_label: str = "",
        request_id: str | None = None,
    ) -> messages.Standing:
        """Let calls of a tool pass without asking: of a session, an agent or a policy, for ``expiry`` seconds.

        With arguments it is for calls with exactly these. It answers what would ask, never what is denied.
        """
        body: dict[str, Any] = {"scope": "STANDING_SCOPE_" + scope.upper(), "name": name, "tool": tool, "uses": uses}
        body.update(serverLabel=server_label, expiry=duration(expiry))
        put_arguments(body, arguments)
        answer = await self._change("ApprovalService/PutStanding", body, request_id)
        return decode(messages.Standing, answer["standing"])

    async def list_standing_approvals(self, *, scope: str = "", name: str = "") -> list[messages.Standing]:
        """Return what passes without asking."""
        body = {"name": name}
        if scope:
            body["scope"] = "STANDING_SCOPE_" + scope.upper()
        return await self._list("ApprovalService/ListStanding", "standings", messages.Standing, body)

    async def delete_standing_approval(self, id: str, *, request_id: str | None = None) -> None:
        """Have calls ask again."""
        await self._change("ApprovalService/DeleteStanding", {"id": id}, request_id)

    # Pools of slots.

    async def put_pool(
        self,
        pool: str,
        slots: int,
        *,
        backpressure_threshold: int = 0,
        queue_limit: int | None = None,
        request_id: str | None = None,
    ) -> messages.Pool:
        """Make a pool, or change one."""
        body: dict[str, Any] = {"pool": pool, "slots": slots, "backpressureThreshold": backpressure_threshold}
        if queue_limit is not None:
            body["queueLimit"] = queue_limit
        return decode(messages.Pool, (await self._change("SlotService/PutPool", body, request_id))["pool"])

    async def get_pool(self, pool: str) -> messages.Pool:
        """Return a pool."""
        return decode(messages.Pool, (await self._read("SlotService/GetPool", {"pool": pool}))["pool"])

    async def list_pools(self) -> list[messages.Pool]:
        """Return all pools."""
        return await self._list("SlotService/ListPools", "pools", messages.Pool)

    async def delete_pool(self, pool: str, *, force: bool = False, request_id: str | None = None) -> None:
        """Remove a pool. Refused while it is in use, unless by force."""
        await self._change("SlotService/DeletePool", {"pool": pool, "force": force}, request_id)

    async def list_slots(self, pool: str) -> messages.PoolSlots:
        """Return who holds slots of a pool, and who waits."""
        return decode(messages.PoolSlots, await self._read("SlotService/ListSlots", {"pool": pool}))

    async def force_release(
        self,
        pool: str,
        slot_id: str,
        *,
        session_id: str = "",
        holder_client: str = "",
        request_id: str | None = None,
    ) -> bool:
        """Free a slot that its holder does not give back, and report whether there was one."""
        body = {"pool": pool, "slotId": slot_id, "sessionId": session_id, "holderClient": holder_client}
        answer = await self._change("SlotService/ForceRelease", body, request_id)
        return bool(answer["outcome"] == "OUTCOME_RELEASED")

    # Counters, values and lists.

    async def get(self, key: str) -> messages.Value | None:
        """Return the value of a key, or None."""
        answer = await self._read("CounterService/Get", {"key": key})
        return decode(messages.Value, answer) if answer.get("found") else None

    async def get_many(self, keys: Iterable[str]) -> dict[str, messages.Value]:
        """Return the values of keys as they stood at one instant, without those that have none."""
        answer = await self._read("CounterService/BatchGet", {"keys": list(keys)})
        versions = answer.get("versions", {})
        return {k: messages.Value(value=v, version=versions.get(k, "")) for k, v in answer.get("values", {}).items()}

    async def set(
        self,
        key: str,
        value: str,
        *,
        ttl: float | None = None,
        if_version: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Set a key, and return its new version. Another version than ``if_version`` is Rejected (VERSION_CONFLICT)."""
        body: dict[str, Any] = {"key": key, "value": value, "ifVersion": if_version or ""}
        if ttl is not None:
            body["ttl"] = duration(ttl)
        return str((await self._change("CounterService/Set", body, request_id)).get("version", ""))

    async def delete(self, key: str, *, if_version: str | None = None, request_id: str | None = None) -> bool:
        """Remove a key, and report whether it was there."""
        body = {"key": key, "ifVersion": if_version or ""}
        return bool((await self._change("CounterService/Delete", body, request_id)).get("found"))

    async def increment(self, key: str, amount: Amount = 1, *, request_id: str | None = None) -> Decimal:
        """Add to a key (at most 6 fractional digits) and return the sum."""
        body = {"key": key, "amount": exact(amount)}
        return Decimal((await self._change("CounterService/Increment", body, request_id))["value"])

    async def append(
        self,
        key: str,
        items: Iterable[str],
        *,
        ttl: float,
        if_length: int | None = None,
        request_id: str | None = None,
    ) -> int:
        """Put items at the end of a list, all or none, and return its length."""
        body: dict[str, Any] = {"key": key, "items": list(items), "ttl": duration(ttl)}
        if if_length is not None:
            body["ifLength"] = str(if_length)
        return int((await self._change("CounterService/Append", body, request_id))["length"])

    async def range(self, key: str, start: int = 0, limit: int = 100) -> messages.ListPart:
        """Return items of a list, from an index on."""
        body = {"key": key, "from": str(start), "limit": limit}
        return decode(messages.ListPart, await self._read("CounterService/Range", body))

    async def delete_list(self, key: str, *, request_id: str | None = None) -> bool:
        """Remove a list, and report whether it was there."""
        return bool((await self._change("CounterService/DeleteList", {"key": key}, request_id)).get("found"))

    # Rates and budgets.

    async def put_rate(
        self, rate: str, limit: int, per: float, *, queue_limit: int | None = None, request_id: str | None = None
    ) -> messages.Rate:
        """Make a rate, or change one: no window of ``per`` seconds admits more than ``limit``."""
        body: dict[str, Any] = {"rate": rate, "limit": limit, "per": duration(per)}
        if queue_limit is not None:
            body["queueLimit"] = queue_limit
        return decode(messages.Rate, (await self._change("LimitService/PutRate", body, request_id))["rate"])

    async def get_rate(self, rate: str) -> messages.Rate:
        """Return a rate."""
        return decode(messages.Rate, (await self._read("LimitService/GetRate", {"rate": rate}))["rate"])

    async def list_rates(self) -> list[messages.Rate]:
        """Return all rates."""
        return await self._list("LimitService/ListRates", "rates", messages.Rate)

    async def delete_rate(self, rate: str, *, request_id: str | None = None) -> None:
        """Remove a rate for which nobody waits."""
        await self._change("LimitService/DeleteRate", {"rate": rate}, request_id)

    async def take_rate(
        self, rate: str, cost: int = 1, *, wait: float = 10.0, priority: int = 0, request_id: str | None = None
    ) -> None:
        """Spend at a rate, or wait for up to ``wait`` seconds until that may be. Raises Denied where it may not."""
        until = time.monotonic() + wait
        for _ in range(1 + REPEATS):
            body: dict[str, Any] = {"rate": rate, "cost": cost, "priority": priority}
            answer = await self._change("LimitService/TakeRate", body, request_id, wait=wait)
            outcome = messages.word(answer["outcome"])
            if outcome != "CANCELLED" or request_id is not None:
                break
            # A node took a connection that broke for a caller that gave up: another id goes on waiting.
            wait = max(until - time.monotonic(), 0.001)
        if outcome != "ADMITTED":
            raise Denied(outcome, answer.get("reason", ""), messages.seconds(answer.get("retryAfter", 0)))

    async def put_budget(
        self,
        budget: str,
        amount: Amount,
        *,
        parent: str = "",
        per: float | None = None,
        request_id: str | None = None,
    ) -> messages.Budget:
        """Make a budget, or change its amount. Its parent and ``per`` are fixed when it is made."""
        body: dict[str, Any] = {"budget": budget, "amount": exact(amount), "parent": parent}
        if per is not None:
            body["per"] = duration(per)
        return decode(messages.Budget, (await self._change("LimitService/PutBudget", body, request_id))["budget"])

    async def get_budget(self, budget: str) -> messages.Budget:
        """Return a budget."""
        return decode(messages.Budget, (await self._read("LimitService/GetBudget", {"budget": budget}))["budget"])

    async def list_budgets(self) -> list[messages.Budget]:
        """Return all budgets."""
        return await self._list("LimitService/ListBudgets", "budgets", messages.Budget)

    async def adjust_budget(self, budget: str, by: Amount, *, request_id: str | None = None) -> messages.Budget:
        """Add to what is used of a budget and of all above it."""
        body = {"budget": budget, "by": exact(by)}
        return decode(messages.Budget, (await self._change("LimitService/AdjustBudget", body, request_id))["budget"])

    async def delete_budget(self, budget: str, *, request_id: str | None = None) -> None:
        """Remove a budget that is the parent of none."""
        await self._change("LimitService/DeleteBudget", {"budget": budget}, request_id)

    # The cluster.

    async def status(self, *, timeout: float | None = None) -> messages.Status:
        """Return the cluster as the node that is asked sees it. ``timeout`` takes the place of the client's."""
        op = Operation("ClusterService/Status", {}, reads=True, timeout=timeout)
        return decode(messages.Status, await self._perform(op))

    async def _follow(
        self,
        types: Iterable[str],
        session_id: str,
        agent: str,
        after: str,
        from_oldest: bool,
        cluster: bool,
    ) -> AsyncIterator[messages.Event]:
        body = {
            "types": list(types),
            "sessionId": session_id,
            "agentId": agent,
            "after": after,
            "fromOldest": from_oldest,
            "cluster": cluster,
        }
        async for message in self._stream("EventService/Follow", body):
            cursor = message.get("cursor", "")
            if "gap" in message:
                yield messages.Event(gap=decode(messages.Gap, message["gap"]), cursor=cursor)
            if "event" in message:
                yield decode(messages.Event, {**message["event"], "cursor": cursor})


def _judge(policy: str | None, session_id: str | None) -> dict[str, Any]:
    """Name the one by whose policy something is judged."""
    if (policy is None) == (session_id is None):
        raise ValueError("govnode: give one of policy and session_id")
    return {"sessionId": session_id} if policy is None else {"policy": policy_ref(policy)}
