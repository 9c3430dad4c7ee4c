# Commands of this repository. `make demo` and `make test` run the setup themselves.
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
# A test that hangs beyond the reach of a signal takes its worker with it: not again and again.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --max-worker-restart 1
# What needs one core and no other check. Side by side, the longest first, each with its output in one piece where make
# can do that.
STATIC := prepared types-tests docs types-src jars contracts lint
STATIC_JOBS := $(MAKE) --no-print-directory -j 3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

HEAVY := .pytest_cache/heavy
PURE_TESTS := tests/coordinator tests/assignors tests/protocol tests/simulator tests/properties
# The tests start hundreds of processes of ours: where bytecode may not be cached, each compiles all its modules anew.
unexport PYTHONDONTWRITEBYTECODE
# Spark's classes, read and verified once for all JVMs that the tests start.
export HEADRACE_CACHE_DIR ?= $(CURDIR)/.build/cache

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format lint types types-src types-tests contracts fast interop prepared jars simulate crash disk soak fuzz chaos cluster soak-app bench pause docs image image-check recordings requirements clean hostile mutants structure walks coverage capacity

help:           ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

setup: $(STAMP) ## create the virtual environment .venv from pinned, hashed requirements

# Without bytecode: compiling all 9,500 modules takes 26 CPU seconds. The first start compiles the 1,400 that it imports
# in 4 s, and keeps them.
$(STAMP): requirements/dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "error[python-missing]: Headrace needs Python 3.11, 3.12 or 3.13 with venv; none found in PATH. Name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON). The first time this takes a few minutes: PySpark alone is 400 MB." >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)  ## run two Spark applications on 336,776 flights, kill one, and compare the result with a batch job
	@$(BIN)/headrace demo $(DEMO)

test: $(STAMP)  ## run everything that CI runs: check, the documentation site, then the tests with Spark, foreign clients and Apache Kafka
	@$(STATIC_JOBS) $(BESIDE) $(STATIC)
	@$(MAKE) --no-print-directory fast
	$(PYTEST) -n $(WORKERS) -o cache_dir=$(HEAVY) --cache-clear --durations=40 --durations-min=8 -m "spark or interop or slow" $(TEST) \
		|| { test $$? -eq 1 && $(BIN)/python -m tests.second_look $(HEAVY); }

check: lint types contracts fast ## format, lint, types, contracts and the fast tests

format: $(STAMP) ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: types-src types-tests

types-src: $(STAMP)  ## run mypy over the source
	$(BIN)/mypy

types-tests: $(STAMP)  ## run mypy over the tests
	$(BIN)/mypy --config-file tests/mypy.ini

contracts: $(STAMP)
	$(BIN)/lint-imports

fast: $(STAMP)  ## run the tests that need neither Spark nor Apache Kafka
	$(PYTEST) -n $(FAST_WORKERS) -m "not spark and not interop and not slow" $(TEST)

interop: $(STAMP) ## run the tests against Apache Kafka 4.3.1: its clients on our broker, our clients on its broker
	$(PYTEST) -n $(WORKERS) tests/interop -m interop $(TEST)

prepared: $(STAMP)  ## build class archives and compiled kernels, with which tests start faster
	@$(BIN)/headrace prepare --if-missing

jars: $(STAMP)  ## fetch the jars of Apache Kafka and compile the Java classes of the interop tests
	@$(BIN)/python -m tests.interop.kafka_broker

crash: $(STAMP)  ## kill a broker under load (kill -9), repeatedly, and check its log: make crash CYCLES=5000 SEED=1
	@$(BIN)/python -m tests.durability.crash --cycles $(or $(CYCLES),200) --seed $(or $(SEED),1)

disk: $(STAMP)   ## run a broker on a disk that is full, fails, or loses writes: make disk RUNS=5000 FIRST=0
	@$(BIN)/python -m tests.durability.simulate --runs $(or $(RUNS),1000) --first $(or $(FIRST),0)

soak: $(STAMP)   ## run mixed load and watch memory, files and latency: make soak MINUTES=30
	@$(BIN)/python -m tests.durability.soak --minutes $(or $(MINUTES),30)

chaos: $(STAMP)  ## kill instances, workers, guardians and the broker at random and recompute the result: make chaos MINUTES=10 SEED=1 BROKER=kafka (or kafka-cluster: three brokers)
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) --broker $(or $(BROKER),headrace) --instances $(or $(INSTANCES),3) $(ARGS)

cluster: $(STAMP) ## kill, stop and cut off executors, workers, hosts and drivers of Spark clusters, 35 minutes: make cluster ONLY=standalone (or yarn)
	HEADRACE_LONG=1 $(PYTEST) -n 0 -s tests/spark/runtime/test_clusters.py $(if $(ONLY),-k $(ONLY))

soak-app: $(STAMP) ## run an application for many micro-batches and watch the memory of every process: make soak-app BATCHES=50000
	@$(BIN)/python -m tests.chaos.soak --batches $(or $(BATCHES),50000)

simulate: $(STAMP) ## run random simulations from seeds: make simulate SEEDS=10000 FIRST=0 KIND=streams (or KIND=subtopology: the machine of the Spark runtime)
	@$(BIN)/python -m headrace.simulator --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) $(if $(KIND),--groups $(KIND))

capacity: $(STAMP) ## simulate 1,000 instances and 10,000 tasks in virtual time, 3 minutes: make capacity ARGS=--dynamic
	@$(BIN)/python -m headrace.simulator.capacity_world $(ARGS)

structure: $(STAMP) ## print sizes, importers, comments, wording and cycles of the source: make structure PACKAGE=broker ARGS=--findings; of the tests: ARGS=--tests
	@$(BIN)/python -m tests.structure $(PACKAGE) $(ARGS)

walks: $(STAMP)  ## print the files of the broker that a heartbeat and a Produce request pass through: make walks ARGS=--files
	@$(BIN)/python -m tests.walks $(ARGS)

mutants: $(STAMP) ## run mutation tests of critical modules with the fast tests: make mutants ONLY='*batch_commit*'
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/mutants.txt
	@$(BIN)/mutmut run --max-children 2 $(if $(ONLY),'$(ONLY)') | tail -1
	@$(BIN)/mutmut results

coverage: $(STAMP) ## measure the branch coverage of the packages without I/O (coordinator, assignors, protocol, simulator) by the fast tests
	@mkdir -p .build
	@$(BIN)/coverage run -m pytest -q -n 0 -p no:randomly -m "not spark and not interop and not slow" $(PURE_TESTS) && $(BIN)/coverage report

fuzz: $(STAMP) ## malformed and hostile requests from a seed: make fuzz MINUTES=60 SEED=1
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED))

hostile: $(STAMP) ## run hostile clients beside an honest one: make hostile SECONDS=60 CLIENTS=20
	@$(BIN)/python -m tests.fuzz.hostile --seconds $(or $(SECONDS),60) --clients $(or $(CLIENTS),20)

bench: $(STAMP) ## run the nine shorter benchmarks beside their peers and print ratios
	@for script in record_batches broker_start assignor heartbeats large_group replay spark_source stateful_count stateless_copy; do $(BIN)/python benchmarks/$$script.py || exit 1; done

pause: $(STAMP) ## measure the pause of a moved task, beside Kafka Streams (8 minutes)
	@$(BIN)/python benchmarks/moved_task_pause.py

docs: $(STAMP) $(DOCS)/.installed ## build the documentation site in .build/site/html; fails on broken links
	@$(BIN)/python -m docs.site $(DOCS)/bin/zensical

# The site generator has an environment of its own: none of its packages is needed to develop or to test.
$(DOCS)/.installed: requirements/docs.txt
	@test -x $(DOCS)/bin/python || $(BIN)/python -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --require-hashes -r requirements/docs.txt
	@touch $@

image: $(STAMP) ## build the container image of the broker; IMAGE_BASE=debian builds its base from Debian's packages
	@packaging/build-image $(IMAGE_BASE)

image-check: $(STAMP) ## build the image without a registry or a daemon and use a broker in it (root, buildah, mmdebstrap)
	@packaging/build-image debian
	@$(BIN)/python -m tests.packaging.image

recordings: $(STAMP) ## record the pictures in docs/pictures again (needs Chromium): make recordings NAME=application
	@$(BIN)/python -m docs.recordings $(NAME)

requirements:   ## pin all dependencies again (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--group dev --extra demo --extra avro --extra protobuf --extra delta --extra iceberg --extra postgres --extra ui --extra tracing pyproject.toml --output-file requirements/dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--constraints requirements/dev.txt pyproject.toml --output-file requirements/base.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--constraints requirements/dev.txt --extra spark pyproject.toml --output-file requirements/spark.txt
	echo 'mutmut>=3.8,<4' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-annotate --constraints requirements/dev.txt - --output-file requirements/mutants.txt
	printf 'zensical==0.0.73\nmkdocstrings-python>=2,<3\nruff\n' | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --constraints requirements/dev.txt - --output-file requirements/docs.txt

clean:          ## remove everything that was built, .venv and jars included
	rm -rf mutants $(VENV) .jars .build .headrace dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
