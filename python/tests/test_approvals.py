"""People decide about calls that a policy does not allow by itself."""

from __future__ import annotations

import threading

import pytest
from conftest import eventually
from kernels import Kernel

import govnode
from govnode.integration import PolicyConfig, ToolCallRequest

ASKS = """
name: asks
allowed_tools: [mail]
require_human_approval: true
approval: {timeout: 60s}
"""


@pytest.fixture
def asking(client: govnode.Client) -> govnode.Session:
    client.put_policy(ASKS)
    return client.session(agent="anna", policy="asks")


def test_call_waits_for_a_yes(client: govnode.Client, asking: govnode.Session) -> None:
    entered = threading.Event()

    def work() -> None:
        with asking.call("mail", {"to": "bert"}, wait=60):
            entered.set()

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: len(client.list_approvals(state="pending", session_id=asking.id)) == 1)
    approval = client.list_approvals(session_id=asking.id)[0]
    assert (approval.tool, approval.agent_id, approval.state, approval.required) == ("mail", "anna", "PENDING", 1)
    assert not entered.is_set()
    with pytest.raises(govnode.Rejected) as rejected:
        client.approve(approval.id, approver="Anna")
    assert rejected.value.reason == "SELF_APPROVAL"
    decided = client.approve(approval.id, approver="Carla", reason="fine")
    assert [(b.approver, b.vote, b.reason) for b in decided.ballots] == [("carla", "APPROVE", "fine")]
    assert entered.wait(30)
    thread.join()
    assert client.get_approval(approval.id).state == "USED"


def test_refusal_says_what_is_asked(client: govnode.Client, asking: govnode.Session) -> None:
    with pytest.raises(govnode.Denied) as denied, asking.call("mail", call_id="m1", wait=0):
        pytest.fail("the block was entered")
    assert denied.value.outcome == "APPROVAL_REQUIRED"
    assert denied.value.approval is not None
    client.deny(denied.value.approval.id, approver="carla", reason="not today")
    with pytest.raises(govnode.Denied) as denied, asking.call("mail", call_id="m1"):
        pytest.fail("the block was entered")
    assert denied.value.outcome == "APPROVAL_DENIED"
    assert denied.value.approval is not None
    assert denied.value.approval.state == "DENIED"


def test_standing_approvals(client: govnode.Client, asking: govnode.Session) -> None:
    asking.open()
    standing = client.put_standing_approval("session", asking.id, "mail", {"to": "bert"}, expiry=60, uses=1)
    assert (standing.scope, standing.uses) == ("SESSION", 1)
    with asking.call("mail", {"to": "bert"}, wait=0):
        pass
    assert asking.begin("mail", {"to": "bert"}, wait=0).outcome == "APPROVAL_REQUIRED"
    every = client.put_standing_approval("agent", "anna", "mail", expiry=60)
    assert every.id in [s.id for s in client.list_standing_approvals(scope="agent", name="anna")]
    assert asking.begin("mail", {"to": "carla"}, wait=0).admitted
    client.delete_standing_approval(every.id)
    assert not asking.begin("mail", {"to": "dora"}, wait=0).admitted


def test_request_without_a_call(client: govnode.Client) -> None:
    asked = client.request_approval("deploy", {"to": "prod"}, agent="anna", message="may I?", timeout=60)
    assert (asked.state, asked.reason) == ("PENDING", "may I?")
    assert client.get_approval(asked.id, wait=0.01).state == "PENDING"
    assert client.cancel_approval(asked.id).state == "CANCELLED"


# Of adapters.

MAIL = ToolCallRequest("mail", {"to": "bert"})


def test_adapter_finds_what_all_its_contexts_ask(client: govnode.Client) -> None:
    k = Kernel(PolicyConfig(sensitive_tools=["mail"]), client=client, wait=0, approver=client)
    first, second = k.create_context("anna"), k.create_context("anna")
    asked = [k.pre_execute_check(ctx, MAIL).approval_id for ctx in (first, second)]
    assert {p["approval_id"] for p in k.get_pending_approvals().values()} == set(asked)
    assert all(k.approve(id) for id in asked)
    k.end_context(first)
    k.pre_execute_check(second, MAIL).require()
