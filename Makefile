# `make demo` and `make test` need Python >= 3.10 and make, nothing else: each sets up what it uses.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo peers test lint types unit conformance parsers faults bench lowest clean

demo: $(VENV)/.run
	@PATH="$(abspath $(BIN)):$$PATH" sh fixtures/demo.sh

test: $(VENV)/.dev lint types unit conformance

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev peers
	$(BIN)/pytest -n auto --cov --cov-report=term

# Our answers against what the engines' own code answered; says so where ../shared is absent.
conformance: $(VENV)/.dev
	cd tests && "$(abspath $(BIN))/python" -m conformance

# Every patch of every real checkpoint through the releases' own parsers; prints a table. Fetches the
# files of a release that it touches, once.
parsers: $(VENV)/.dev
	cd tests && "$(abspath $(BIN))/python" -m parsers

# Every fault at every call, every power cut, every race; prints a table.
faults: $(VENV)/.dev
	cd tests && "$(abspath $(BIN))/python" -m faults

# Our commands beside what cannot be beaten and what others use; some minutes, prints a table.
bench: $(VENV)/.bench
	$(BIN)/python benchmarks

# The suite with the lowest versions that pyproject.toml allows, as beside an old engine. Left out: the
# long proofs of the writing layer, which do not depend on versions, and the comparisons with jsonpatch
# (1.33 takes true for 1) and safetensors (0.4 lacks today's dtypes), which the newest ones are for.
LEFT_OUT := faults powercut mutants state_machine concurrency fuzz mirror_faults \
	jsontext_corpus jsontext_splice jsontext_document headers
lowest:
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet uv
	$(VENV)-lowest/bin/uv pip install --quiet --python $(VENV)-lowest/bin/python \
		--resolution lowest-direct -e '.[test]'
	$(VENV)-lowest/bin/pytest -n auto -m "not resolver" \
		$(foreach name,$(LEFT_OUT),--ignore tests/test_$(name).py)

# Programs of other projects that tests run, apart from ours: a Hub server, transformers.
peers: $(VENV)-peers/.made
$(VENV)-peers/.made: Makefile
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet uv
	$(VENV)-peers/bin/uv pip install --quiet --python $(VENV)-peers/bin/python \
		olah==0.5.4 transformers
	@touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@ $(VENV)/.run

$(VENV)/.bench: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-peers build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
