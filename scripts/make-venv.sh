#!/bin/sh
# Make an environment (.venv unless another folder is given) from requirements.lock and install the checkout into it; say
# in one line what is missing.
set -eu
venv=${1:-.venv}
fail() { printf 'unitball: %s\n' "$1" >&2; exit 1; }
PYTHON=${PYTHON:-python3}
command -v "$PYTHON" >/dev/null 2>&1 || fail "no '$PYTHON' found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.11"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$PYTHON" --version 2>&1) is too old; Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "this Python cannot make virtual environments; on Debian: apt-get install python3-venv"
echo "Making $venv from requirements.lock (about a minute and a half the first time) …"
# A half-made environment is thrown away, so that an interrupted install never looks finished.
rm -rf "$venv"
"$PYTHON" -m venv "$venv" || fail "could not make $venv here (is the folder writable, is there space?)"
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --no-deps -r "$1"
}
# pip uses one processor: two halves at once, since no package waits for another; if that fails, all in turn.
awk -v venv="$venv" '/^[^ #]/ { half = 1 - half } /^[^#]/ { print > (venv "/half-" half ".txt") }' requirements.lock
halves=ok
install "$venv/half-1.txt" & first=$!
install "$venv/half-0.txt" || halves=failed
wait "$first" || halves=failed
[ "$halves" = ok ] || install requirements.lock ||
    fail "installing the locked packages failed (see pip's message above); check the network and run make again"
# On all processors, where pip would compile file after file, and not the packages' own tests; some packages hold files
# that no Python 3 compiles.
"$venv/bin/python" -m compileall -qq -j 0 -x "/tests?/" "$venv/lib" || true
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e . ||
    fail "installing the checkout failed (see pip's message above)"
touch "$venv/.ready"
