# What a person types. Everything runs in .venv, made from the committed lock file; all state lies under the root that
# `unitball` itself uses: UNITBALL_ROOT, or the user's data folder.
PYTHON ?= python3
BIN := .venv/bin
# Tests wait for servers and browsers a fifth of their time: one more worker than there are cores.
WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

.PHONY: run docs test tests coverage test-nightly check style types templates serve lock clean
.DEFAULT_GOAL := run

.venv/.ready: requirements.lock pyproject.toml scripts/make-venv.sh
	@PYTHON="$(PYTHON)" sh scripts/make-venv.sh

run: .venv/.ready  ## the main job: eight systems on scikit-learn's digits at epsilon 1
	@$(BIN)/unitball compare --dataset digits --epsilon 1
	@printf '\nNext:\n  %s\n  %s\n  %s\n' \
	  "$(BIN)/unitball train --dataset digits --epsilon 3" \
	  "$(BIN)/unitball frontier --dataset digits" \
	  "$(BIN)/unitball serve"

check: style types  ## every check but the tests

style: .venv/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/.ready
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: style  ## every check, and the tests: types beside the tests, which end later
	@$(MAKE) --no-print-directory -j 2 types tests

tests: .venv/.ready
	@$(BIN)/python -m pytest -m "not nightly" -n $(WORKERS) --dist loadfile

coverage: .venv/.ready  ## the tests, and which lines they run; tracing takes half as long again
	@$(BIN)/python -m pytest -m "not nightly" -n $(WORKERS) --dist loadfile --cov --cov-report=term:skip-covered

test-nightly: .venv/.ready  ## the heavy tests: an hour and a quarter on two cores
	@$(BIN)/python -m pytest -m nightly -n $(shell getconf _NPROCESSORS_ONLN) --dist loadfile

templates: .venv/.ready  ## texts of errors, warnings and help, written into tests/templates.txt; review its diff
	@$(BIN)/python scripts/templates.py

docs: .venv/.ready  ## the site, in build/site: pages that can be opened as files
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html"

serve: .venv/.ready  ## Prefect, MLflow and the deployed flows on this machine
	@$(BIN)/unitball serve

lock: .venv/.ready  ## resolve the ranges in pyproject.toml anew into requirements.lock (needs uv)
	@sh scripts/lock.sh

clean:
	rm -rf .venv
