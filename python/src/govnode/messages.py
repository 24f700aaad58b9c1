"""What the service says, as values: the messages of ``proto/govnode/v1`` with Python's names and types.

Durations are seconds. Outcomes, kinds and other enumerations are texts without the prefix of their type. What a newer
service says beyond this is left out.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # it tells type checkers alone

    def dataclass_transform(**_: Any) -> Any:
        """Change nothing."""
        return lambda made: made


T = TypeVar("T")

#: A value of an enumeration, without the prefix that its type gives it.
Word = Annotated[str, "enumeration"]
_PREFIXES = ("OUTCOME_", "LEVEL_", "SESSION_STATE_", "APPROVAL_STATE_", "VOTE_", "ON_TIMEOUT_", "STANDING_SCOPE_")
_NONE: Mapping[str, Any] = types.MappingProxyType({})


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Message:
    """A value with the fields that its class annotates, and their defaults. It does not change.

    A frozen dataclass is that too, but to make forty of them takes as long as to import all else.
    """

    def __init__(self, **values: Any) -> None:
        for name in values:
            if name not in type(self).__annotations__:
                raise TypeError(f"{type(self).__name__} has no field {name}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} does not change")

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__annotations__}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), *(str(v) for v in self._fields().values())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in self._fields().items())})"


def camel(name: str) -> str:
    """Return the JSON name of a field."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def seconds(value: Any) -> float:
    """Read a duration, or any other number."""
    return float(value[:-1] if isinstance(value, str) and value.endswith("s") else value)


def word(name: str) -> str:
    """Return the name of a value of an enumeration without its prefix."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return what reads a value of a type from JSON."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _reader(next(a for a in args if a is not type(None)))
    if origin is tuple:
        each = _reader(args[0])
        return lambda values: tuple(each(v) for v in values)
    if origin is Mapping:
        each = _reader(args[1])
        return lambda values: {k: each(v) for k, v in values.items()}
    if hint in (int, bool):
        return typing.cast("Callable[[Any], Any]", hint)
    if hint is float:
        return seconds
    if hint is Word:
        return word
    if isinstance(hint, type) and issubclass(hint, Message):
        return functools.partial(decode, hint)
    return lambda value: value


_known: dict[type, list[tuple[str, str, Callable[[Any], Any]]]] = {}


def decode(kind: type[T], message: Mapping[str, Any]) -> T:
    """Make a value of a message in JSON."""
    readers = _known.get(kind)
    if readers is None:
        hints = typing.get_type_hints(kind, include_extras=True)
        readers = _known[kind] = [(name, camel(name), _reader(hint)) for name, hint in hints.items()]
    return kind(**{name: read(message[json]) for name, json, read in readers if message.get(json) is not None})


class Signal(Message):
    """A STOP or a KILL that stands, and against whom."""

    signal: str = ""
    reason: str = ""
    session_id: str = ""
    agent_id: str = ""
    policy_name: str = ""
    everything: bool = False
    age: float | None = None
    swept: bool = False


class RuleRecord(Message):
    """What became of one rule of an Edictum ruleset."""

    rule: str = ""
    type: str = ""
    passed: bool = False
    message: str = ""
    observed: bool = False
    candidate: bool = False
    policy_error: bool = False
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None


class Decision(Message):
    """What a policy decided, and by which rule."""

    allowed: bool = False
    action: str = ""
    policy: str = ""
    matched_rule: str = ""
    reason: str = ""
    category: str = ""
    policy_digest: str = ""
    policy_chain: tuple[str, ...] = ()
    backend: str = ""
    evaluation_time: float = 0.0
    error: str = ""
    public_message: str = ""
    rules: tuple[RuleRecord, ...] = ()
    side_effect: str = ""
    source: str = ""
    rules_evaluated: int = 0


class Grant(Message):
    """A slot that is held, with its fencing token: unique and rising in its pool for ever."""

    pool: str = ""
    token: int = 0
    ttl: float = 0.0


class Pressure(Message):
    """How full a pool is. ``advised_delay`` is how long the caller is asked to hold back before its next call."""

    level: Word = "NONE"
    in_use: int = 0
    limit: int = 0
    advised_delay: float = 0.0


class Counters(Message):
    """The counters of a session, right after what was asked."""

    attempts: int = 0
    calls: int = 0
    executions: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    tokens_used: int = 0


class BudgetAmount(Message):
    """An amount of one budget, a decimal."""

    budget: str = ""
    amount: str = ""


class QueuePlace(Message):
    """Where somebody waits; 1 is the head of the queue."""

    pool: str = ""
    position: int = 0


class Drift(Message):
    """How far an output is from the first one of its session."""

    score: float = 0.0
    exceeded: bool = False
    threshold: float = 0.0
    baseline_hash: str = ""
    current_hash: str = ""


class ReviewFinding(Message):
    """A rule that has found something in an output."""

    type: str = ""
    rule: str = ""
    field: str = ""
    message: str = ""
    metadata: dict[str, Any] | None = None


class Review(Message):
    """What the post rules of an Edictum ruleset make of an output: ``output`` takes its place where ``changed``."""

    output: Any = None
    changed: bool = False
    suppressed: bool = False
    warnings: tuple[str, ...] = ()
    findings: tuple[ReviewFinding, ...] = ()
    passed: bool = False
    rules: tuple[RuleRecord, ...] = ()
    policy_error: bool = False


class Ended(Message):
    """The answer to the end of a call: ``outcome`` is ENDED, ALREADY_ENDED or LEASE_LOST.

    ``signal`` is the KILL that ended it before; ``review`` what rules have made of its output.
    """

    outcome: Word = ""
    counters: Counters = Counters()
    drift: Drift | None = None
    checkpoint_id: str = ""
    reason: str = ""
    index: int = 0
    signal: Signal | None = None
    review: Review | None = None


class Evaluation(Message):
    """A decision that changed and counted nothing."""

    decision: Decision = Decision()
    trace: tuple[str, ...] = ()
    modified_arguments: dict[str, Any] | None = None
    decision_id: str = ""
    review: Review | None = None


class ScanFinding(Message):
    """What was found in a text, and never the text itself."""

    type: str = ""
    rule: str = ""
    count: int = 0


class Scan(Message):
    """What a policy says of a text. ``redacted`` is the text to use where ``action`` is redact."""

    allowed: bool = False
    action: str = ""
    findings: tuple[ScanFinding, ...] = ()
    redacted: str = ""
    reason: str = ""
    category: str = ""
    public_message: str = ""
    decision_id: str = ""
    policy_digest: str = ""


class TextFile(Message):
    """A file of the tree of a policy."""

    path: str = ""
    content: str = ""


class Policy(Message):
    """A policy: a named tree of files, known by its digest."""

    name: str = ""
    version: int = 0
    digest: str = ""
    files: tuple[TextFile, ...] = ()
    pinned: int = 0
    warnings: tuple[str, ...] = ()


class ToolHash(Message):
    """The content hash that is registered for a tool."""

    tool: str = ""
    hash: str = ""


class OpenCall(Message):
    """A call of a session that runs or waits."""

    call_id: str = ""
    tool: str = ""
    waiting: bool = False
    age: float = 0.0
    ttl: float = 0.0
    grants: tuple[Grant, ...] = ()


class KindCounters(Message):
    """Counters of the kinds of calls that the policy limits."""

    model_calls: int = 0
    agent_calls: int = 0
    handoffs: int = 0
    sampling_requests: Mapping[str, int] = _NONE


class Breaker(Message):
    """So many calls in a row failed that none is admitted for now."""

    failures: int = 0
    retry_after: float = 0.0


class SessionInfo(Message):
    """A session as it stands."""

    session_id: str = ""
    agent_id: str = ""
    policy_name: str = ""
    policy_version: int = 0
    policy_digest: str = ""
    state: Word = ""
    age: float = 0.0
    attempts: int = 0
    calls: int = 0
    executions: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    calls_by_tool: Mapping[str, int] = _NONE
    tokens_used: int = 0
    open_calls: tuple[OpenCall, ...] = ()
    checkpoints: tuple[str, ...] = ()
    attributes: Mapping[str, str] = _NONE
    parent_session_id: str = ""
    idle_ttl: float = 0.0
    idle_left: float = 0.0
    signal: Signal | None = None
    closed_reason: str = ""
    kind_counters: KindCounters | None = None
    breaker: Breaker | None = None


class CallApproval(Message):
    """The approval of a call: PENDING, APPROVED, USED, DENIED, EXPIRED or CANCELLED."""

    id: str = ""
    state: Word = ""
    expires_in: float | None = None
    required: int = 0
    votes: int = 0
    decided_by: str = ""
    decision_reason: str = ""


class Ballot(Message):
    """A vote that was given: APPROVE or DENY."""

    approver: str = ""
    vote: Word = ""
    reason: str = ""
    age: float = 0.0


class Approval(Message):
    """What people are asked to decide about, with what they are shown of it."""

    id: str = ""
    state: Word = ""
    agent_id: str = ""
    session_id: str = ""
    call_id: str = ""
    tool: str = ""
    arguments: str = ""
    reason: str = ""
    rule: str = ""
    policy_digest: str = ""
    request_digest: str = ""
    required: int = 0
    denials: int = 0
    ballots: tuple[Ballot, ...] = ()
    on_timeout: Word = ""
    age: float = 0.0
    expires_in: float | None = None
    by_timeout: bool = False
    timeout: float = 0.0
    kind: str = ""
    server_label: str = ""


class Standing(Message):
    """An approval of all calls of a tool, or of those with the same arguments, for SESSION, AGENT or POLICY."""

    id: str = ""
    scope: Word = ""
    name: str = ""
    tool: str = ""
    server_label: str = ""
    arguments: str | None = None
    uses: int = 0
    expires_in: float = 0.0
    age: float = 0.0


class Signalled(Message):
    """What stands at the target of a signal now, and what a KILL has closed so far."""

    signal: Signal | None = None
    closed: int = 0
    released: int = 0


class Pool(Message):
    """A pool of slots."""

    pool: str = ""
    slots: int = 0
    backpressure_threshold: int = 0
    queue_limit: int = 0
    in_use: int = 0
    waiting: int = 0
    last_token: int = 0


class Holder(Message):
    """Who holds a slot of a pool."""

    holder: str = ""
    session_id: str = ""
    slot_id: str = ""
    tool: str = ""
    label: str = ""
    age: float = 0.0
    ttl: float = 0.0
    token: int = 0
    weight: int = 0


class Waiter(Message):
    """Who waits for a slot of a pool."""

    holder: str = ""
    session_id: str = ""
    slot_id: str = ""
    label: str = ""
    position: int = 0
    weight: int = 0
    priority: int = 0
    wait_left: float = 0.0


class PoolSlots(Message):
    """A pool with who holds its slots and who waits for them, in order."""

    pool: Pool = Pool()
    slots: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()


class Rate(Message):
    """So much in each window of ``per`` seconds."""

    rate: str = ""
    limit: int = 0
    per: float = 0.0
    queue_limit: int = 0
    used: int = 0
    waiting: int = 0
    free_in: float | None = None


class Budget(Message):
    """A node of a tree of budgets. Amounts are decimals."""

    budget: str = ""
    parent: str = ""
    amount: str = ""
    used: str = ""
    left: str = ""
    share: float = 0.0
    per: float | None = None
    period_ends: float | None = None
    depth: int = 0
    children: int = 0


class Value(Message):
    """The value of a key, and its version for ``if_version``."""

    value: str = ""
    version: str = "0"


class ListItem(Message):
    """An item of a list."""

    index: int = 0
    value: str = ""


class ListPart(Message):
    """Items of a list as they stood at one instant; ``next`` is where to go on, and ``length`` at the end."""

    items: tuple[ListItem, ...] = ()
    length: int = 0
    next: int = 0


class Gap(Message):
    """Events of a node that are not there any more."""

    node: str = ""
    reason: str = ""
    missed: int = 0


class Event(Message):
    """One governance event. ``cursor`` is what to send as ``after`` to go on behind it.

    Where events were missed, ``gap`` says so, and ``type`` is empty.
    """

    type: str = ""
    node: str = ""
    sequence: int = 0
    timestamp: str = ""
    agent_id: str = ""
    session_id: str = ""
    call_id: str = ""
    tool: str = ""
    policy: str = ""
    rule: str = ""
    category: str = ""
    reason: str = ""
    decision_id: str = ""
    checkpoint_id: str = ""
    drift: Drift | None = None
    dry_run: bool = False
    repeat: bool = False
    gap: Gap | None = None
    cursor: str = ""


class Peer(Message):
    """A member of the cluster."""

    node: str = ""
    address: str = ""
    role: str = ""
    lag: int = 0
    api_address: str = ""
    up: bool = False


class Status(Message):
    """The cluster, as one node sees it."""

    node: str = ""
    leader: str = ""
    term: int = 0
    applied_index: int = 0
    peers: tuple[Peer, ...] = ()
    backend: str = ""
    version: str = ""
    health: str = ""


class Loss(Message):
    """A lease that was lost, of a slot or of a call."""

    pool: str
    session_id: str
    id: str
    token: int
    reason: str
