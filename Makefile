# govnode: `make help` lists the targets.
GO      ?= go
TOOL    := $(GO) tool -modfile=tools/go.mod
export GOFLAGS ?= -buildvcs=false
TAGS    := hashicorpmetrics

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

.PHONY: run
run: build ## start a node and print a first call
	./bin/govnode dev --backend memory

.PHONY: build
build: ## build bin/govnode
	$(GO) build -tags $(TAGS) -o bin/govnode ./cmd/govnode

.PHONY: test
test: needs ## all tests; it installs redis-server for those on Redis where it can, else they are skipped
	$(GO) test -p 4 -tags $(TAGS) ./...
	@$(MAKE) --no-print-directory test-python

.PHONY: test-python
test-python: build ## the tests of the Python client; skipped where there is no Python 3.10 or its environment cannot be made
	@tools/test-python $(PYTHONS)

.PHONY: test-frameworks
test-frameworks: build ## the adapters on the real frameworks; skipped where their environment cannot be made
	@tools/test-frameworks $(FRAMEWORKS)

.PHONY: check-python
check-python: ## the static checks of the Python client: ruff, mypy, and that uv.lock is up to date
	@GOVNODE_REQUIRE_PYTHON=1 tools/test-python environment
	cd python && .venv/bin/ruff format --check -q . && .venv/bin/ruff check -q . && .venv/bin/mypy
	cd python && "$$(../tools/uv)" lock -q --check

.PHONY: flips
flips: ## flip 200 bits of stored logs with each log store, and every region of their files
	GOVNODE_FLIPS=200 $(GO) test -tags $(TAGS) ./cluster ./cluster/durable -run 'Flipped|EveryRegion' -v -count=1 -timeout 10m

.PHONY: prove
prove: needs ## all layers of the proof, and four seeded bugs: 13 minutes after building; the report: bin/prove/report.html
	$(GO) run -tags $(TAGS) ./test/prove

.PHONY: prove-all
prove-all: needs ## the long forms of all layers, and all seeded bugs; 75 minutes
	$(GO) run -tags $(TAGS) ./test/prove -mode long

.PHONY: prove-smoke
prove-smoke: ## what runs the layers, tried in a minute after building
	$(GO) run -tags $(TAGS) ./test/prove -mode smoke

.PHONY: prove-l1
prove-l1: ## clusters in virtual time under faults, with new seeds, for 150 s
	GOVNODE_L1=long $(GO) test -tags $(TAGS) ./test/sim -run Clusters -v -count=1 -timeout 10m

.PHONY: prove-l3
prove-l3: build ## power cuts, and disks that lie as the control; 1 minute; as root, else it is skipped; GOVNODE_L3=long has other faults of disks
	GOVNODE_L3=$(or $(GOVNODE_L3),1) GOVNODE_BIN=$(CURDIR)/bin/govnode $(GO) test -tags $(TAGS) ./test/chaos/power ./test/processes/disks ./test/processes/skew -v -count=1 -timeout 20m
	GOVNODE_L3=1 GOVNODE_BIN=$(CURDIR)/bin/govnode $(GO) test -tags $(TAGS) ./test/chaos -run LeasesAndClocks -v -count=1 -timeout 5m

.PHONY: prove-l2
prove-l2: needs ## real processes and their clients under faults, 3 minutes on Raft and 1 on Redis, with new seeds; in namespaces as root
	GOVNODE_L2=1 $(GO) test -tags $(TAGS) ./test/chaos -run Processes -v -count=1 -timeout 15m

.PHONY: soak
soak: build ## everything that may befall nodes, networks, clocks and disks, for GOVNODE_SOAK=8h, judged every 5 minutes; as root
	GOVNODE_SOAK=$(or $(GOVNODE_SOAK),8h) GOVNODE_BIN=$(CURDIR)/bin/govnode $(GO) test -tags $(TAGS) ./test/chaos -run Soak -v -count=1 -timeout 0

.PHONY: race
race: needs ## all tests under the race detector
	$(GO) test -tags $(TAGS) -race ./...

.PHONY: needs
needs:
	@tools/needs

.PHONY: demo
demo: build ## a fleet on three nodes, which is stopped, asked about, limited, and loses its leader; 10 seconds
	./bin/govnode demo

.PHONY: outside
outside: build needs ## the promises, on Raft and on Redis, checked from outside with plain HTTP against real processes
	$(GO) test -tags $(TAGS),outside -count=1 -timeout 10m ./test/outside

.PHONY: attack
attack: build needs ## what attackers do, tried on nodes with TLS, tokens and chains, with the table of outcomes: bin/attack/report.md; as root, else some are skipped
	GOVNODE_BIN=$(CURDIR)/bin/govnode $(GO) run ./test/attack

.PHONY: attack-load
attack-load: build ## how much slower calls of one tenant are under floods of another, beside floods of a sink; 5 minutes
	GOVNODE_ATTACK_LOAD=$(or $(ROUNDS),5) GOVNODE_BIN=$(CURDIR)/bin/govnode $(GO) test -tags $(TAGS),outside,attack ./test/attack/load -run Measured -v -count=1 -timeout 20m

.PHONY: prove-l0
prove-l0: ## a million commands of every kind on the state machine and on a model of it; 1 minute
	GOVNODE_L0=long $(GO) test -tags $(TAGS) ./test/model -run StateMachine -v -count=1 -timeout 10m

# How many mutants, and of what; SEED draws others.
MUTANTS ?= 300
MUTATED ?= limiter session cluster

.PHONY: mutate
mutate: ## change one place of the code at a time, 300 times, and see whether the package's tests tell; an hour
	$(GO) run ./test/mutate -count $(MUTANTS) $(if $(SEED),-seed $(SEED)) $(MUTATED)

# Which bugs: all, names with commas between them, or how many of them in turn.
BUGS ?= all

.PHONY: prove-seeded
prove-seeded: ## bugs on purpose, one at a time: each has to be caught by the layer that is there for it; 6 minutes
	GOVNODE_SEEDED_RUN=$(BUGS) $(GO) test -tags $(TAGS) ./test/seeded -run Seeded -v -count=1 -timeout 30m

.PHONY: conformance
conformance: ## the table of the specifications' sections and their tests, by the engine and through a server
	$(GO) test -tags $(TAGS) ./engine ./internal/server -run Conformance -v

.PHONY: oracle
oracle: ## compare the ports of Python's library with python3, 10,000 random cases each
	GOVNODE_ORACLE=1 $(GO) test ./engine/... -run Oracle -v -count=1

.PHONY: test-edictum-go
test-edictum-go: build ## the Go SDK of Edictum against three nodes; EDICTUM_GO names a folder with its source
	tools/test-edictum-go -v

.PHONY: test-edictum-ts
test-edictum-ts: build ## the TypeScript SDK of Edictum on Node against three nodes; EDICTUM_TS names a folder with its source
	tools/test-edictum-ts

.PHONY: bench-edictum
bench-edictum: ## an allowed call in the pipeline of Edictum's Go SDK and in the engine here, side by side; EDICTUM_GO as above
	tools/test-edictum-go -run '^$$' -bench BeforeACall -benchtime 2s

.PHONY: bench-state
bench-state: ## a million sessions: memory, snapshot, restore
	GOVNODE_MILLION=1 GOGC=400 $(GO) test ./bench -run '^$$' -bench Million -benchtime 1x -timeout 20m

.PHONY: bench-python
bench-python: build ## the Python client beside bare POSTs of the same bodies, half a minute
	@GOVNODE_REQUIRE_PYTHON=1 tools/test-python environment
	cd python && GOVNODE_BINARY=$(CURDIR)/bin/govnode PYTHONPATH=src .venv/bin/python costs.py

.PHONY: bench
bench: build bench-peers ## govnode beside etcd and Redis in interleaved rounds, 9 minutes; see bench/README.md
	@mkdir -p bench/results
	./bin/govnode bench --nodes 3,1 --log-store boltdb,wal --against etcd,redis --sweep 1,256,1024 --rounds 3 --duration 4s \
		--json bench/results/apart.json --html bench/results/apart.html
	./bin/govnode bench --nodes 3 --transport unary --against etcd --callers 256 --rounds 3 --duration 4s \
		--json bench/results/unary.json
	./bin/govnode bench --nodes 3 --scenario apart,hot-pool --callers 256 --rounds 3 --duration 4s \
		--json bench/results/hot-pool.json
	./bin/govnode bench table bench/results/*.json

# How many commands bench-growth has done before it measures again, and the load
# under which it takes snapshots.
COMMANDS      ?= 10000000
SNAPSHOT_LOAD ?= --callers 256

.PHONY: bench-growth
bench-growth: build ## how the figures grow with nodes, sessions, slots, waiters, snapshots and commands, 20 minutes
	@mkdir -p bench/results
	./bin/govnode bench --nodes 1,3,5 --sweep 256,1024 --rounds 3 --duration 4s --json bench/results/nodes.json
	./bin/govnode bench --nodes 3 --fill 1000,100000,1000000 --sessions 40 --rounds 3 --duration 4s \
		--json bench/results/sessions.json
	./bin/govnode bench --nodes 3 --scenario pools --slots 10,100,1000 --callers 1000 --rounds 3 --duration 4s \
		--json bench/results/slots.json
	./bin/govnode bench --nodes 3 --scenario queue --slots 100 --hold 0s --sweep 100,1100 --rounds 3 --duration 4s \
		--json bench/results/queue.json
	./bin/govnode bench --nodes 3 --fill 1000000 --sessions 40 --snapshots none,raft $(SNAPSHOT_LOAD) --rounds 2 --duration 30s \
		--json bench/results/snapshots.json
	./bin/govnode bench --nodes 3 --after 0,$(COMMANDS) --callers 256 --duration 10s --json bench/results/commands.json
	./bin/govnode bench table bench/results/*.json

.PHONY: bench-rest
bench-rest: build ## the other scenarios once each, 1 minute
	@mkdir -p bench/results
	for s in reads policy-heavy fleet; do \
		./bin/govnode bench --nodes 3 --scenario $$s --callers 256 --duration 4s --json bench/results/$$s.json || exit 1; done
	./bin/govnode bench --nodes 3 --callers 256 --rate 2000 --duration 10s --json bench/results/rate.json

.PHONY: bench-peers
bench-peers: ## build the peers of the benchmark
	cd bench/etcd && $(GO) build -o ../../bin/bench-etcd .

.PHONY: generate
generate: ## generate code from proto
	$(TOOL) buf lint
	$(TOOL) buf generate

.PHONY: check
check: fmt-check vet staticcheck generate-check api-check ## all static checks

.PHONY: fmt-check
fmt-check:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "not formatted (gofmt -w):"; echo "$$out"; exit 1; }

.PHONY: vet
vet:
	$(GO) vet -tags $(TAGS) ./...
	$(GO) vet -tags $(TAGS),outside,attack ./test/...

.PHONY: staticcheck
staticcheck:
	$(TOOL) staticcheck -tags $(TAGS) ./...

.PHONY: vulncheck
vulncheck: ## known vulnerabilities in what the program calls; asks for the newest list of them
	tools/vulncheck -tags $(TAGS)

.PHONY: generate-check
generate-check: generate
	@git diff --exit-code --stat -- proto || { echo "generated code is not up to date: run make generate and commit"; exit 1; }

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

.PHONY: redis
redis: ## the Redis backend at length, on real redis-server processes (Debian: apt-get install redis-server)
	GOVNODE_REDIS=1 GOVNODE_REQUIRE_REDIS=1 $(GO) test -tags $(TAGS) ./storage/redis ./cmd/govnode/... -run Redis -count=1 -timeout 15m

# proto/api.binpb is an image of the API as it was when nothing more was to be
# renamed in it: buf build --path proto/govnode/v1 --exclude-source-info.
.PHONY: api-check
api-check: ## the API is compatible with what it was
	$(TOOL) buf breaking --against proto/api.binpb
