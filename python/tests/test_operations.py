"""Everything else that can be asked, each once against a real node."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from decimal import Decimal

import pytest
from conftest import eventually

import govnode
from govnode._operations import Operations
from govnode.edictum import GovnodeStorage


def test_policies(client: govnode.Client) -> None:
    put = client.put_policy("name: shop\nallowed_tools: [search]\n")
    assert client.put_policy("name: shop\nallowed_tools: [search]\n").digest == put.digest
    assert put.digest.startswith("sha256:")
    got = client.get_policy("shop")
    assert got.files == client.get_policy(put.digest).files
    assert got.files[0].content == "name: shop\nallowed_tools: [search]\n"
    tree = client.put_policy(name="tree", files={"a.yaml": "name: tree\nmax_tool_calls: 1\n"})
    assert tree.name == "tree"
    assert {"shop", "tree"} <= {p.name for p in client.list_policies()}
    evaluation = client.evaluate("shell", {"a": 1}, policy="shop", order="pre_execute", context={"x": 1}, agent="a")
    assert not evaluation.decision.allowed
    assert evaluation.decision.category == "not_allowed_tool"
    assert evaluation.trace
    assert client.explain(evaluation.decision_id)["decision"]["action"] == "deny"
    scan = client.scan("mail me at someone@example.com", policy="shop")
    assert (scan.action, scan.findings[0].rule) == ("redact", "email")
    with pytest.raises(ValueError, match="one of"):
        client.evaluate("shell")
    with pytest.raises(govnode.Rejected) as rejected:
        client.put_policy("name: [")
    assert rejected.value.reason == "INVALID_POLICY"
    assert "problem000" in rejected.value.metadata
    assert client.put_hash("search", "0" * 64).hash == "0" * 64
    assert [h.tool for h in client.list_hashes()] == ["search"]
    client.delete_hash("search")
    client.delete_policy("tree")
    with pytest.raises(govnode.Rejected) as rejected:
        client.get_policy("tree")
    assert rejected.value.reason == "NOT_FOUND"


def test_sessions_and_signals(client: govnode.Client) -> None:
    client.put_policy("name: mail\nmax_tool_calls: 20\n")
    session = client.session("mail-1", agent="mailer", policy="mail", idle_ttl=60, attributes={"team": "post"})
    session.open()
    info = session.read()
    assert (info.agent_id, info.policy_name, info.state, info.idle_ttl) == ("mailer", "mail", "OPEN", 60.0)
    assert info.attributes == {"team": "post"}
    client.session("mail-2", agent="mailer", policy=info.policy_digest, parent="mail-1").open()
    assert [s.session_id for s in client.list_sessions(agent="mailer")] == ["mail-1", "mail-2"]
    assert not session.evaluate("t", {"x": float("inf")}).decision.error
    assert session.scan("hello", kind="output").allowed
    stood = client.signal("STOP", agent="mailer", reason="enough").signal
    assert stood is not None
    assert [s.agent_id for s in client.list_signals()] == ["mailer"]
    assert session.begin("t", wait=0).outcome == "STOPPED"
    assert client.signal("CONTINUE", agent="mailer").signal is None
    assert session.begin("t").admitted
    assert session.close() == 1
    assert session.begin("t").outcome == "SESSION_CLOSED"


def test_pools(client: govnode.Client) -> None:
    pool = client.put_pool("p", 2, backpressure_threshold=1, queue_limit=0)
    assert (pool.slots, pool.queue_limit) == (2, 0)
    with client.slot("p", weight=2, label="mine", priority=1, max_hold=60) as slot:
        held = client.list_slots("p").slots[0]
        assert (held.label, held.weight, held.token) == ("mine", 2, slot.token)
        assert slot.pressure.level == "PRESSED"
        with pytest.raises(govnode.Denied) as denied:
            client.acquire("p")
        assert denied.value.outcome == "QUEUE_FULL"
    assert client.get_pool("p").in_use == 0
    assert "p" in [p.pool for p in client.list_pools()]
    client.delete_pool("p")
    with pytest.raises(govnode.Rejected):
        client.acquire("p")


def test_values_and_lists(client: govnode.Client) -> None:
    assert client.get("v") is None
    version = client.set("v", "OUTCOME_one", if_version="0", ttl=60)
    value = client.get("v")
    assert value is not None
    assert (value.value, value.version) == ("OUTCOME_one", version)
    with pytest.raises(govnode.Rejected) as rejected:
        client.set("v", "two", if_version="0")
    assert rejected.value.reason == "VERSION_CONFLICT"
    assert client.increment("n", Decimal("0.000001")) == Decimal("0.000001")
    assert client.increment("n", -1) == Decimal("-0.999999")
    assert set(client.get_many(["v", "n", "none"])) == {"v", "n"}
    assert client.delete("v", if_version=version)
    assert not client.delete("v")
    assert client.append("l", ["a", "b"], ttl=60, if_length=0) == 2
    part = client.range("l", 1)
    assert [(i.index, i.value) for i in part.items] == [(1, "b")]
    assert (part.length, part.next) == (2, 2)
    assert client.delete_list("l")


def test_storage_of_edictum(client: govnode.Client) -> None:
    """Edictum architecture, Session and Storage Model: the protocol of a StorageBackend, with its ``ttl``."""
    store = GovnodeStorage(client, prefix="edictum/")

    async def scenario() -> None:
        assert await store.get("s:run:note") is None
        await store.set("s:run:note", "kept")
        await store.set("s:run:soon", "over", ttl=1)
        assert await store.get("s:run:note") == "kept"
        assert [await store.increment("s:run:execs"), await store.increment("s:run:execs", 0.5)] == [1.0, 1.5]
        with pytest.raises(ValueError, match="holds a text"):
            await store.increment("s:run:note")
        await store.delete("s:run:execs")
        assert await store.batch_get(["s:run:execs", "s:run:note"]) == {"s:run:execs": None, "s:run:note": "kept"}

    asyncio.run(scenario())
    eventually(lambda: client.get("edictum/s:run:soon") is None)
    assert client.get("edictum/s:run:note") is not None


def test_rates_and_budgets(client: govnode.Client) -> None:
    rate = client.put_rate("r", 2, 3600)
    assert (rate.limit, rate.per) == (2, 3600.0)
    client.take_rate("r", 2)
    with pytest.raises(govnode.Denied) as denied:
        client.take_rate("r", wait=0)
    assert (denied.value.outcome, denied.value.retry_after > 3000) == ("RATE_LIMITED", True)
    assert client.get_rate("r").used == 2
    client.delete_rate("r")
    assert "r" not in [r.rate for r in client.list_rates()]
    client.put_budget("team", 10, per=3600)
    client.put_budget("team/anna", "5.5", parent="team")
    client.put_policy("name: spender\nmax_tool_calls: 20\n")
    session = client.session(agent="anna", policy="spender")
    with session.call("t", budgets={"team/anna": 2.5}) as call:
        call.spent = {"team/anna": 1}
    assert client.get_budget("team/anna").left == "4.5"
    assert client.get_budget("team").used == "1"
    assert client.adjust_budget("team", 9).left == "0"
    with pytest.raises(govnode.Denied) as denied, session.call("t", budgets={"team/anna": 1}):
        pytest.fail("the block was entered")
    assert denied.value.outcome == "BUDGET_EXCEEDED"
    client.delete_budget("team/anna")
    assert [b.budget for b in client.list_budgets()] == ["team"]


def test_events(client: govnode.Client, address: str) -> None:
    client.put_policy("name: seen\nblocked_patterns: [secret]\n")
    session = client.session(agent="a", policy="seen")
    events = client.events(["policy_violation"], session_id=session.id, from_oldest=True)
    denied = session.begin("t", {"x": "secret"})
    event = next(events)
    assert (event.type, event.decision_id) == ("policy_violation", denied.decision_id)
    session.begin("t", {"x": "secret"})
    assert next(events).cursor != event.cursor
    events.close()  # type: ignore[attr-defined]
    behind = client.events(["policy_violation"], session_id=session.id, after=event.cursor)
    assert next(behind).sequence > event.sequence
    behind.close()  # type: ignore[attr-defined]
    with pytest.raises(govnode.Rejected):
        next(client.events(["no such type"]))


def test_status(client: govnode.Client) -> None:
    assert client.status().backend == "memory"


def test_both_clients_have_every_operation() -> None:
    named = {n for n, f in vars(Operations).items() if inspect.iscoroutinefunction(f) and not n.startswith("_")}
    assert len(named) >= 40
    for name in named:
        sync = getattr(govnode.Client, name)
        assert sync.__doc__ == getattr(govnode.AsyncClient, name).__doc__
        assert inspect.signature(sync) == inspect.signature(getattr(Operations, name))


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOVNODE_ADDRESSES", "10.0.0.1:1, https://node.example")
    assert govnode.Client().config.urls == ["http://10.0.0.1:1", "https://node.example"]
    for wrong in ("", "nowhere", "ftp://x:1", "http://u:p@x:1", "x:1?q"):
        with pytest.raises(ValueError, match="govnode"):
            govnode.Client(wrong)


def test_import_is_light(python: Callable[..., str]) -> None:
    loaded = python("import sys, govnode; print(*[m for m in ('httpx2', 'yaml', 'pydantic') if m in sys.modules])")
    assert loaded.strip() == ""
