# Everything a contributor runs, from a fresh clone, with nothing installed but Python 3.11 and make.
#
# `make install` keeps two stamps in .venv: one for the pinned dependencies, one for Tidelog itself
# with its compiled modules. When nothing changed, it does nothing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# The checks build on each other's caches and share two cores; pytest brings its own parallelism.
.NOTPARALLEL:

BIN := .venv/bin
SEEDS ?= 50
WORKERS ?= auto
ARGS ?=

COMPILED := $(patsubst %,src/tidelog/records/%.py,framing kernels scanning)
# Compiled and plain installs have stamps of their own, so that switching between them rebuilds.
PURE := $(filter-out 0,$(TIDELOG_PURE_PYTHON))
INSTALLED := .venv/.installed$(if $(PURE),-pure)
DEPENDENCIES := .venv/.dependencies

.PHONY: help install run up lint types contract tests test slow bench soak sim evidence lock format clean

help: ## Show this page
	@echo "Tidelog. Start with 'make run': it installs what it needs into .venv and shows what it can do."
	@echo
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)$$/  make \1|\2/' \
	  | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@echo
	@echo "Examples"
	@echo "  make sim SEEDS=500                     judge the core with 500 seeds"
	@echo "  make tests ARGS='-k ghost'             only the tests whose name says ghost"
	@echo "  make bench ARGS=codec                  only one benchmark"
	@echo "  make evidence ARGS='--parts plants'    one part again; the page keeps the others"
	@echo "  TIDELOG_PURE_PYTHON=1 make install     install without compiled modules"

install: $(INSTALLED) ## Create .venv with the pinned dependencies and build the compiled modules

.venv/bin/python:
	@for name in python3.11 python3 python; do \
	  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Creating .venv with $$("$$name" --version)"; \
	    "$$name" -m venv .venv && exit 0; \
	    rm -rf .venv; \
	    echo "Python is here but cannot create an environment." >&2; \
	    echo "On Debian and Ubuntu: apt-get install python3-venv, then run make again." >&2; \
	    exit 1; \
	  fi; \
	done; \
	echo "Tidelog needs Python 3.11 or later, and python3.11, python3 and python are not that." >&2; \
	echo "Install it (Debian 12 and later: apt-get install python3 python3-venv) and run make again." >&2; \
	exit 1

$(DEPENDENCIES): requirements.lock | .venv/bin/python
	@echo "Installing the pinned dependencies"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(INSTALLED): $(DEPENDENCIES) pyproject.toml setup.py $(wildcard $(COMPILED))
	@rm -f .venv/.installed .venv/.installed-pure $(COMPILED:.py=.*.so)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .
	@if ls $(COMPILED:.py=.*.so) >/dev/null 2>&1; then \
	  echo "Tidelog is installed in .venv, with compiled modules"; \
	else \
	  echo "Tidelog is installed in .venv; nothing was compiled, so its kernels run as plain Python"; \
	fi
	@touch $@

run: install ## Start three nodes and show what they are for, in a minute and a half
	@$(BIN)/tidelog demo

up: install ## Run a cluster of three nodes at localhost:9092 until Ctrl-C
	@$(BIN)/tidelog up

lint: install ## Check style, format and common mistakes (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: install ## Check types (mypy, strict)
	$(BIN)/mypy

contract: install ## Check that rooms import only from the rooms below them (import-linter)
	$(BIN)/lint-imports

tests: install ## Run the tests alone; ARGS goes to pytest
	$(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

test: install lint types contract tests ## Install, then lint, types, contract and tests: what CI runs

slow: install ## Run the tests, the long ones included
	$(BIN)/python -m pytest -q -n $(WORKERS) --slow $(ARGS)

bench: install ## Run the benchmarks; they print ratios measured in one run
	$(BIN)/python -m bench $(ARGS)

soak: install ## Run an hour of load and faults (ARGS="--minutes 10"); fail if data is lost or memory grows
	$(BIN)/python -m bench soak $(ARGS)

sim: install ## Run the deterministic simulator over SEEDS worlds
	$(BIN)/tidelog sim --seeds $(SEEDS) $(ARGS)

evidence: install ## Run worlds, plants, histories and clients; write docs/evidence.md (about an hour)
	$(BIN)/python -m tests.collect_evidence $(ARGS)

format: install ## Let ruff format the code and fix what it can fix safely
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: install ## Write requirements.lock again from pyproject.toml (newest versions: ARGS=--upgrade)
	@$(BIN)/uv pip compile pyproject.toml --quiet --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  $(ARGS) --output-file requirements.lock
	@echo "requirements.lock is up to date"

clean: ## Remove .venv and everything that was built or cached
	rm -rf .venv build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(COMPILED:.py=.*.so)
