#!/bin/sh
# calla selftest: passes on the demonstration model, fails without one.
set -u
calla=${CALLA:-build/calla}
failed=0
out=$("$calla" selftest -m models/nano 2>&1) || { echo "$out"; failed=$((failed + 1)); }
echo "$out" | grep -q ' 0 failed' || { echo "no verdict: $out"; failed=$((failed + 1)); }
"$calla" selftest -m models/none >/dev/null 2>&1
[ $? = 1 ] || { echo "expected exit code 1 without a model"; failed=$((failed + 1)); }
echo "$((3 - failed)) passed, $failed failed"
[ $failed = 0 ]
