#!/bin/sh
# calla bench: results as JSON, and --compare on made-up results with known differences.
set -u
. tests/cli/lib.sh

run bench -m models/nano --backend cpu --precision exact --prefill 32 --decode 16 --reps 3 --steps 4 --json "$tmp/r" --csv "$tmp/c"
is 'bench: exit code' 0 "$rc"
is 'bench: model' '"nano"' "\"$("$tools/jsonget" model <"$tmp/r")\""
is 'bench: prefill' 3 "$(sed -n 's/.*prefill.*"seconds": \[\(.*\)\].*/\1/p' "$tmp/r" | tr ',' '\n' | wc -l | tr -d ' ')"
is 'bench: CSV' 3 "$(wc -l <"$tmp/c" | tr -d ' ')"
field() { "$tools/jsonget" "$1" <"$tmp/r"; }
is 'bench: format' 3 "$(field format)"
is 'bench: precision' '"exact"' "\"$(field precision)\""
is 'bench: flags' '"--backend cpu --precision exact --prefill 32 --decode 16 --reps 3 --steps 4"' "\"$(field flags)\""
is 'bench: roof in the table' 1 "$(grep -c 'of read.*of peak.*of roof' "$tmp/out")"
is 'bench: a read limit' 1 "$(grep -c '"read_bytes_per_s": [0-9]' "$tmp/r")"
is 'bench: no path' 0 "$(grep -c "$tmp" "$tmp/r")"
is 'bench: CSV, fields' 1 "$(awk -F, 'NR == 1 { print ($1 == "kind" && $2 == "tokens" && $4 == "tokens_per_s") }' "$tmp/c")"
run bench -m models/nano --backend cpu --decode 8,100000 --steps 2 --json "$tmp/short"
is 'more than the context: exit code' 0 "$rc"
has 'more than the context' 'left out: decode 100000: a session must hold between' "$out"
has 'more than the context, JSON' '"tokens": 100000, "why": "a session' "$(cat "$tmp/short")"
run bench -m models/nano --backend cpu --prefill 100000
is 'nothing measured: exit code' 1 "$rc"
has 'nothing measured' 'nothing was measured: prefill 100000' "$err"
refuses 2 'names the lengths itself' bench -m models/nano --quick --decode 5
run bench -m models/nano --backend simt --prefill 4 --decode 4 --reps 1 --steps 1 --json "$tmp/gpu"
is 'emulator: exit code' 0 "$rc"
has 'emulator: kernels' 'kernels in' "$out"
is 'emulator: kernels and stages, JSON' 2 "$(grep -c '"kernels_per_token": [0-9.]*, "stages_per_token": [0-9]' "$tmp/gpu")"
run bench -m models/nano --backend simt --ablate --only fuse_down --decode 4 --reps 1 --steps 1
is 'ablation at a length: rows' 1 "$(grep -c '^fuse_down  *decode  *4 ' "$tmp/out")"
run bench --compare "$tmp/r" "$tmp/r"
is 'one run with itself: exit code' 0 "$rc"
has 'one run with itself' '1.000' "$out"
has 'one run with itself' 'fewer than three pairs' "$out"

# results FACTOR SEED: a run of 20 prefills and 20 steps with 1 % of noise, FACTOR times as long.
# Both sides of pair SEED share a drift of up to 10 %.
results() {
    awk -v f="$1" -v seed="$2" -v own="$3" '
    function noise() { x = (x * 16807) % 2147483647; return x / 2147483647 - 0.5 }
    function list(t,  i, s) { for (i = 0; i < 20; i++) s = s (i ? ", " : "") t * f * drift * (1 + 0.02 * noise()); return s }
    BEGIN {
        x = seed * 7919 + 1; noise(); drift = 1 + 0.2 * noise(); x = x + own * 104729; noise(); noise()
        printf "{\"format\": 3, \"results\": [{\"kind\": \"prefill\", \"tokens\": 512, \"seconds\": [%s]},\n", list(0.1)
        printf " {\"kind\": \"decode\", \"tokens\": 256, \"seconds\": [%s]}]}\n", list(0.002)
    }'
}
a='' b='' slow='' fast=''
for i in 1 2 3 4 5 6; do
    results 1 $i 1 >"$tmp/a$i"
    results 1 $i 2 >"$tmp/b$i"
    results 1.05 $i 3 >"$tmp/s$i"
    results 0.95 $i 4 >"$tmp/f$i"
    a=$a,$tmp/a$i b=$b,$tmp/b$i slow=$slow,$tmp/s$i fast=$fast,$tmp/f$i
done
run bench --compare "${a#,}" "${b#,}"
is 'equal: exit code' 0 "$rc"
is 'equal: rows' 2 "$(grep -c 'no difference shown' "$tmp/out")"
run bench --compare "${a#,}" "${slow#,}"
is '5 % slower: exit code' 1 "$rc"
is '5 % slower: rows' 2 "$(grep -c 'slower$' "$tmp/out")"
run bench --compare "${a#,}" "${fast#,}"
is '5 % faster: exit code' 0 "$rc"
is '5 % faster: rows' 2 "$(grep -c 'faster$' "$tmp/out")"
# One run of each: 5 % is more than runs are allowed to differ, where they share their drift.
run bench --compare "$tmp/a1" "$tmp/b1"
is 'one pair, equal: exit code' 0 "$rc"
run bench --compare "$tmp/a1" "$tmp/s1"
is 'one pair, slower: exit code' 1 "$rc"

# A replay, both ways.
printf '%s\n' '{"messages": [{"role": "user", "content": "Hello!"}]}' '{"after": 1, "messages": []}' >"$tmp/session"
run bench --agent "$tmp/session" --no-cache --json "$tmp/r" --csv "$tmp/c"
is 'agent: exit code' 0 "$rc"
has 'agent: answers' 'answers that differ: 0 of 2' "$out"
is 'agent: CSV' 3 "$(wc -l <"$tmp/c" | tr -d ' ')"
is 'agent: turns' 2 "$("$tools/jsonget" agent_total turns <"$tmp/r")"
echo '{' >>"$tmp/session"
refuses 2 'takes one trace' bench --agent "$tmp/session" "$tmp/session"
refuses 2 'a size like 512M' bench --agent --cache-ram much
refuses 2 'go with --agent' bench --no-cache
run bench --agent "$tmp/session"
is 'agent: a broken line: exit code' 1 "$rc"
has 'agent: a broken line' "$tmp/session:3: " "$err"

refuses 2 'found 2 and 1' bench --compare "$tmp/a1,$tmp/a2" "$tmp/b1"
refuses 2 'takes two files' bench --compare "$tmp/a1"
refuses 2 'is a file of results' bench --plot "$tmp/a1" "$tmp/b1"
refuses 1 'cannot be two results' bench -m models/nano --json "$tmp/same" --csv "$tmp/same"
refuses 1 'cannot write' bench -m models/nano --csv "$tmp/good" --json "$tmp/none/x"
# A speed without the list of seconds is a speed of tokens.
echo '{"format": 3, "results": [{"kind": "prefill", "tokens": 4096, "tokens_per_s": 500}]}' >"$tmp/rate1"
echo '{"format": 3, "results": [{"kind": "prefill", "tokens": 4096, "tokens_per_s": 1000, "seconds": [4.096]}]}' >"$tmp/rate2"
run bench --compare "$tmp/rate1" "$tmp/rate2"
has 'rates' '500.00    1000.00   2.000' "$out"
echo '{"format": 3, "model": "x", "results": [{"kind": "decode", "tokens": 5, "tokens_per_s": 1},
 {"kind": "prefill", "tokens": 4096, "tokens_per_s": 500}]}' >"$tmp/rate3"
run bench --compare "$tmp/rate3" "$tmp/rate1"
has 'missing' 'not compared: decode 5 is in A and not in B' "$out"
[ ! -e "$tmp/good" ] || fail 'files' 'left behind before a measurement'
refuses 2 'name no length' bench -m models/nano --prefill '' --decode ''
refuses 2 'prints a table' bench -m models/nano --profile --csv "$tmp/good"
"$calla" bench --compare "$tmp/a1" "$tmp/b1" >/dev/full 2>/dev/null
is 'full disk: exit code' 2 $?
refuses 2 'leaves nothing to measure' bench --agent --cache-ram 0
refuses 2 'files are for' bench "$tmp/a1" "$tmp/a2"
refuses 2 'cannot open' bench --compare "$tmp/none" "$tmp/b1"
echo '{"a": 1}' >"$tmp/other"
refuses 2 'expected what calla bench' bench --compare "$tmp/a1" "$tmp/other"
echo '{"format": 3, "results": [{"kind": "decode", "tokens": 9, "seconds": [-1]}]}' >"$tmp/other"
run bench --compare "$tmp/other" "$tmp/other"
is 'nothing in common: exit code' 2 "$rc"
# Two of the same program are not told apart by being run.
out=$(sh bench/ab.sh "$calla" "$calla" 1 -m models/nano --backend cpu --prefill '' --decode 16 --steps 4)
has 'ab.sh' 'decode        16' "$out"
finish
