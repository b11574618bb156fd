# Needs Python 3.11, gcc and git. Everything else is installed into .uv (the tool) and .venv (the project).
PYTHON ?= python3.11
BACKEND ?= cpu
TEST_WORKERS ?= 2
FUZZ_MINUTES ?= 10
FUZZ ?= tests
UV_VERSION := 0.13.9
UV := .uv/bin/uv
RUN := .venv/bin/python
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
# An index that is slow or fails for a moment is asked again.
export UV_HTTP_TIMEOUT ?= 120
export UV_HTTP_RETRIES ?= 6
SYNC_cpu := sync --locked --quiet
SYNC_cuda := sync --locked --quiet --extra cuda --no-install-package mlx-cpu

.PHONY: help setup demo test test-native-off test-slow fuzz test-agents check format lock docs bench clean

help:
	@echo "make demo        run the main job on the demo model"
	@echo "make test        run the tests"
	@echo "make check       format, lint, types, spelling, lock and docs drift"
	@echo "make test-native-off  the core tests without compiled layers, then with plain C"
	@echo "make test-slow   the heavy proofs of docs/testing.md"
	@echo "make fuzz        give the property tests fresh examples for FUZZ_MINUTES (10)"
	@echo "make test-agents run real coding agents at a scripted model"
	@echo "make format      rewrite the sources in the house format"
	@echo "make docs        regenerate the generated pages"
	@echo "BACKEND=cuda     (with any of them) install MLX's CUDA backend instead of the CPU one"

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "Slotstream needs Python 3.11 to 3.13; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check --retries 6 --timeout 60 uv==$(UV_VERSION)

.venv/.synced-$(BACKEND): $(UV) uv.lock pyproject.toml $(wildcard packages/*/pyproject.toml) $(wildcard packages/*/setup.py) $(wildcard packages/*/csrc/*)
	@$(UV) $(SYNC_$(BACKEND)) --python $(PYTHON)
	@rm -f .venv/.synced-*
	@touch $@

setup: .venv/.synced-$(BACKEND)

demo: setup
	.venv/bin/slotstream run --prompt "Tell me a short story about a fox who lost its hat." --seed 1 --max-tokens 400

test: setup
	$(RUN) -m pytest -q -n $(TEST_WORKERS)

test-native-off: setup
	SLOTSTREAM_NATIVE=0 $(RUN) -m pytest -q -n $(TEST_WORKERS) tests/core
	SLOTSTREAM_NATIVE=scalar $(RUN) -m pytest -q -n $(TEST_WORKERS) tests/core

test-slow: setup
	$(RUN) -m pytest -q -m slow

fuzz: setup
	@end=$$(( $$(date +%s) + 60 * $(FUZZ_MINUTES) )); while [ $$(date +%s) -lt $$end ]; do \
	  $(RUN) -m pytest -q -x -n $(TEST_WORKERS) -m hypothesis --hypothesis-profile fresh $(FUZZ) || exit 1; done

test-agents: setup
	$(RUN) -m pytest -q -m agents tests/e2e/agents

check: setup
	@$(RUN) -m ruff format --quiet --check . || { echo "run: make format"; exit 1; }
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m mypy --no-error-summary
	@.venv/bin/codespell
	@$(UV) lock --check --quiet --python $(PYTHON)
	@$(RUN) -m tools.docs --check
	@echo "check: format, lint, types, spelling, lock and docs are in order"

format: setup
	@$(RUN) -m ruff format --quiet .
	@$(RUN) -m ruff check --quiet --fix --exit-zero .

lock: $(UV)
	$(UV) lock --python $(PYTHON)

docs: setup
	$(RUN) -m tools.docs

clean:
	rm -rf .venv .uv build dist
