# One line for laptop and CI: `make check`.
GO     ?= go
TOOL   := $(GO) tool -modfile=.ci/tools.mod
PROTOS := fsm/fsmpb/fsm.proto node/nodepb/node.proto transport/transportpb/transport.proto
SEEDS  ?= 10000

.PHONY: help check fmt lint test race sim process soak fuzz golden proto bench build

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | expand -t12

check: lint race sim ## everything that is fast: format, vet, staticcheck, tests under the race detector, simulated clusters

lint: ## format, go vet, staticcheck, tidy go.mod
	@out=$$($(TOOL) gofumpt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); test -z "$$out" || { echo "gofumpt would change (make fmt):"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	$(GO) mod tidy -diff

fmt: ## format the tree
	$(TOOL) gofumpt -w $$(git ls-files '*.go' | grep -v '\.pb\.go$$')

# Where no goroutine is, the race detector has nothing to see: fsm but for its Machine, and a model that is checked by spin.
PLAIN := ./fsm ./jepsen/model

race: ## the fast tests under the race detector
	$(GO) test -race -short -timeout 40m $(filter-out $(PLAIN:./%=github.com/miwnode/miwnode/%),$(shell $(GO) list ./...))
	$(GO) test -race -short -run Machine ./fsm

sim: ## simulated clusters under faults: all seeds of a CI run, planted bugs, scenarios; fleets of up to 200; the state machine, the model
	$(GO) test -short -timeout 40m ./jepsen $(PLAIN)
	$(GO) test -short -run 'Fleet|TenThousand' ./coord

test: ## the fast tests, without the race detector
	$(GO) test -short ./...

process: ## real processes: kill -9, SIGSTOP, rolling restarts, partitions in network namespaces
	$(GO) test -count=1 -timeout 20m -run 'Process' ./guard ./node ./cmd/miwnode ./jepsen

soak: ## many simulated seeds: make soak SEEDS=100000
	$(GO) test ./jepsen -run TestSim -count=1 -timeout 24h -seeds $(SEEDS)

fuzz: ## every fuzz target for 30 seconds
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test $$p -list '^Fuzz' | grep ^Fuzz); do \
		echo "$$p $$f"; $(GO) test $$p -run '^$$' -fuzz "^$$f$$" -fuzztime 30s || exit 1; done; done

golden: ## rewrite golden files; read the diff before you commit it
	$(GO) test ./fsm -update
	$(GO) test ./cmd/miwnode -run Help -update

bench: ## miwnode beside etcd, three nodes each, on this machine
	cd bench && $(GO) run . 

proto: ## regenerate *.pb.go (needs protoc)
	$(GO) build -modfile=.ci/tools.mod -o bin/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
	protoc -I. --go_out=. --go_opt=module=github.com/miwnode/miwnode --plugin=bin/protoc-gen-go $(PROTOS)

build: ## the binary, here
	$(GO) build -trimpath -o miwnode ./cmd/miwnode
