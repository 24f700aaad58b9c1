"""What rules of an Edictum ruleset leave of what a call returns."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

import govnode
from govnode import _review, testing
from govnode.adapters import Gate

RULES = """apiVersion: edictum/v1
kind: Ruleset
metadata: {name: looking}
defaults: {mode: enforce}
rules:
  - {id: keys, type: post, tool: look, when: {output.text: {matches: "sk-[a-z]+"}},
     then: {action: redact, message: a key}}
  - {id: dear, type: post, tool: look, when: {all: [{metadata.cents: {gt: 9}}, {result.pay: {exists: true}}]},
     then: {action: block, message: "the pay of {args.who}"}}
  - {id: wide, type: post, tool: look, when: {output.text: {contains: wide}}, then: {action: warn, message: it is wide}}
"""
WARNING = "⚠️ Content redacted by keys.\n⚠️ a key Tool already executed — assess before proceeding."


@pytest.fixture
def looking(client: govnode.Client) -> govnode.Session:
    client.put_policy(RULES)
    return client.session(agent="a", policy="looking")


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("fine", "fine"),
        (None, None),
        ({"n": 1}, {"n": 1}),
        ("the sk-abc", f"the [REDACTED]\n{WARNING}"),
        (["sk-abc", 1], f"['[REDACTED]', 1]\n{WARNING}"),
        ("wide", "wide\n⚠️ it is wide Tool already executed — assess before proceeding."),
    ],
)
def test_what_is_shown(address: testing.Address, looking: govnode.Session, output: Any, shown: Any) -> None:
    with looking.call("look", {"who": "ann"}) as call:
        assert call.reviews
        call.output = output
    assert call.shown == shown
    assert looking.read().open_calls == ()

    async def on_a_loop() -> Any:
        async with govnode.AsyncClient(address) as client:
            async with client.session(agent="a", policy="looking").call("look") as call:
                call.output = output
            return call.shown

    assert asyncio.run(on_a_loop()) == shown


def test_the_call_is_looked_at_too(looking: govnode.Session) -> None:
    with looking.call("look", {"who": "ann"}, metadata={"cents": 10}) as call:
        call.output = {"pay": 5}
    assert call.shown.startswith("[OUTPUT SUPPRESSED] the pay of ann\n")
    assert call.ended is not None
    assert call.ended.review is not None
    assert [(f.rule, f.type) for f in call.ended.review.findings] == [("dear", "policy_violation")]
    with looking.call("look", {"who": "ann"}, metadata={"cents": 9}) as call:
        call.output = {"pay": 5}
    assert call.shown == {"pay": 5}


@pytest.mark.parametrize("of", ["alone", "in a list"])
def test_of_an_object_all_that_its_text_shows_is_judged(looking: govnode.Session, of: str) -> None:
    @dataclasses.dataclass
    class Page:
        content: str
        key: str

    page = Page("fine", "sk-abc")
    passage = Gate(looking).enter("look", {})
    shown: Any = passage.run(lambda: page if of == "alone" else [page])
    assert "Page(content='fine', key='[REDACTED]')" in shown


def test_what_a_model_would_see_that_cannot_be_told_is_not_shown(looking: govnode.Session) -> None:
    def seen(result: str) -> str:
        raise TypeError("what is this?")

    with pytest.raises(TypeError, match="what is this"):
        Gate(looking).enter("look", {}).run(lambda: "sk-abc", seen=seen)
    assert Gate(looking).enter("other", {}).run(lambda: "sk-abc", seen=seen) == "sk-abc"  # no rule looks at it
    assert (looking.read().failures, looking.read().open_calls) == (1, ())


def test_what_nobody_looks_at_is_not_made_a_text(looking: govnode.Session) -> None:
    """No rule looks at it, and after two it is known that nobody compares it either: it may be large."""
    made: list[str] = []

    class Page:
        def __str__(self) -> str:
            made.append("")
            return "fine"

    def seen(page: Page) -> str:
        return str(page)

    gate = Gate(looking)
    for _ in range(5):
        gate.enter("other", {}).run(Page, seen=seen)
        gate.enter("other", {}).end("succeeded", Page())
    assert len(made) == 2


def test_what_cannot_be_judged_is_not_shown(looking: govnode.Session) -> None:
    with looking.call("look") as call:
        call.output = "x" * (1 << 20)
    assert call.shown == _review.TOO_LARGE
    with looking.call("look") as call:
        call.output = "y" * 900_000  # more than other requests may have
    assert call.shown == "y" * 900_000
    call = looking.begin("look")
    call._given_out, call._sent = "sk-abc", "sk-abc"  # no answer came to its end
    assert call.shown == _review.UNJUDGED
    call.end()


def test_what_nobody_is_there_to_judge_is_not_shown(address: testing.Address, looking: govnode.Session) -> None:
    looking.open()
    with govnode.Client(address) as client:
        here = client.session(looking.id)
        passage = Gate(here).enter("look", {})
        call = here.begin("look")
    call.end(output="sk-abc")
    assert call.shown == _review.UNJUDGED
    assert passage.run(lambda: "sk-abc") == _review.UNJUDGED
    call = looking.begin("look")
    call.end()
    call.end(output="sk-abc")  # only the first end counts
    assert call.shown == _review.UNJUDGED


def test_what_an_end_that_fails_has_not_judged_is_not_shown(looking: govnode.Session) -> None:
    passage = Gate(looking).enter("look", {})
    assert passage.call is not None
    passage.call.spent = {"b": object()}  # type: ignore[dict-item]
    assert passage.run(lambda: "sk-abc") == _review.UNJUDGED


def test_other_tools_are_as_they_were(looking: govnode.Session) -> None:
    with looking.call("other") as call:
        call.output = "sk-abc"
    assert not call.reviews
    assert call.shown == "sk-abc"


def test_evaluate_with_an_output(looking: govnode.Session) -> None:
    judged = looking.evaluate("look", output="sk-abc", metadata={"cents": 1})
    assert judged.review is not None
    assert judged.review.output == "[REDACTED]"
    assert [r.rule for r in judged.review.rules if not r.passed] == ["keys"]
