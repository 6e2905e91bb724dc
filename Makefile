# Needs make and a Python 3.11 to 3.13 with venv; everything else is installed into .venv.

VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready
HOME_DIR := $(CURDIR)/.flwr

# make run CONFIG='strategy="fedper" num-rounds=10' FEDERATION='num-supernodes=4 client-resources-num-cpus=1'
# CONFIG may also be the path of a TOML file.
CONFIG ?=
FEDERATION ?= num-supernodes=2 client-resources-num-cpus=1
# make test ARGS='-m "not slow" -k launch'
ARGS ?=

# uv trusts the certificates that pip trusts.
UV_SYSTEM_CERTS ?= 1

export CONFIG FEDERATION UV_SYSTEM_CERTS
# Without bytecode files each of a run's dozen processes compiles all it imports, every time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run stop test flower-matrix benchmark-gpu lint format lock clean

help:
	@echo "make run     install what is needed, run the app on Flower's simulation engine;"
	@echo "             CONFIG='strategy=\"fedper\"' sets run-config keys, FEDERATION=... the engine"
	@echo "             RESUME=1 goes on with the newest unfinished run of the same settings"
	@echo "make stop    end the SuperLink that make run leaves in the background"
	@echo "make test    run the tests; ARGS='-m \"not slow\"' leaves out the slow ones"
	@echo "             ARGS='-m thorough' runs the same for all methods, tables and engines,"
	@echo "             ARGS='-m long' those of many minutes, ARGS='-m deployment' SuperNodes with TLS"
	@echo "make flower-matrix  run the engines' tests on the locked, the newest and the nightly Flower"
	@echo "make benchmark-gpu  run the GPU's tests, then measure clients that are trained together on it"
	@echo "make lint    check style and types"
	@echo "make format  format the code and sort imports"
	@echo "make lock    resolve the dependencies anew and write requirements.lock"
	@echo "make clean   remove .venv, .flwr and caches; results in runs/ stay"

run: $(READY)
	@$(PY) -m fedapps run . --home "$(HOME_DIR)" --federation-config "$$FEDERATION" \
		--run-config 'runs-dir="$(CURDIR)/runs"' --run-config "$$CONFIG" $(if $(RESUME),--resume)

# An installation that was broken off lacks what the command imports, and never ran anything.
stop:
	@if [ -x $(PY) ] && [ -e $(LOCKED) ]; then $(PY) -m fedapps stop --home "$(HOME_DIR)"; \
	else echo "nothing is installed, so nothing runs"; fi

# A file's tests run in one worker, which makes what they share once, and starts one run on Ray at
# a time; files come in the order of their names, not the long ones last.
test: $(READY)
	@FLWR_TELEMETRY_ENABLED=0 RAY_USAGE_STATS_ENABLED=0 \
		$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# FLOWERS='newest nightly' leaves out the locked version, FLOWERS='newest --deployment' tests SuperNodes.
flower-matrix: $(READY)
	@$(PY) -m tests.support.flower_matrix $(FLOWERS)

# The second line fails without a GPU, with one line that says so.
benchmark-gpu: $(READY)
	@$(PY) -m pytest -q tests/project/test_gpu.py -m "thorough or not thorough" $(ARGS)
	@$(PY) -m benchmarks.stacked --device cuda --groups 10,20,50,100

lint: $(READY)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(PY) -m mypy

format: $(READY)
	@$(VENV)/bin/ruff check --fix-only --quiet .
	@$(VENV)/bin/ruff format .

lock: | $(UV)
	@$(UV) pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
		--no-annotate --no-emit-index-url --custom-compile-command "make lock" \
		--quiet --output-file requirements.lock
	@$(UV) pip compile deploy/device-requirements.in --constraint requirements.lock --universal \
		--python-version 3.11 --no-annotate --no-emit-index-url --custom-compile-command "make lock" \
		--quiet | grep -vE '^(cuda|nvidia|triton)\b' >deploy/device-requirements.lock
	@echo "requirements.lock is written; make run and make test install it. Devices install"
	@echo "deploy/device-requirements.lock: the same versions of fewer packages"

clean: stop
	rm -rf $(VENV) .flwr .flower-matrix dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './runs/*' -prune -exec rm -rf {} +

# The project itself, editable; again when pyproject.toml changes.
$(READY): pyproject.toml $(LOCKED)
	@$(UV) pip install --quiet --python $(PY) --no-deps --editable . \
		|| $(PY) -m pip install --quiet --no-deps --editable .
	@touch $@

# Exactly the locked versions. A SuperLink that still runs on older ones is ended, by the new ones.
$(LOCKED): requirements.lock | $(UV)
	@echo "installing the packages of requirements.lock into $(VENV) (PyTorch: some GB)"
	@$(UV) pip install --quiet --python $(PY) --no-deps --requirement requirements.lock \
		|| $(PY) -m pip install --quiet --no-deps --requirement requirements.lock
	@if [ -d "$(HOME_DIR)" ]; then $(PY) -m fedapps stop --home "$(HOME_DIR)"; fi
	@touch $@

$(UV):
	@for python in python3.11 python3.12 python3.13 python3 python; do \
		if $$python -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
			2>/dev/null; then break; fi; python=; \
	done; \
	if [ -z "$$python" ]; then \
		echo "no Python 3.11 to 3.13 with venv was found (Debian: apt-get install python3-venv)"; exit 1; \
	fi; \
	$$python -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements.lock)"
