# make test   every test that needs Go alone
# make e2e    genrm against the real programs (engines, NeMo Gym, Ray, Kubernetes, Slurm): needs root on Debian 12, Python 3.11 or 3.12 and a package index
# make build  ./genrm, one static file
# make bench  what it costs; docs/speed.md
# make fuzz   each fuzz target for FUZZTIME

SHELL      := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: all test check unit drift e2e build bench fuzz

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    ?= 20s

all: build

test: check unit drift

# Form and suspicious constructs.
check:
	@files=$$(git ls-files -co --exclude-standard '*.go' | { xargs ls -d 2>/dev/null || true; } | xargs gofmt -l); \
		if [[ -n $$files ]]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...

unit:
	go test -race -timeout 20m ./...

# Rewrites every recorded output in a copy of the tree, and wants the copy to
# stay as it was: nothing recorded is out of date or left over.
drift:
	@d=$$(mktemp -d); trap 'rm -rf "$$d"' EXIT; \
		git ls-files -co --exclude-standard -z | { xargs -0 ls -d 2>/dev/null || true; } | tar -c -T - | tar -x -C "$$d"; \
		cp -a "$$d/." "$$d.was"; trap 'rm -rf "$$d" "$$d.was"' EXIT; \
		(cd "$$d" && go mod tidy && GENRM_UPDATE=1 GOFLAGS=-trimpath go test -count=1 ./cmd/genrm ./launchers/slurm >drift.log 2>&1 || { cat drift.log; exit 1; }; rm drift.log); \
		diff -r "$$d.was" "$$d" || { echo "recorded outputs are out of date: run GENRM_UPDATE=1 go test ./cmd/genrm ./launchers/slurm"; exit 1; }

e2e:
	e2e/parsers/run
	e2e/gym/run
	e2e/engines/run
	e2e/local/run
	e2e/ray/run
	e2e/kube/run
	e2e/slurm/run

build:
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o genrm ./cmd/genrm

bench:
	go test -run '^$$' -bench . -benchmem ./...

fuzz:
	@grep -rl --include='*_test.go' '^func Fuzz' cmd compiler gateway launchers schema | while read -r file; do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
			go test "./$$(dirname "$$file")" -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME); \
		done; \
	done
