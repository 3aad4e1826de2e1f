# make reproduce   install what is needed, then the tables in their quick form, into results/quick
# make test        install what is needed, then lint, format, types and tests
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help install reproduce test lint clean

help:
	@sed -n 's/^# \(make\|Another\)/\1/p' Makefile

# The stamp's name holds what was installed: another pyproject.toml, interpreter or place means another install,
# and an interrupted one leaves no stamp. Beyond that the check costs nothing.
KEY := $(shell { cat pyproject.toml; sed -n '/^define INSTALL/,/^endef/p' Makefile; $(PYTHON) -V; pwd; } 2>&1 | cksum | cut -d' ' -f1)
STAMP := $(VENV)/installed-$(KEY)

# --no-compile: half a minute less; Python compiles a module when it is first used.
# hpsv2 pins pytest 7.2.0 and protobuf < 4, for nothing that is used here, so it comes without its dependencies.
define INSTALL
$(BIN) -m pip install --no-compile --no-input --disable-pip-version-check -qq -e '.[dev]'
$(BIN) -m pip install --no-compile --no-input --disable-pip-version-check -qq --no-deps hpsv2==1.2.0 clint args
endef

install: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than Python 3.11; name another: make PYTHON=python3.12" >&2; exit 2; }
	@echo "Installing into $(VENV): a few minutes, once."
	$(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/installed-*
	$(INSTALL)
	touch $@

lint: $(STAMP)
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy
	$(VENV)/bin/lint-imports --no-logo

# Tests never reach for the network; pytest last, so that its closing line is the last one.
test: lint
	HF_HUB_OFFLINE=1 $(BIN) -m pytest

# The ablation reads the cells that convergence has just trained, so it must not begin afresh.
reproduce: $(STAMP)
	$(BIN) -m repro run cosine --model tiny-flux --quick --fresh
	$(BIN) -m repro run cosine --model tiny-qwen-image --quick --fresh
	$(BIN) -m repro run convergence --model tiny-flux --quick --fresh
	$(BIN) -m repro run ablation --model tiny-flux --quick
	$(BIN) -m repro run speedup --model tiny-flux --quick --fresh
	$(BIN) -m repro report --results results/quick

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
