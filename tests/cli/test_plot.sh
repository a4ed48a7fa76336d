#!/bin/sh
# calla bench --plot: of a measurement, of kept files, and what it refuses.
set -u
. tests/cli/lib.sh

run bench -m models/nano --backend cpu --prefill 32 --decode 16 --reps 2 --steps 4 --json "$tmp/a.json" --plot "$tmp/a.svg"
is 'measured: exit code' 0 "$rc"
run bench --plot "$tmp/b.svg" "$tmp/a.json"
is 'kept: exit code' 0 "$rc"
is 'kept: nothing said' '' "$out$err"
cmp -s "$tmp/a.svg" "$tmp/b.svg"
is 'kept: the same drawing' 0 $?
has 'kept: title' '<title>nano on ' "$(cat "$tmp/b.svg")"
run bench --plot "$tmp/c.svg" "$tmp/a.json" "$tmp/a.json" bench/results/article.json
is 'three: exit code' 0 "$rc"
has 'three: equal labels are told apart' ', a.json</text>' "$(cat "$tmp/c.svg")"
has 'three: others are marked' 'reported by others' "$(cat "$tmp/c.svg")"

echo '{"results": [{"kind": "decode", "tokens": 0}]}' >"$tmp/bad.json"
refuses 1 'bad.json: results[0]: tokens: expected' bench --plot "$tmp/d.svg" "$tmp/a.json" "$tmp/bad.json"
refuses 1 'cannot open' bench --plot "$tmp/d.svg" "$tmp/none"
refuses 1 'expected what calla bench' bench --plot "$tmp/d.svg" bench/results/peers-cpu-slice-1t.json
is 'refused: nothing written' no "$([ -e "$tmp/d.svg" ] && echo yes || echo no)"
refuses 1 'cannot write' bench --plot "$tmp/none/d.svg" "$tmp/a.json"
refuses 2 'not --ablate' bench --plot "$tmp/d.svg" --ablate
refuses 2 'for --agent, --compare and --plot' bench "$tmp/a.json"
finish
