#!/bin/sh
# Resolve pyproject.toml's ranges into requirements.lock: exact versions, hashes, no index address; one version of each
# package for all Pythons, since the versions of libraries are part of what a release is called.
set -eu
command -v uv >/dev/null 2>&1 || { echo "unitball: uv is needed to make the lock file: pip install uv" >&2; exit 1; }
uv pip compile --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
    --group dev pyproject.toml -o requirements.lock
