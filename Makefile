# `make demo` and `make test` need Python 3.11 or newer with pip and venv, and a C compiler.
# They work in .venv, which they make; a second run rebuilds only what changed.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
PY := $(abspath $(VENV))/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q
INSTALL := $(PIP) install --no-build-isolation -e
EXTENSIONS := $(wildcard src/tiny/_core/*.pyx src/tiny/_core/*.pxd)
BUILD_CONFIG := $(VENV)/config-$(or $(TINY_DEBUG_BUILD),0)

.PHONY: demo test test-all lint format wheel-test torch peers build clean
.DELETE_ON_ERROR:

demo: build $(VENV)/with-demo
	$(PY) examples/digits.py

test: build $(VENV)/with-test
	$(PY) -m pytest -n $(JOBS) $(ARGS)

test-all: build $(VENV)/with-test
	TINY_TEST_FULL=1 $(PY) -m pytest -n $(JOBS) $(ARGS)

lint: build $(VENV)/with-lint
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

format: $(VENV)/with-lint
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

# the suite against an installed wheel, in a folder with no sources in or above it
wheel-test:
	set -e; work=$$(mktemp -d); trap "rm -rf $$work" EXIT; \
	$(PYTHON) -m venv $$work/venv; \
	pip="$$work/venv/bin/python -m pip --disable-pip-version-check -q"; \
	$$pip wheel --no-deps -w $$work/dist .; \
	$$pip install "$$(ls $$work/dist/tiny-*.whl)[test]"; \
	cp -r tests benchmarks pyproject.toml $$work/; \
	cd $$work && venv/bin/python -m pytest -n $(JOBS) $(ARGS)

# PyTorch: the tests that compare with it are skipped without
torch: $(VENV)/with-torch

# everything that the benchmarks compare with
peers: build $(VENV)/with-bench

build: $(VENV)/built

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/tiny/_core/*.so

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "tiny needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@command -v $${CC:-cc} >/dev/null || \
	    { echo "tiny needs a C compiler: install gcc or clang, or set CC"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/tools: pyproject.toml | $(VENV)/bin/python
	$(PIP) install "setuptools>=77" "cython>=3.1"
	touch $@

# a file whose name changes with the kind of build
$(BUILD_CONFIG): | $(VENV)/bin/python
	rm -f $(VENV)/config-* src/tiny/_core/*.so && touch $@

$(VENV)/built: setup.py $(VENV)/tools $(BUILD_CONFIG) $(EXTENSIONS)
	$(PY) setup.py -q build_ext --inplace -j $(JOBS)
	touch $@

$(VENV)/with-torch: | $(VENV)/bin/python
	$(PIP) install torch==2.13.0
	touch $@

$(VENV)/with-%: pyproject.toml | $(VENV)/built
	$(INSTALL) '.[$*]'
	touch $@
