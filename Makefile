# Lapse. `make help` lists the targets; CONTRIBUTING.md says when to use which.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO        ?= go
TAGS      := nomsgpack
FUZZTIME  ?= 10s
COUNT     ?= 5
BENCH     ?= .
TASKS     ?= 1000000
ROUNDS    ?= 25
FLEET_TASKS ?= 60000
SEEDS     ?= 1-20
NODES     ?= 5
DURATION  ?= 240s
FAULTS    ?= all
FEATURES  ?= all
STOCK     ?= 20000
RATE      ?= 120
FAILOVER_AFTER ?= 2s
AT_ONCE   ?= 1
JOB       ?=
MUTANTS   ?=
DIR       ?= $(CURDIR)/campaign-logs
LEDGERS   ?= disk redis fleet
BASE      ?=
PAIRS     ?= 10
PATHS     ?=
LIMIT     ?= 1.03
FROM      ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
campaign: TASKS = 50000
night: TASKS = 200000
REVISION  ?= HEAD
TARGETS   ?=
VERSION   ?=
RUN_FLAGS ?=
COMPARE_FLAGS ?=

LINT_VERSION := v2.15.0
LINT         := $(or $(shell command -v golangci-lint 2>/dev/null),$(wildcard $(shell $(GO) env GOPATH)/bin/golangci-lint),$(CURDIR)/bin/golangci-lint)
ADAPTERS     := adapters/nats adapters/rabbitmq adapters/kafka
# These have the longest tests. Named first, they start first, and the others run beside them.
EVERYTHING   := ./tasks/internal/cluster ./tasks/internal/engine ./tasks ./scripts/docs ./recovery/redisledger ./...
# Tests wait more than they compute: for nodes, Redis, the disk. So many packages, and so many
# parallel tests of each, run at the same time. Under the race detector they compute.
TOGETHER     := -p 4 -parallel 4
# Packages whose goroutines share memory, in the program or in its tests, are found by what they
# share it with: these run under the race detector. Left out are tables, texts and parsers that one
# goroutine has to itself, which the others link in and check on the way, and what starts programs
# (scripts/..., the root), which are not instrumented.
SHARED        = ./tasks ./recovery/redisledger $(shell grep -rlE --include='*.go' '\<go func\>|\.Go\>|\<sync\.|\<atomic\.|\<synctest\.|\<make.chan\>' \
	adapters/internal cli client edge httpapi internal metrics recovery respapi scripts/pair tasks tracing wheel | xargs -n 1 dirname | sort -u | sed 's|^|./|')
# Packages that schedule: an order of goroutines that two processors hide shows on one.
SINGLE       := ./tasks ./respapi ./client ./wheel ./recovery/memledger ./recovery/diskledger/... \
	./tasks/internal/cluster ./tasks/internal/engine/... ./tasks/internal/pulse ./tasks/internal/relay
# Computes when no other process wants to.
IDLE         := $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)
BENCHED      := ./wheel/... ./recovery/... ./tasks/... ./httpapi/... ./client/... ./tracing/...

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/lapse, statically linked
	CGO_ENABLED=0 $(GO) build -tags $(TAGS) -trimpath -ldflags "-s -w" -o bin/lapse .

.PHONY: run
run: build ## serve on 127.0.0.1:7480 with the ledger in ./lapse-data (RUN_FLAGS="--log-level debug")
	@exec bin/lapse serve $(RUN_FLAGS)

.PHONY: test
test: redis beanstalkd ## run all tests; installs redis-server and beanstalkd if they are missing
	$(GO) test -tags $(TAGS) $(TOGETHER) -timeout 20m $(EVERYTHING)
	cd scripts/compare && $(GO) test -tags $(TAGS) $(TOGETHER) ./...

.PHONY: adapters
adapters: brokers ## test the queue adapters against real brokers; installs nats-server and rabbitmq-server if they are missing
	@for dir in $(ADAPTERS); do echo "test $$dir"; (cd $$dir && $(GO) test -tags $(TAGS) ./...); done

.PHONY: race
race: redis beanstalkd ## run the tests of what shares memory under the race detector, and of what schedules on a single processor; needs a C compiler
	CGO_ENABLED=1 $(GO) test -tags $(TAGS) -race -parallel $$(nproc) -short -vet off -timeout 30m $(SHARED)
	$(GO) test -tags $(TAGS) $(TOGETHER) -cpu 1 -short -vet off $(SINGLE)

.PHONY: lint
lint: tools ## check formatting, vet, golangci-lint with the import directions, what the linker may leave out, shellcheck if present
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "gofmt is needed for:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet -tags $(TAGS),fault,browser,clients ./...
	cd scripts/compare && $(GO) vet -tags $(TAGS) ./...
	$(LINT) run ./...
	@for dir in scripts/release scripts/release/helm examples/go-outbox; do (cd $$dir && $(GO) vet -tags $(TAGS) ./... && $(LINT) run ./...) || exit 1; done
	@if $(GO) build -tags $(TAGS) -ldflags=-dumpdep -o /dev/null . 2>&1 | grep -m 3 '<ReflectMethod>'; then \
		echo "these find methods by name at run time: the linker keeps every exported method of the program, 13 MB"; exit 1; fi
	@for dir in $(ADAPTERS); do echo "lint $$dir"; (cd $$dir && $(GO) vet -tags $(TAGS) ./... && $(LINT) run ./...); done
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run scripts/need-* scripts/clients scripts/bench-compare scripts/known-vulnerabilities scripts/release/package/*.sh; fi

.PHONY: alerts
alerts: ## compare the alerts and the dashboard in deploy/ with the metrics, and run promtool if it is installed
	$(GO) test -tags $(TAGS) -count 1 -v -run '^(TestAlerts|TestPromtool|TestDashboard|TestScrapeIsWhole|TestQueriesAreChecked)' ./scripts/deploy | grep -E '^(=== NAME|--- |    [a-z]|ok|FAIL|PASS)'

.PHONY: bench
bench: ## run the benchmarks COUNT times; text on stdout and in bench/latest.txt (BENCH=regexp COUNT=5)
	@mkdir -p bench
	$(GO) test -tags $(TAGS) -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 60m $(BENCHED) | tee bench/latest.txt

.PHONY: pair
pair: redis ## processor time a task beside commit BASE=, in alternating runs: PATHS=<regexp> PAIRS=10 LIMIT=1.03 (10 minutes)
	@[ -n "$(BASE)" ] || { echo "make pair BASE=<commit>"; exit 2; }
	@$(GO) run -tags $(TAGS) ./scripts/pair -base "$(BASE)" -pairs $(PAIRS) -paths '$(value PATHS)' -limit $(LIMIT)

.PHONY: bench-compare
bench-compare: build ## run Lapse beside asynq, beanstalkd and Redis expiry; writes bench/comparison.md and docs/comparison.svg (20 minutes)
	scripts/bench-compare $(COMPARE_FLAGS)

.PHONY: release
release: ## binaries, archives, packages also for npm and pip, images, chart, formula, SBOMs, checksums of VERSION=v1.2.3 (else REVISION=HEAD) into dist/ (TARGETS=linux/amd64)
	cd scripts/release && $(GO) run . -revision $(or $(VERSION),$(REVISION)) -targets "$(TARGETS)" -out $(CURDIR)/dist

.PHONY: release-prepare
release-prepare: ## look for known vulnerabilities, and make the adapters require VERSION=v1.2.3, which is about to be tagged
	@MUST=1 scripts/known-vulnerabilities $(GO)
	cd scripts/release && $(GO) run . -prepare "$(VERSION)"

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME=10s
	@scripts/fuzz $(FUZZTIME) $(GO) test -tags $(TAGS)

.PHONY: vuln
vuln: ## look for known vulnerabilities in what is linked in; says that nothing was checked where their list cannot be had
	@scripts/known-vulnerabilities $(GO)

.PHONY: release-test
release-test: redis ## make a release of this machine's target, install its packages into a fresh root, and run what deploy/ describes
	cd scripts/release && $(GO) test -tags $(TAGS) -count 1 -timeout 20m ./...

.PHONY: browser
browser: redis ## try the pages in a real Chromium, on each of LEDGERS='disk redis fleet'; installs a browser if there is none
	@scripts/need-browser
	for ledger in $(LEDGERS); do LAPSE_LEDGER=$$ledger $(GO) test -tags $(TAGS),browser -count 1 -timeout 40m ./scripts/browser/ || exit 1; done

.PHONY: clients
clients: build ## test the clients in TypeScript and Python, the OpenAPI document, and clients of Redis against the server, and run the examples; installs what is missing
	@scripts/need-clients
	scripts/clients
	@scripts/need-redis-clients
	LAPSE_BIN=$(CURDIR)/bin/lapse $(GO) test -tags $(TAGS),clients -count 1 -v -timeout 15m ./scripts/respclients/
	LAPSE_BIN=$(CURDIR)/bin/lapse $(GO) test -tags $(TAGS),clients -count 1 -v -timeout 15m ./scripts/examples/
	@scripts/need-redis-tests
	LAPSE_BIN=$(CURDIR)/bin/lapse $(GO) test -tags $(TAGS),clients -count 1 -v -timeout 10m ./scripts/redissuite/

.PHONY: clients-generate
clients-generate: build ## generate what the clients have of the OpenAPI document
	@scripts/need-clients
	scripts/clients generate

.PHONY: night
night: redis ## three nodes, TASKS=200000, the dashboard in a real Chromium: mend what its headline names until the wave is through, and the cost of open pages
	@scripts/need-browser
	LAPSE_TASKS=$(TASKS) $(GO) test -tags $(TAGS),browser -count 1 -v -timeout 30m -run '^(TestNight|TestMidnight|TestLargeFleet)$$' ./scripts/browser/

.PHONY: fault
fault: build redis beanstalkd redis-clients ## kill -9, SIGSTOP, a full disk, Redis gone or full, nodes cut off, garbage, and a short campaign against the built binary
	LAPSE_BIN=$(CURDIR)/bin/lapse $(GO) test -tags $(TAGS),fault -count 1 -v -parallel 4 -timeout 25m ./scripts/crash/
	LAPSE_BIN=$(CURDIR)/bin/lapse $(GO) test -tags $(TAGS),fault -count 1 -v -p 2 -timeout 10m ./scripts/campaign/ ./scripts/movein/
	LAPSE_BIN=$(CURDIR)/bin/lapse $(GO) test -tags $(TAGS),fault -count 1 -v -timeout 15m ./scripts/respclients/

.PHONY: mainjob
mainjob: build redis ## schedule TASKS=1000000 over HTTP, kill -9 three times, deliver all, on each ledger; prints the figures
	LAPSE_BIN=$(CURDIR)/bin/lapse LAPSE_TASKS=$(TASKS) $(GO) test -tags $(TAGS),fault -count 1 -v -parallel 1 -timeout 30m -run '^TestMainJob$$' ./scripts/crash/

.PHONY: movein
movein: build redis ## import TASKS=1000000 keys of a Redis beside a client of it, and move 200,000 in and out with a subscriber that stays; prints the figures
	LAPSE_BIN=$(CURDIR)/bin/lapse LAPSE_TASKS=$(TASKS) $(GO) test -tags $(TAGS),fault -count 1 -v -timeout 15m -run '^TestRate$$' ./scripts/movein/
	LAPSE_BIN=$(CURDIR)/bin/lapse LAPSE_TASKS=200000 $(GO) test -tags $(TAGS),fault -count 1 -v -timeout 15m -run '^TestMainJob$$' ./scripts/movein/

.PHONY: fleet
fleet: build redis ## ROUNDS=25 of kill -9, SIGSTOP, cuts and hand-overs among three nodes with FLEET_TASKS=60000, on each kind of Redis
	LAPSE_BIN=$(CURDIR)/bin/lapse LAPSE_FLEET_ROUNDS=$(ROUNDS) LAPSE_FLEET_TASKS=$(FLEET_TASKS) $(GO) test -tags $(TAGS),fault -count 1 -v -timeout 60m -run '^(TestFleetRounds|TestRollingRestart|TestAdoption|TestTwins)$$' ./scripts/crash/

.PHONY: upgrade
upgrade: build redis ## restart three nodes of version FROM=<tag or commit> with this one, one after the other, under load
	@[ -n "$(FROM)" ] || { echo "make upgrade FROM=<tag or commit>"; exit 2; }
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && git archive "$(FROM)" | tar -x -C "$$dir" && \
	(cd "$$dir" && $(GO) build -tags $(TAGS) -o "$$dir/lapse" .) && \
	LAPSE_BIN=$(CURDIR)/bin/lapse LAPSE_FROM="$$dir/lapse" $(GO) test -tags $(TAGS),fault -count 1 -v -timeout 15m -run '^TestRollingUpgrade$$' ./scripts/crash/

.PHONY: campaign
campaign: build redis ## calls and faults that follow from SEEDS=1-20, judged: NODES=5 TASKS=50000 DURATION=240s FAULTS=all FEATURES=all STOCK=20000 RATE=120 AT_ONCE=1 JOB=
	LAPSE_BIN="$${LAPSE_BIN:-$(CURDIR)/bin/lapse}" LAPSE_SEEDS=$(SEEDS) LAPSE_NODES=$(NODES) LAPSE_TASKS=$(TASKS) LAPSE_DURATION=$(DURATION) \
	LAPSE_FAULTS=$(FAULTS) LAPSE_FEATURES=$(FEATURES) LAPSE_STOCK=$(STOCK) LAPSE_RATE=$(RATE) LAPSE_FAILOVER_AFTER=$(FAILOVER_AFTER) LAPSE_JOB=$(JOB) LAPSE_DIR=$(DIR) \
	$(GO) test -tags $(TAGS),fault -count 1 -v -parallel $(AT_ONCE) -timeout 0 -run '^TestCampaign$$' ./scripts/campaign/

.PHONY: mutants
mutants: redis ## plant the one-line faults of scripts/mutants/mutants.txt, one at a time, and say which tests notice (MUTANTS="-promise 3" or "12 40-50")
	nice -n 19 $(GO) run -tags $(TAGS) ./scripts/mutants $(MUTANTS)

.PHONY: walk
walk: ## count the files and functions of tasks/** that one task passes on one node, beside what an idle server runs
	@$(GO) run -tags $(TAGS) ./scripts/walk

.PHONY: cover
cover: ## write coverage.html, and print the coverage of each package
	$(GO) test -tags $(TAGS) -coverpkg=./... -coverprofile=coverage.out ./...
	$(GO) tool cover -html=coverage.out -o coverage.html
	@$(GO) tool cover -func=coverage.out | tail -1

.PHONY: ci
ci: LEDGERS = disk fleet
# Those that judge how punctual a server is have the machine to themselves, but for a compiler that
# takes only what they leave. Of the others two go at a time: one computes while another waits.
# Package managers take one caller at a time, so what is missing is installed before.
ci: needs lint test ## everything that must pass before a change goes in
	$(MAKE) -j 2 fault compiled
	$(MAKE) -j 2 --output-sync=target LEDGERS="$(LEDGERS)" race browser clients release-test adapters vuln
	$(MAKE) fuzz FUZZTIME=3s
	$(MAKE) pair BASE="$$(cat bench/base)" PAIRS=3 LIMIT=1.10

.PHONY: compiled
compiled:
	@CGO_ENABLED=1 $(IDLE) $(GO) test -tags $(TAGS) -race -run '^$$' -short -vet off $(SHARED) >/dev/null
	@$(IDLE) scripts/fuzz compiled $(GO) test -tags $(TAGS)

.PHONY: needs
needs: redis beanstalkd redis-clients brokers tools ## install what the tests need and is missing
	@scripts/need-browser
	@scripts/need-clients
	@scripts/need-redis-tests

.PHONY: redis
redis:
	@scripts/need-redis

.PHONY: beanstalkd
beanstalkd:
	@scripts/need-beanstalkd

.PHONY: redis-clients
redis-clients:
	@scripts/need-redis-clients

.PHONY: brokers
brokers:
	@scripts/need-brokers

.PHONY: tools
tools: ## install golangci-lint into bin/ if it is missing
	@if ! command -v $(LINT) >/dev/null; then \
		echo "installing golangci-lint $(LINT_VERSION) into bin/ (a few minutes, once)"; \
		GOBIN=$(CURDIR)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION); \
	fi

.PHONY: clean
clean: ## remove what the other targets have made; the data in ./lapse-data stays
	rm -rf bin dist bench/latest.txt coverage.out coverage.html clients/typescript/{node_modules,build,dist} scripts/apicheck/node_modules examples/*/{node_modules,build}
