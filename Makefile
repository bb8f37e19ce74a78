# Everything happens in .venv; nothing global is touched.
#   make demo   set up, train a small translator, show what it does
#   make test   set up, lint, check types, run the tests (in Chromium too, which is installed where it is missing)

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint docs clean

demo: .venv/core
	$(BIN)/saccade demo

test: .venv/dev lint
	@test -e .venv/browser || { $(BIN)/python tests/chromium.py && touch .venv/browser; } || true
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/dev
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv runs site

# torch goes first and alone, in the tested version: what follows then finds its need of torch met.
.venv/core: pyproject.toml constraints.txt
	@echo "setting up .venv (a few minutes the first time)"
	$(PYTHON) -m venv .venv
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

.venv/dev: .venv/core
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@
