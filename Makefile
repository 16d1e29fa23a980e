# The one list of commands. `make help` prints it.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Three times the cores that the tests are measured on: tests wait for half of their time, for
# servers, for retries and for processes that start.
JOBS   ?= 6
# What takes a minute or more of one core each, beside the tests that have the same rules in short.
LONG   := tests --ignore=tests/soak
# Python keeps what it compiled, whatever the environment says: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env demo test warm soak properties fuzz lint format matrix corpus bench lock licences audit clean java

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP) ## make .venv from requirements.lock

# uv installs; where the machine has none, the venv gets its own, at the locked version.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "pgsluice needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@[ -x $(BIN)/python ] || echo "making $(VENV) with $$($(PYTHON) --version)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) \
	  || { echo "Python's venv module is missing (on Debian: apt-get install python3-venv)" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip -q
	@$(BIN)/python -m pip install -q --disable-pip-version-check "$$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements.lock)"
	@echo "installing the $$(grep -c '^[a-z].*==' requirements.lock) packages of requirements.lock into $(VENV): about 1.5 GiB"
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $(STAMP)
	@echo "$(VENV) is ready"

# Spark needs a Java of at least 17: say so in one sentence, before anything is started.
java:
	@sh scripts/check-java

demo: env java ## everything embedded: PostgreSQL, a workload, Spark, Delta; ends with a proof
	@$(BIN)/pgsluice demo $(ARGS)

# What the tests start from; without a usable JVM for it, the file is empty and they do without.
$(VENV)/spark.jsa: $(STAMP) scripts/archive_classes.py | java
	@$(BIN)/python scripts/archive_classes.py $@ 2>/dev/null || : > $@

warm: $(VENV)/spark.jsa ## what makes the first run of the tests faster: compiled tests, Spark's classes
	@$(BIN)/pytest --collect-only -qq >$(VENV)/collected || { tail -n 40 $(VENV)/collected; exit 1; }

test: env java $(VENV)/spark.jsa ## the tests
	@$(BIN)/pytest -n $(JOBS) $(ARGS)

soak: env java ## the full figures of every requirement (AREA=main to narrow, AREA=long: long tests)
	@$(BIN)/pytest -m soak $(if $(AREA),$(if $(filter long,$(AREA)),$(LONG),tests/soak/test_$(AREA).py),tests) -p no:randomly -s $(ARGS)

properties: env ## the tests of Hypothesis with ten times as many examples as in make test
	@PGSLUICE_TEST_EXAMPLES=10 $(BIN)/pytest -n $(JOBS) -m "hypothesis and not soak" $(ARGS)

fuzz: env ## a million wrong bytes for the wire decoder
	@$(BIN)/python scripts/fuzz_wire.py $(ARGS)

lint: env ## ruff, mypy, import contracts, dead code, unused dependencies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/vulture
	@$(BIN)/deptry src

format: env ## rewrite to the house's format
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

licences: env ## the licences of all that users install; fails if one is missing or unknown
	@$(BIN)/python scripts/licences.py

audit: env ## known vulnerabilities of the locked packages; fails where the advisory service cannot be reached
	@$(BIN)/python scripts/audit.py

matrix: env java ## the tests on PostgreSQL 10 to 18 and Python 3.11 to 3.13 (ARGS=--spark: a run on Spark 3.5 to 4.3)
	@$(BIN)/python scripts/matrix.py $(ARGS)

corpus: env ## capture the golden corpus again, from servers 10 to 18
	@$(BIN)/python scripts/corpus.py $(ARGS)

bench: env java ## figures and ratios of this machine
	@$(BIN)/python -m bench $(ARGS)

lock: env ## resolve requirements.lock again
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --custom-compile-command "make lock" --all-extras --group dev \
	  --no-emit-package pgsluice -o requirements.lock pyproject.toml

clean: ## remove what the commands made
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
