# Each target sets up what it needs in .venv; none needs an earlier step.
#   make demo    prove the shipped operators on this machine, write report.html
#   make test    the tests that need no GPU
#   make check   lint, format, types
#   make gpu     GPU tests and benchmarks; fails where there is no GPU
#   make new-op NAME=x
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test check format gpu new-op clean

$(STAMP): pyproject.toml constraints.txt constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt numpy torch
	more=$$($(BIN)/python -c "import torch; print('' if torch.version.cuda else '-c constraints-cpu.txt')") && \
	$(BIN)/python -m pip install --quiet -c constraints.txt $$more -e '.[cuda,dev,mcp,postgres,ray,serve,triton]'
	touch $@

demo: $(STAMP)
	$(BIN)/kernelproof demo

test: $(STAMP)
	$(BIN)/python -m pytest -m "not gpu" -n 2

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The interpreter that has a CUDA build of torch, such as `make gpu GPU_PYTHON=python3`.
GPU_PYTHON ?= $(BIN)/python
gpu:
	$(GPU_PYTHON) -c "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 'make gpu: torch sees no CUDA GPU here')"
	$(GPU_PYTHON) -m pytest -m gpu
	$(GPU_PYTHON) benchmarks/operators.py

new-op: $(STAMP)
	$(BIN)/kernelproof new-op $(NAME)

clean:
	rm -rf $(VENV) build dist report.html
