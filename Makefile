# make train: install, train the embedded corpus on 2 ranks, translate, score.
# make test:  install, run the tests that a change needs; make test-all runs all.
# Other environments: make test VENV=/path/to/venv
# Other builds: TF=2.18, PYTHON=python3.12, GPU=1 make install  (launch/setup.sh --help explains them)

VENV ?= .venv
VENV_TF218 ?= $(VENV)-tf2.18
PYTHON_OF_VENV = $(VENV)/bin/python
RUN ?= runs/demo
# Test files at a time.
WORKERS ?= 2
PYTEST = PATH="$(abspath $(VENV))/bin:$$PATH" pytest
# Options may choose no test of one part; pytest then ends with 5.
OR_NONE = $(if $(ARGS),|| [ $$? = 5 ])

.PHONY: help install wheels train test test-rest test-all test-tf2.18 lint bench-guard clean
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z0-9.-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

install:  ## everything into .venv; builds Horovod once
	@launch/setup.sh $(VENV)

wheels: install  ## what an installation needs into DIR=wheels, for a machine without internet
	@launch/setup.sh --collect $(or $(DIR),wheels) $(VENV)

train: install  ## train the embedded corpus on 2 ranks, translate its test part, print BLEU
	@VENV=$(VENV) launch/demo.sh $(RUN)

test: install  ## what a change can break, before each commit (what needs root says so when it is skipped)
	@$(PYTEST) -n $(WORKERS) --dist loadfile -m "not long" $(ARGS)

test-rest: install  ## long runs, guide, notebooks, the rest of the rig, TensorFlow 2.18
	@failed=0; \
	{ $(PYTEST) -n $(WORKERS) --dist loadfile -m "long and not rig" $(ARGS) $(OR_NONE); } || failed=1; \
	{ $(PYTEST) -m "long and rig" $(ARGS) $(OR_NONE); } || failed=1; \
	$(MAKE) --no-print-directory test-tf2.18 || failed=1; exit $$failed

test-all: test test-rest  ## all tests

test-tf2.18: install  ## the part of the tests that runs with both TensorFlows, with 2.18
	@TF=2.18 EXTRAS=dev,ctranslate2 launch/setup.sh $(VENV_TF218)
	@export PATH="$(abspath $(VENV_TF218))/bin:$$PATH" \
	HVD_NMT_OTHER_PYTHON="$(abspath $(VENV))/bin/python"; \
	pytest -n $(WORKERS) --dist loadfile -m both_tensorflows $(ARGS) $(OR_NONE)

lint: install  ## style, types, import directions
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

bench-guard: install  ## speed against BASE=origin/main, a commit or a checkout; nothing else may run
	@$(PYTHON_OF_VENV) tests/speed/guard.py $(or $(BASE),origin/main) $(ARGS)

clean:  ## remove caches and build leftovers; keeps .venv, data and runs
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find hvd_nmt tests notebooks -name __pycache__ -type d -prune -exec rm -rf {} +
