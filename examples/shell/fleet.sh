#!/usr/bin/env bash
# A worker of a fleet with curl. Start it as often as you like: however many
# workers run, at most two of their calls are at work at one time.
set -euo pipefail
name=${1:-worker}
node=${NODE:-127.0.0.1:7070}
session=$name-$$-$RANDOM

# post METHOD BODY prints the answer. curl tries again where that is worth it: no
# connection, and the statuses 429, 500, 502, 503 and 504. The ids in the body stay
# the same, so each request has one effect.
post() {
	curl -sS --fail-with-body --retry 5 --retry-connrefused --max-time 40 \
		-H 'Content-Type: application/json' "http://$node/govnode.v1.$1" -d "$2"
}

# outcome prints the outcome of an answer.
outcome() { sed -n 's/.*"outcome": *"OUTCOME_\([A-Z_]*\)".*/\1/p' | head -n 1; }

# governed ID COMMAND... runs a command if the policy admits it.
governed() {
	local id=$1 answer status
	shift
	answer=$(post CallService/BeginCall "{\"sessionId\": \"$session\", \"callId\": \"$id\", \"tool\": \"shell\", \"arguments\": {\"command\": \"$*\"}, \"wait\": \"20s\"}")
	if [ "$(outcome <<<"$answer")" != ADMITTED ]; then
		echo "$name: not run: $*: $(sed 's/.*"reason": *"\([^"]*\)".*/\1/' <<<"$answer")"
		return
	fi
	if "$@"; then status=STATUS_SUCCEEDED; else status=STATUS_FAILED; fi
	post CallService/EndCall "{\"sessionId\": \"$session\", \"callId\": \"$id\", \"status\": \"$status\"}" >/dev/null
}

post PolicyService/PutPolicy '{"yaml": "name: fleet-shell\nmax_concurrent: 2\nbackpressure_threshold: 1\nmax_tool_calls: 10\nblocked_patterns: [\"rm -rf\"]\n"}' >/dev/null
post SessionService/CreateSession "{\"sessionId\": \"$session\", \"agentId\": \"$name\", \"policy\": {\"name\": \"fleet-shell\"}}" >/dev/null

for i in 1 2 3; do
	governed "$i" echo "$name: call $i runs"
done
governed 4 rm -rf /tmp/precious
post SessionService/CloseSession "{\"sessionId\": \"$session\"}" >/dev/null
