# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Compiled now: modules without bytecode double the start of each command.
UV := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python
DEMO_ARGS ?=
BUNDLE ?= demo/bundle
IMAGE ?= florilege
LOCK ?= serve
.PHONY: demo speedrun test pytest test-fast test-end-to-end lint fix bench bench-losses bench-calibration bench-learning bench-server bench-training bench-recipes gpu-day fuzz soak test-clients docs serve dist test-wheel test-ranges lint-image test-image sbom audit lock clean
.DEFAULT_GOAL := help
# The working tree alone: a PYTHONPATH of the caller would hide what is missing here.
unexport PYTHONPATH
# A test starts many a process: our modules are compiled once, not by each.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo   train, calibrate and serve a small model, then open http://127.0.0.1:8000/"
	@echo "make test   everything CI runs: format, lint, types, import contracts, tests"
	@echo "also: speedrun test-fast test-end-to-end lint fix bench bench-losses bench-calibration bench-learning bench-server bench-training bench-recipes gpu-day fuzz soak test-clients docs serve lock clean"
	@echo "to ship: dist test-wheel test-ranges lint-image test-image sbom audit"

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || \
	  { echo "Florilege needs Python 3.11 to 3.14; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.txt > .venv/uv.txt
	$(PIP) --require-hashes -r .venv/uv.txt || true
	touch $@

# One plain install with hashes, then the project itself in place. uv takes half a minute for what
# takes pip two and a half; where there is none, or it finds no index, pip it is.
.venv/%: requirements/%.txt pyproject.toml | .venv/made
	@echo "Installing requirements/$*.txt into .venv (torch is large: a few minutes on a slow line)"
	$(UV) --require-hashes -r $< || $(PIP) --require-hashes -r $<
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

demo: .venv/train
	$(BIN)/florilege demo $(DEMO_ARGS)

# From drawing the flora's pictures to thresholds within half a point of the best possible, timed.
speedrun: .venv/train
	$(BIN)/python -m benchmarks.speed.speedrun $(BENCH_ARGS)

# The runtime of the offline page, for its tests; they are skipped where it cannot be fetched.
WEB_RUNTIME := .venv/onnxruntime-web-1.30.0.tgz
$(WEB_RUNTIME): | .venv/made
	cd .venv && npm pack --silent onnxruntime-web@1.30.0 || true

# One more process of tests than cores, up to 4: many wait for a server or a browser.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4)))

test: .venv/dev $(WEB_RUNTIME)
	$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: .venv/dev
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(TEST_ARGS)

# A minute: the library, losses, data and answers, without networks that train or serve.
test-fast: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -q $(FAST) $(TEST_ARGS)
FAST := tests/calibration/rules tests/calibration/record tests/calibration/test_rejection.py tests/data tests/florilege \
	tests/models/images tests/server/answers tests/training/test_optimisation.py tests/test_budget.py

# The whole pipeline for every backbone and for 2 to 10,000 classes, with a line of seconds for each.
test-end-to-end: .venv/dev
	$(BIN)/python -m pytest tests/test_end_to_end.py tests/test_packaging.py -m end_to_end -s $(TEST_ARGS)

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.budget

fix: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-losses bench-calibration bench-learning bench-server

bench-losses bench-calibration bench-training: bench-%: .venv/dev
	$(BIN)/python -m benchmarks.speed.$* $(BENCH_ARGS)

# Everything that waits for a GPU, with a report in gpu-day/; DEVICE=cpu rehearses it.
DEVICE ?= cuda
gpu-day: .venv/dev
	$(BIN)/python -m benchmarks.gpu_day --device $(DEVICE) $(BENCH_ARGS)

bench-server: .venv/dev
	$(BIN)/python -m benchmarks.load.server $(BENCH_ARGS)

bench-learning: .venv/dev
	$(BIN)/python -m benchmarks.sets.learning $(BENCH_ARGS)

bench-recipes: .venv/dev
	$(BIN)/python -m benchmarks.papers.recipes $(BENCH_ARGS)

# 100,000 damaged requests, then requests made from the description; ten minutes of everything at once.
fuzz: .venv/dev
	$(BIN)/python -m benchmarks.load.fuzz $(BUNDLE) $(BENCH_ARGS)
	FLORILEGE_FUZZ=1000 $(BIN)/python -m pytest -q --timeout 3600 tests/server/test_description.py $(TEST_ARGS)

soak: .venv/dev
	$(BIN)/python -m benchmarks.load.soak $(BUNDLE) $(BENCH_ARGS)

# Clients generated from openapi.json in Python and TypeScript, asking a server; needs node and npm.
test-clients: .venv/dev
	$(BIN)/python -m tests.clients.run

# The documentation as a site, in site/; DOCS=serve shows it while it is written.
DOCS ?= build --strict
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(DOCS)

serve: .venv/train
	$(BIN)/florilege serve $(BUNDLE)

# What is shipped is made and looked at without torch, from a lock of its own.
# The source archive, and the wheel that it builds, in dist/.
dist: .venv/ship
	$(BIN)/uv build --clear --no-build-isolation --python $(BIN)/python --out-dir dist

# The wheel in an empty environment, without the checkout: commands, verbs, server.
test-wheel: .venv/ship
	$(BIN)/python -m pytest tests/test_wheel.py -m wheel $(TEST_ARGS)

# The lowest and the newest packages that the ranges of pyproject.toml allow, each in an environment of
# its own; RANGE names one of them, and RANGES_OF=training tests with torch. Their warnings are not ours.
RANGE ?= lowest-direct highest
RANGES_OF ?= serving
EXTRAS_serving := --extra cpu --extra openvino --extra report --extra import --extra hub --extra otel
EXTRAS_training := --extra cpu --extra openvino --extra train
RANGE_TOOLS := frictionless httpx httpx2 hypothesis jsonschema pandas pytest pytest-timeout pytest-xdist scikit-learn setuptools uv
TESTS_training := $(addprefix tests/,models training florilege)
TESTS_serving = tests/test_florilege.py $(addprefix tests/,florilege data server models calibration plugins) $(NEED_TORCH)
# What pydantic makes of a schema differs; two tests compare every word of it.
SCHEMAS := --deselect tests/server/test_model_and_classes.py::test_the_description_is_the_golden_one_and_without_a_feedback_store_lacks_only_that \
	--deselect tests/calibration/record/test_record.py::test_the_published_schema_is_that_of_the_record
NEED_TORCH := $(SCHEMAS) $(addprefix --ignore tests/,models/test_float32.py florilege/fit florilege/test_import_cli.py \
	florilege/test_errors.py florilege/test_flowers102.py florilege/test_suggestions.py \
	plugins/papers server/test_description.py \
	models/backbones models/imported models/test_export.py models/test_heads.py \
	models/test_openvino_graph.py calibration/test_benchmarks.py)
test-ranges: .venv/ship
	@set -e; for range in $(RANGE); do \
	  rm -rf build/ranges/$$range; $(BIN)/uv venv --quiet --python $(BIN)/python build/ranges/$$range; \
	  $(BIN)/uv pip compile pyproject.toml --quiet $(EXTRAS_$(RANGES_OF)) --resolution $$range --python $(BIN)/python \
	    --no-annotate --no-header --output-file build/ranges/$$range/packages.txt; \
	  $(BIN)/uv pip install --quiet --python build/ranges/$$range/bin/python \
	    --requirement build/ranges/$$range/packages.txt --editable . $(RANGE_TOOLS); \
	  build/ranges/$$range/bin/python -m pytest --numprocesses $(WORKERS) --quiet -m "not browser" \
	    --override-ini filterwarnings=default $(TESTS_$(RANGES_OF)) $(TEST_ARGS); done

lint-image: .venv/ship
	$(BIN)/hadolint Dockerfile

# IMAGE, built beforehand, as docs/deploy.md runs it; with DOCKER=podman on another engine.
test-image: .venv/ship
	IMAGE=$(IMAGE) $(BIN)/python -m pytest tests/test_image.py -m image $(TEST_ARGS)

# The packages of an image with versions and licences as CycloneDX: LOCK=serve, serve-openvino, serve-gpu or train.
sbom: .venv/ship
	rm -rf build/sbom/$(LOCK)
	$(PYTHON) -m venv --without-pip build/sbom/$(LOCK)
	$(BIN)/pip --python build/sbom/$(LOCK) install --quiet --require-hashes -r requirements/$(LOCK).txt
	$(BIN)/pip --python build/sbom/$(LOCK) install --quiet --no-deps --no-build-isolation .
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file build/sbom/$(LOCK).cdx.json build/sbom/$(LOCK)
	@echo "build/sbom/$(LOCK).cdx.json"

# Known vulnerabilities of what is locked. A package that could not be looked up is a failure too.
audit: .venv/ship
	@for lock in serve serve-openvino serve-gpu train; do \
	  echo "requirements/$$lock.txt"; \
	  $(BIN)/pip-audit --strict --disable-pip --progress-spinner off --requirement requirements/$$lock.txt $(AUDIT_ARGS) || { \
	    echo "audit: not passed. The lines above name packages with known vulnerabilities, or say that the"; \
	    echo "service of advisories cannot be reached: then nothing was checked. To ask another service:"; \
	    echo "make audit AUDIT_ARGS='--vulnerability-service osv'"; exit 1; }; done

# Lock files with hashes and without any index address; all but `serve-gpu` fit into `dev`.
COMPILE = $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate
lock: .venv/dev
	$(COMPILE) --extra cpu --extra openvino --extra train --group dev --output-file requirements/dev.txt
	$(COMPILE) --extra cpu --extra train --group build --constraint requirements/dev.txt --output-file requirements/train.txt
	$(COMPILE) --extra cpu --group build --constraint requirements/dev.txt --output-file requirements/serve.txt
	$(COMPILE) --extra cpu --extra openvino --group build --constraint requirements/dev.txt --output-file requirements/serve-openvino.txt
	$(COMPILE) --extra gpu --group build --output-file requirements/serve-gpu.txt
	$(COMPILE) --group docs --group build --constraint requirements/dev.txt --output-file requirements/docs.txt
	$(COMPILE) --extra cpu --extra import --group ship --constraint requirements/dev.txt --output-file requirements/ship.txt

clean:
	rm -rf .venv build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
