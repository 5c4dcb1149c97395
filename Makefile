# rdukit: `make help` lists the targets. Everything runs from the virtual environment that `make setup` makes.

SHELL := bash
.DEFAULT_GOAL := help

PYTHON ?=
VENV ?= .venv
export VENV PYTHON

BIN := $(VENV)/bin
ROOTS := core sdk compiler runtime modelboxes platform zoo benchmarks
CODE := $(ROOTS) tests
PROTO := core/rdukit/proto
# Generated code is not ours to format; our packages are told from others' by where they lie.
RUFF := $(BIN)/ruff
RUFF_OPTIONS := --quiet --extend-exclude '*_pb2*' --config 'src = ["core", "sdk", "compiler", "runtime", "modelboxes", "platform", "zoo", "tests", "scripts"]'
#: More arguments for pytest: make test ARGS="-k pef -x"
ARGS ?=
#: Run only the tests nearest to what differs from BASE (the upstream branch): make test CHANGED=1
CHANGED ?=
BASE ?=
#: Folder with checkouts of the vendor's programs, and more folders to import from: make conformance PROGRAMS=~/src
PROGRAMS ?=
#: Variants of those programs to draw, and the seed that draws them.
VARIANTS ?= 6
SEED ?= 0
PATHS ?=
#: Libraries whose models are tried too: make conformance MODELS="transformers timm torchvision"; needs the extra `models`
MODELS ?=

.PHONY: help setup demo up check format lint types imports unit tidy test test-all conformance operators sanitize fuzz integration engine browser bench lock audit proto docs site clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: ## Make the virtual environment and install (quick when nothing changed).
	@scripts/setup

demo: setup ## An end-to-end run on real digits, then stop.
	@$(BIN)/rdukit demo

up: setup ## Start the platform and keep it running until Ctrl-C.
	@$(BIN)/rdukit up

check: format lint types imports unit ## Format, lint, types, import contracts, unit tests.

format: setup
	@$(RUFF) format --check $(RUFF_OPTIONS) $(CODE) scripts

lint: setup
	@$(RUFF) check $(RUFF_OPTIONS) $(CODE) scripts

# Programs below scripts import modules of their own folder.
types: setup
	@for root in $(ROOTS:benchmarks=benchmarks/rdukit_bench) tests/support tests/fuzzing tests/opdb; do echo "mypy $$root"; $(BIN)/mypy --no-error-summary $$root || exit 1; done
	@for root in scripts/models scripts/programs; do echo "mypy $$root"; MYPYPATH=$$root $(BIN)/mypy --no-error-summary $$root || exit 1; done
	@echo "mypy scripts"; MYPYPATH=scripts $(BIN)/mypy --no-error-summary --exclude 'scripts/(models|programs)/' scripts

imports: setup
	@$(BIN)/lint-imports

unit: setup
	$(BIN)/python scripts/run_tests.py --layer unit $(ARGS)

tidy: setup ## Format the code and sort its imports.
	@$(RUFF) check --select I --fix $(RUFF_OPTIONS) $(CODE) scripts
	@$(RUFF) format $(RUFF_OPTIONS) $(CODE) scripts

test: setup ## Each feature once, in every layer; with CHANGED=1 what a change touches, from BASE=revision.
	$(BIN)/python scripts/run_tests.py $(if $(CHANGED),--changed $(if $(BASE),--base $(BASE))) $(ARGS)

test-all: setup ## All tests: also kill loops, further modes and databases, long fuzzing.
	$(BIN)/python scripts/run_tests.py --all $(ARGS)

conformance: setup ## The vendor's public surface, and numbers against PyTorch; with PROGRAMS=folder its programs too.
	$(BIN)/pytest -q tests/conformance $(ARGS)
	$(BIN)/python scripts/operators.py sweep --out $(VENV)/operators_native.jsonl --kernels native --count 12 --samples 2 --modes o3
	$(BIN)/python scripts/sanitize.py --short
	@for precision in f32 bf16; do for mode in o0 o1 o3; do $(BIN)/python scripts/fuzz.py --seed 100000 --count 300 \
		--mode $$mode --precision $$precision 2>/dev/null || exit 1; done; \
		$(BIN)/python scripts/fuzz.py --seed 200000 --count 64 --kernels native --precision $$precision 2>/dev/null \
		|| exit 1; done
	@if [ -n "$(PROGRAMS)" ]; then $(BIN)/python scripts/programs/run.py --programs "$(PROGRAMS)" \
		$(foreach path,$(PATHS),--path $(path)) --variants $(VARIANTS) --seed $(SEED) --write docs/programs.md; fi
	@if [ -n "$(MODELS)" ]; then $(BIN)/python scripts/models/run.py --suite $(MODELS) --lines build/models/results.jsonl \
		--write docs/models.md; fi

operators: setup ## All of torch's operators against torch (an hour), then docs/operators.md.
	$(BIN)/python scripts/operators.py sweep --out $(VENV)/operators.jsonl $(ARGS)
	$(BIN)/python scripts/operators.py page $(VENV)/operators.jsonl
	$(BIN)/python scripts/operators.py sweep --out $(VENV)/operators_host.jsonl --host-fallback --refused $(ARGS)
	$(BIN)/python scripts/operators.py page $(VENV)/operators_host.jsonl

sanitize: setup ## Native kernels under AddressSanitizer and UBSan: tests that use them, then random modules.
	$(BIN)/python scripts/sanitize.py $(ARGS)

fuzz: setup ## Random modules against torch: make fuzz ARGS="--seed 1 --count 1000 --mode o3 --kernels native --precision bf16"
	$(BIN)/python scripts/fuzz.py $(ARGS)

integration: setup ## Real daemon, broker, database and boxes as processes; hostile clients for a minute.
	RDUKIT_TEST_HOSTILE_S=$${RDUKIT_TEST_HOSTILE_S:-60} RDUKIT_TEST_MUTATIONS=$${RDUKIT_TEST_MUTATIONS:-10000} $(BIN)/pytest -q tests/integration tests/security $(ARGS)

engine: setup ## Images, compose, chart in a container engine; starts one if it may (root, dockerd installed).
	@scripts/engine/tools
	$(BIN)/python scripts/engine/lanes.py $(ARGS)

browser: setup ## The console in a real browser.
	$(BIN)/pytest -q tests/browser $(ARGS)

bench: setup ## Benchmarks: one JSON line per question, ratios within one run.
	@$(BIN)/rdukit bench || exit 1; \
	for file in benchmarks/programs/bench_*.py; do echo "== $$file" >&2; $(BIN)/python $$file || exit 1; done

lock: setup ## requirements.lock anew from pyproject.toml; ARGS=--upgrade takes the newest versions.
	$(BIN)/python scripts/lock.py $(ARGS)

audit: setup ## Known vulnerabilities of what requirements.lock pins; says so where their database cannot be reached.
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || $(BIN)/python -m pip --quiet --disable-pip-version-check install '.[audit]'
	@$(BIN)/python scripts/audit.py $(ARGS)

proto: setup ## Regenerate the gRPC code from the .proto files.
	$(BIN)/python -m grpc_tools.protoc -I core --python_out=core --pyi_out=core $(PROTO)/*.proto
	$(BIN)/python -m grpc_tools.protoc -I core --grpc_python_out=core $(filter-out %/chakra.proto,$(wildcard $(PROTO)/*.proto))

docs: setup ## Rewrite the generated parts of the manual.
	$(BIN)/python scripts/docs.py

site: setup ## The manual as a site, core/rdukit/site, with a search that works offline; every warning is an error.
	$(BIN)/python scripts/build_site.py $(ARGS)
	@echo "site: open core/rdukit/site/index.html, or: $(BIN)/rdukit docs"

clean: ## Remove caches, build outputs and the virtual environment.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
