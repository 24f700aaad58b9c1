#!/usr/bin/env bash
# Three nodes on this machine, each a process of `govnode serve` with a data
# folder of its own, as they would be on three machines.
#
#   cluster.sh up             start a, b and c
#   cluster.sh kill NODE      end a node as a power cut would
#   cluster.sh start NODE     start it again with its data
#   cluster.sh replace NODE   start it again without its data, which is lost
#   cluster.sh status         who leads, who is a member
#   cluster.sh down           end all nodes
set -euo pipefail
folder=${FOLDER:-cluster-data}
govnode=${GOVNODE:-./bin/govnode}

# api NODE prints the address of its API; its Raft address has the port + 10.
api() {
	case $1 in
	a) echo 127.0.0.1:7070 ;;
	b) echo 127.0.0.1:7071 ;;
	c) echo 127.0.0.1:7072 ;;
	*) echo "cluster.sh: there is no node $1, only a, b and c" >&2; exit 2 ;;
	esac
}
raft=127.0.0.1:7080,127.0.0.1:7081,127.0.0.1:7082
every=$(api a),$(api b),$(api c)

# run NODE FLAGS... starts a node and waits until it serves.
run() {
	local node=$1
	shift
	mkdir -p "$folder"
	"$govnode" serve --node "$node" --data "$folder/$node" --listen "$(api "$node")" "$@" >>"$folder/$node.log" 2>&1 &
	echo $! >"$folder/$node.pid"
	for _ in $(seq 300); do
		if curl -fs "http://$(api "$node")/readyz" >/dev/null; then
			echo "$node is ready"
			return
		fi
		if ! kill -0 "$(cat "$folder/$node.pid")" 2>/dev/null; then break; fi
		sleep 0.1
	done
	echo "$node does not start:" >&2
	tail -n 3 "$folder/$node.log" >&2
	exit 1
}

# join NODE FLAGS... starts a node that asks the others to take it in, and waits
# until it has a vote: it gets one once it has caught up.
join() {
	run "$@" --join "$raft"
	until "$govnode" cluster status --addr "$every" | grep -Eq "^$1 +(voter|leader)"; do sleep 0.1; done
}

case ${1:-} in
up)
	# The first node begins a cluster, once in its life. The others ask it.
	run a --bootstrap
	join b
	join c
	;;
kill)
	kill -9 "$(cat "$folder/$2.pid")"
	while curl -fs "http://$(api "$2")/healthz" >/dev/null; do sleep 0.1; done
	echo "$2 is dead"
	;;
start)
	run "$2"
	;;
replace)
	rm -rf "${folder:?}/$2"
	join "$2" --replace
	;;
status)
	"$govnode" cluster status --addr "$every"
	;;
down)
	for node in a b c; do
		[ -f "$folder/$node.pid" ] && kill "$(cat "$folder/$node.pid")" 2>/dev/null || true
	done
	;;
*)
	sed -n '2,11s/^# \{0,1\}//p' "$0"
	exit 2
	;;
esac
