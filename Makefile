# distlab: `make lab` opens the course, `make test` proves it. Both first make the environment in .venv, once.

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
LAB ?=
# TORCH_INDEX, if it is set, says where torch comes from; install_torch.py reads it.

START := labs/00_start_here.ipynb
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check $(if $(CI),--quiet) -c constraints.txt
# An environment whose Python has gone, say after an upgrade of the system, is made anew.
VENV_WORKS := $(shell $(BIN)/python -c 'print("yes")' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help lab test labs bench clean FORCE

help:  ## say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s  %s\n", $$1, $$2 }' Makefile
	@echo 'Variables: PYTHON=python3.12 for another Python (after make clean), TORCH_INDEX=URL for another build of torch.'

lab: $(VENV)/.lab  ## open the course in JupyterLab (ARGS="--no-browser --port 8899")
	$(BIN)/python -m jupyterlab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/$(START) $(ARGS)

test: $(VENV)/.test  ## test everything (LAB=07 for one lab, PYTEST_ARGS="-k name" for some of it)
	$(BIN)/python -m pytest $(if $(LAB),--lab $(LAB)) $(PYTEST_ARGS)

labs: $(VENV)/.lab  ## write labs/ anew from solutions/ (ARGS)
	$(BIN)/python -m distlab labs $(ARGS)

bench: $(VENV)/.bench  ## measure distlab against its peers (ARGS="recording replay ring", without ARGS all rows)
	$(BIN)/python -m tests.benchmarks $(ARGS)

clean:  ## remove the environment and caches; notebooks and progress stay
	rm -rf .venv build distlab.egg-info .mypy_cache .pytest_cache .ruff_cache
	find distlab tests -name __pycache__ -prune -exec rm -rf {} +

# Each stamp says that what it is named after is installed, for these inputs.

$(VENV)/.lab: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@$(BIN)/python install_torch.py $(PIP_INSTALL)
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.test $(VENV)/.bench: $(VENV)/.%: $(VENV)/.lab
	$(PIP_INSTALL) -e '.[$*]'
	@touch $@

$(VENV)/pyvenv.cfg: $(if $(VENV_WORKS),,FORCE)
	@command -v $(PYTHON) >/dev/null || { echo 'There is no $(PYTHON) here: name a Python 3.11 to 3.13, as in: make PYTHON=python3.12 lab' >&2; exit 1; }
	@$(PYTHON) -c '$(check_version)'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo '$(PYTHON) cannot make environments. On Debian and Ubuntu: sudo apt install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv $(if $(wildcard $@),--clear) $(VENV)

check_version = import sys; v = sys.version_info; \
  (3, 11) <= v[:2] <= (3, 13) or sys.exit("distlab needs Python 3.11 to 3.13, and $(PYTHON) is %d.%d. \
  Name another: make PYTHON=python3.12 lab" % v[:2])
