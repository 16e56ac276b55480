#!/bin/sh
# Resolve pyproject.toml's ranges into lock files: exact versions, hashes, no index address. requirements.lock has one
# version of each package for all Pythons, since the versions of libraries are part of what a release is called.
# requirements-lowest.lock has the lowest version that each range admits: what the lower bounds are tested with.
set -eu
command -v uv >/dev/null 2>&1 || { echo "unitball: uv is needed to make the lock files: pip install uv" >&2; exit 1; }
compile() { uv pip compile --python-version 3.11 --generate-hashes --no-header --no-emit-index-url "$@" pyproject.toml; }
compile --universal --fork-strategy fewest --group dev -o requirements.lock
compile --resolution lowest-direct --all-extras -o requirements-lowest.lock
