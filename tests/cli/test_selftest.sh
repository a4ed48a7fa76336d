#!/bin/sh
# calla selftest: passes on the demonstration model, fails without one.
set -u
calla=${CALLA:-build/calla}
failed=0
out=$("$calla" selftest -m models/nano 2>&1) || { echo "$out"; failed=$((failed + 1)); }
echo "$out" | grep -q ' 0 failed' || { echo "no verdict: $out"; failed=$((failed + 1)); }
"$calla" selftest -m models/none >/dev/null 2>&1
[ $? = 1 ] || { echo "expected exit code 1 without a model"; failed=$((failed + 1)); }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$calla" selftest -m models/nano --backend simt --report "$tmp/report" >"$tmp/out" 2>&1 ||
    { cat "$tmp/out"; failed=$((failed + 1)); }
for words in '^processor: \|^machdep' 'cases of random shapes' 'a dependent dispatch' 'decode  max |dlogit|' ' 0 failed, '; do
    grep -q -- "$words" "$tmp/report" || { echo "the report lacks $words"; failed=$((failed + 1)); }
done
grep -q '/' "$tmp/out" && grep -q "$PWD" "$tmp/report" && { echo "the report has a path"; failed=$((failed + 1)); }
# What kernels and references have in common is wrong here: only other figures show it.
"${CLI_TOOLS:-build/tests/cli}/damage" models/nano "$tmp/damaged" language_model.model.layers.5.linear_attn.A_log -100
out=$("$calla" selftest -m "$tmp/damaged" --backend cpu 2>&1)
[ $? = 1 ] || { echo "a damaged model passes"; failed=$((failed + 1)); }
echo "$out" | grep -q "FAILED .*demonstration model's logits are off by" && echo "$out" | grep -q ' ok .*batched with 3' ||
    { echo "expected wrong logits only: $out"; failed=$((failed + 1)); }
mkfifo "$tmp/pipe"
cat "$tmp/pipe" >"$tmp/read" &
"$calla" selftest -m models/nano --backend cpu --report "$tmp/pipe" >"$tmp/out" 2>&1
if [ -p "$tmp/pipe" ]; then wait; else kill $!; fi
[ -p "$tmp/pipe" ] && [ -s "$tmp/read" ] || { echo "a pipe was replaced, not written"; failed=$((failed + 1)); }
"$calla" selftest -m models/nano --backend cpu --report "$tmp/none/report" >"$tmp/out" 2>&1
[ $? = 1 ] || { echo "expected exit code 1 without a place for the report"; failed=$((failed + 1)); }
echo "$((14 - failed)) passed, $failed failed"
[ $failed = 0 ]
