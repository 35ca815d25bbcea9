# make help says what there is. Everything goes through CMake presets (CMakePresets.json); this file installs what is
# missing first and names the usual commands.

JOBS ?= 2
FUZZ_SECONDS ?= 60
HARNESS_SECONDS ?= 3600
HARNESS ?= damaged_files kills resume_chains
BUILD = scripts/build.sh release -j $(JOBS)
.DEFAULT_GOAL := help
.PHONY: help setup test-setup build demo test test-full test-python test-matrix wheels release bench sanitize sanitize-build tsan fuzz harness core determinism arm check-cuda check-kernels format check pictures bundle clean

help:            ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:           ## install what is missing (apt and pip by name, .venv in this folder)
	@scripts/setup.sh

build: setup     ## build the release: build/release/distca
	@$(BUILD)

demo: setup      ## train a small Llama on Python's standard library, 2 local workers: at most 4 minutes of training
	@$(BUILD) --target distca
	@scripts/demo.sh

test-setup:
	@scripts/setup.sh --test

# One more at a time than cores: ranks of many tests wait for each other and for deadlines.
test: test-setup build ## build and run the tests, without those labelled "full"
	@ctest --preset release -j $$(($(JOBS) + 1)) -LE full
	@JOBS=$(JOBS) scripts/test_python.sh

test-full: test-setup build ## build and run every test
	@ctest --preset release -j $(JOBS)
	@JOBS=$(JOBS) scripts/test_python.sh --full

test-python: test-setup ## the Python package: its wheel packed, installed elsewhere and tested there
	@JOBS=$(JOBS) scripts/test_python.sh

sanitize: sanitize-build  ## the rooms without PyTorch under ASan and UBSan
	@ctest --preset debug -j $(JOBS) -LE full

sanitize-build:
	@scripts/setup.sh --core
	@scripts/build.sh debug -j $(JOBS)

tsan:            ## the rooms without PyTorch under ThreadSanitizer
	@scripts/setup.sh --core
	@scripts/build.sh tsan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS) -LE full

fuzz:            ## readers of files, task lists of attention under libFuzzer, ASan, UBSan; FUZZ_SECONDS=60 each, TARGET=idx
	@scripts/setup.sh --fuzz
	@scripts/fuzz.sh $(JOBS) $(FUZZ_SECONDS) $(TARGET)

harness: setup   ## random chains of resumes, kills, damaged files; HARNESS_SECONDS=3600 each, HARNESS=kills SEED=7 of one
	@$(BUILD) --target distca
	@failed=; for name in $(HARNESS); do \
	  tests/harness/$$name.py build/release/distca --seconds $(HARNESS_SECONDS) $(if $(SEED),--seed $(SEED)) || failed=1; done; [ -z "$$failed" ]

core:            ## plan and data only, without PyTorch: build/core/distca
	@scripts/setup.sh --core
	@scripts/build.sh core -j $(JOBS)

determinism:     ## plans from gcc -O3, gcc -O0 and clang++ against the pinned hashes
	@scripts/setup.sh --core
	@scripts/determinism.sh $(JOBS)

arm:             ## the kernels cross-compiled for aarch64, their tests under qemu
	@scripts/check_arm.sh $(JOBS)

test-matrix:     ## the Python package with each version of PyTorch and other libraries (hours, GBs; ARGUMENTS=--rest)
	@scripts/test_matrix.py $(ARGUMENTS)

wheels:          ## an sdist, and one wheel for all versions of PyTorch, tried with each (GBs; VERSIONS="2.13 2.14")
	@JOBS=$(JOBS) scripts/build_wheels.sh $(VERSIONS)

release: test-setup ## an archive of the last commit and its wheels, with hashes: build/release_files
	@JOBS=$(JOBS) scripts/release.sh

bench: test-setup build ## every benchmark that has bars, on two free cores; a table of the bars, and which fell
	@JOBS=$(JOBS) scripts/test_python.sh -k test_wheel
	@.venv/bin/python bench/all.py

check-cuda:      ## compile what includes PyTorch against the oldest and newest that was tried, as on a GPU (downloads wheels)
	@JOBS=$(JOBS) scripts/check_cuda.py

check-kernels:   ## compile FlashAttention 4's kernels, load and call them against a stand-in of CUDA (downloads packages)
	@scripts/check_kernels.sh

format:          ## clang-format every source in place
	@git ls-files -co --exclude-standard '*.h' '*.cc' | xargs clang-format -i

check:           ## structure: formatting, include direction, tests registered, documents, sizes, equal code, names
	@scripts/check.sh

pictures: build  ## docs/pictures again: two trainings over a slowed wire, traced; as root, after make demo
	@scripts/pictures.sh

bundle:          ## offline/: what a build without apt needs; DATA="files" goes along
	@scripts/offline_bundle.sh $(DATA)

clean:           ## remove build/
	@rm -rf build
