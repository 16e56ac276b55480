# What a person types. Everything runs in an environment made from the committed lock file; all state lies under the
# root that `unitball` itself uses: UNITBALL_ROOT, or the user's data folder.
PYTHON ?= python3
# The first Python has .venv. Another one that is named (PYTHON=python3.13) has an environment of its own, .venv-3.13.
FIRST := $(shell sed -n 's/^version[_info]* = \([0-9]*\.[0-9]*\).*/\1/p' .venv/pyvenv.cfg 2>/dev/null)
NAMED := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := .venv$(if $(filter-out file,$(origin PYTHON)),$(if $(filter-out $(NAMED),$(FIRST)),-$(NAMED)))
BIN := $(VENV)/bin
# Tests wait for servers and browsers a fifth of their time: one more worker than there are cores.
WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

.PHONY: environment run docs test tests coverage test-nightly test-pythons check style types templates serve lock clean
.DEFAULT_GOAL := run

$(VENV)/.ready: requirements.lock pyproject.toml scripts/make-venv.sh
	@PYTHON="$(PYTHON)" sh scripts/make-venv.sh $(VENV)

environment: $(VENV)/.ready  ## what the other commands run in: the locked versions, and the checkout

run: environment  ## the main job: eight systems on scikit-learn's digits at epsilon 1
	@$(BIN)/unitball compare --dataset digits --epsilon 1
	@printf '\nNext:\n  %s\n  %s\n  %s\n' \
	  "$(BIN)/unitball train --dataset digits --epsilon 3" \
	  "$(BIN)/unitball frontier --dataset digits" \
	  "$(BIN)/unitball serve"

check: style types  ## every check but the tests

style: environment
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: environment
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: style  ## every check, and the tests: types beside the tests, which end later
	@$(MAKE) --no-print-directory -j 2 types tests

tests: environment
	@$(BIN)/python -m pytest -m "not nightly" -n $(WORKERS) --dist loadfile

coverage: environment  ## the tests, and which lines they run; tracing takes half as long again
	@$(BIN)/python -m pytest -m "not nightly" -n $(WORKERS) --dist loadfile --cov --cov-report=term:skip-covered

test-nightly: environment  ## the heavy tests: about two hours on two cores
	@$(BIN)/python -m pytest -m nightly -n $(shell getconf _NPROCESSORS_ONLN) --dist loadfile

test-pythons:  ## the tests on Python 3.11 and 3.13, the main job on 3.12; names those that are absent
	@for python in python3.11 python3.12 python3.13; do \
	  $$python -c "" 2>/dev/null || { echo "skipped: no $$python on the path"; continue; }; \
	  echo "$$python"; \
	  if [ $$python = python3.12 ]; then job=run; else job=tests; fi; \
	  $(MAKE) --no-print-directory $$job PYTHON=$$python || exit 1; \
	done

templates: environment  ## texts of errors, warnings and help, written into tests/templates.txt; review its diff
	@$(BIN)/python scripts/templates.py

docs: environment  ## the site, in build/site: pages that can be opened as files
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html"

serve: environment  ## Prefect, MLflow and the deployed flows on this machine
	@$(BIN)/unitball serve

lock:  ## resolve the ranges in pyproject.toml anew into the lock files (needs uv)
	@sh scripts/lock.sh

clean:
	rm -rf .venv .venv-3.*
