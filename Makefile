# The doors of this repository. `make demo` and `make test` set everything up by themselves.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.12 python3.13 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := .build/docs
# Spark's and Maven's own caches stay where they are; ours live below the repository.
# Several workers: most of these tests wait for sessions, processes and timeouts. A module stays in one (its fixtures).
WORKERS ?= 4
# The fast tests keep a core busy each, and every worker imports all test modules.
FAST_WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# What needs one core and no other check. Side by side, each with its output in one piece where make can do that.
STATIC := lint types-src types-tests contracts docs prepared jars
STATIC_JOBS := $(MAKE) --no-print-directory -j 3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

HEAVY := .pytest_cache/heavy
PURE_TESTS := tests/coordinator tests/assignors tests/protocol tests/simulator tests/properties
# The tests start hundreds of processes of ours: where bytecode may not be cached, each compiles all its modules anew.
unexport PYTHONDONTWRITEBYTECODE
# Spark's classes, read and verified once for all JVMs that the tests start.
export HEADRACE_CACHE_DIR ?= $(CURDIR)/.build/cache

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format lint types types-src types-tests contracts fast interop prepared jars simulate crash disk soak fuzz chaos soak-app bench pause docs image image-check recordings requirements clean hostile mutants structure walks coverage capacity

help:           ## what one can do here
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

setup: $(STAMP) ## the virtual environment in .venv, from pinned and hashed requirements

$(STAMP): requirements/dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "error[python-missing]: Headrace needs Python 3.11, 3.12 or 3.13 with venv; none found in PATH. Name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON). The first time this takes a few minutes: PySpark alone is 400 MB." >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)  ## two Spark applications, 336,776 real flights, one kill, and a verdict
	@$(BIN)/headrace demo $(DEMO)

test: $(STAMP)  ## everything CI runs: check, the documentation site, then the tests with Spark, foreign clients and Apache Kafka
	@$(STATIC_JOBS) $(BESIDE) $(STATIC)
	@$(MAKE) --no-print-directory fast
	$(PYTEST) -n $(WORKERS) -o cache_dir=$(HEAVY) --cache-clear --durations=40 --durations-min=8 -m "spark or interop or slow" $(TEST) \
		|| { test $$? -eq 1 && $(BIN)/python -m tests.second_look $(HEAVY); }

check: lint types contracts fast ## format, lint, types, contracts and the fast tests

format: $(STAMP) ## bring the code into shape
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: types-src types-tests

types-src: $(STAMP)  ## mypy over the source
	$(BIN)/mypy

types-tests: $(STAMP)  ## mypy over the tests that are annotated
	$(BIN)/mypy --config-file tests/mypy.ini

contracts: $(STAMP)
	$(BIN)/lint-imports

fast: $(STAMP)  ## the tests without Spark and without Apache Kafka
	$(PYTEST) -n $(FAST_WORKERS) -m "not spark and not interop and not slow" $(TEST)

interop: $(STAMP) ## ours against Apache Kafka 4.3.1, and the other way round
	$(PYTEST) -n $(WORKERS) tests/interop -m interop $(TEST)

prepared: $(STAMP)  ## the class archives and compiled kernels that tests start faster with
	@$(BIN)/headrace prepare --if-missing

jars: $(STAMP)  ## jars of Apache Kafka and Java classes that the interop tests need
	@$(BIN)/python -m tests.interop.kafka_broker

crash: $(STAMP)  ## kill -9 of a broker under load, again and again: make crash CYCLES=5000 SEED=1
	@$(BIN)/python -m tests.durability.crash --cycles $(or $(CYCLES),200) --seed $(or $(SEED),1)

disk: $(STAMP)   ## a broker on a disk that is full, refuses, forgets: make disk RUNS=5000 FIRST=0
	@$(BIN)/python -m tests.durability.simulate --runs $(or $(RUNS),1000) --first $(or $(FIRST),0)

soak: $(STAMP)   ## mixed load with memory, files and latency watched: make soak MINUTES=30
	@$(BIN)/python -m tests.durability.soak --minutes $(or $(MINUTES),30)

chaos: $(STAMP)  ## instances, workers, guardians and the broker killed at random, the result recomputed: make chaos MINUTES=10 SEED=1 BROKER=kafka (or kafka-cluster: three brokers)
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) --broker $(or $(BROKER),headrace) --instances $(or $(INSTANCES),3) $(ARGS)

soak-app: $(STAMP) ## an application for many micro-batches, memory of every process watched: make soak-app BATCHES=50000
	@$(BIN)/python -m tests.chaos.soak --batches $(or $(BATCHES),50000)

simulate: $(STAMP) ## random worlds from seeds: make simulate SEEDS=10000 FIRST=0 KIND=streams (or KIND=subtopology: the machine of the Spark runtime)
	@$(BIN)/python -m headrace.simulator --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) $(if $(KIND),--groups $(KIND))

capacity: $(STAMP) ## 1,000 instances and 10,000 tasks in virtual time, 3 minutes: make capacity ARGS=--dynamic
	@$(BIN)/python -m headrace.simulator.capacity_world $(ARGS)

structure: $(STAMP) ## sizes, importers, comments, wording and cycles of the source: make structure PACKAGE=broker ARGS=--findings; of the tests: ARGS=--tests
	@$(BIN)/python -m tests.structure $(PACKAGE) $(ARGS)

walks: $(STAMP)  ## files of the broker that a heartbeat and a Produce request pass through: make walks ARGS=--files
	@$(BIN)/python -m tests.walks $(ARGS)

mutants: $(STAMP) ## change critical modules, one place at a time, and see whether fast tests notice: make mutants ONLY='*batch_commit*'
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/mutants.txt
	@$(BIN)/mutmut run --max-children 2 $(if $(ONLY),'$(ONLY)') | tail -1
	@$(BIN)/mutmut results

coverage: $(STAMP) ## branch coverage of the packages without I/O (coordinator, assignors, protocol, simulator) by the fast tests
	@mkdir -p .build
	@$(BIN)/coverage run -m pytest -q -n 0 -p no:randomly -m "not spark and not interop and not slow" $(PURE_TESTS) && $(BIN)/coverage report

fuzz: $(STAMP) ## strangers' requests from a seed: make fuzz MINUTES=60 SEED=1
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED))

hostile: $(STAMP) ## hostile clients beside an honest one: make hostile SECONDS=60 CLIENTS=20
	@$(BIN)/python -m tests.fuzz.hostile --seconds $(or $(SECONDS),60) --clients $(or $(CLIENTS),20)

bench: $(STAMP) ## the nine shorter benchmarks, beside their peers; prints ratios
	@for script in record_batches broker_start assignor heartbeats large_group replay spark_source stateful_count stateless_copy; do $(BIN)/python benchmarks/$$script.py || exit 1; done

pause: $(STAMP) ## how long a moved task stands still, beside Kafka Streams (8 minutes)
	@$(BIN)/python benchmarks/moved_task_pause.py

docs: $(STAMP) $(DOCS)/.installed ## the documentation site, in .build/site/html; fails on broken links
	@$(BIN)/python -m docs.site $(DOCS)/bin/zensical

# The site generator has an environment of its own: none of its packages is needed to develop or to test.
$(DOCS)/.installed: requirements/docs.txt
	@test -x $(DOCS)/bin/python || $(BIN)/python -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --require-hashes -r requirements/docs.txt
	@touch $@

image: $(STAMP) ## the container image of the broker; IMAGE_BASE=debian builds its base from Debian's packages
	@packaging/build-image $(IMAGE_BASE)

image-check: $(STAMP) ## build the image without a registry or a daemon and use a broker in it (root, buildah, mmdebstrap)
	@packaging/build-image debian
	@$(BIN)/python -m tests.packaging.image

recordings: $(STAMP) ## record the pictures in docs/pictures again (needs Chromium): make recordings NAME=application
	@$(BIN)/python -m docs.recordings $(NAME)

requirements:   ## pin all dependencies anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--group dev --extra demo --extra avro --extra protobuf pyproject.toml --output-file requirements/dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--constraints requirements/dev.txt pyproject.toml --output-file requirements/base.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--constraints requirements/dev.txt --extra spark pyproject.toml --output-file requirements/spark.txt
	echo 'mutmut>=3.8,<4' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-annotate --constraints requirements/dev.txt - --output-file requirements/mutants.txt
	printf 'zensical==0.0.73\nmkdocstrings-python>=2,<3\nruff\n' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --constraints requirements/dev.txt - --output-file requirements/docs.txt

clean:          ## remove what was built; .venv and jars too
	rm -rf mutants $(VENV) .jars .build .headrace dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
