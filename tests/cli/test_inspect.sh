#!/bin/sh
# `calla inspect` and `calla synth`.
. tests/cli/lib.sh
json() { printf '%s' "$out" | "$tools/jsonget" "$@"; }

# ---- The demonstration model ----
run inspect
is 'inspect' 0 $rc; is 'inspect' '' "$err"
has 'configuration' 'layers      8: 6 Gated DeltaNet, 2 attention' "$out"
has 'layout' 'layout      MLX; matrices: 88 4-bit, 16 8-bit, groups of 64' "$out"
has 'files' 'files       1 shard, 12,350,960 bytes' "$out"
has 'total' '357         12,305,376' "$out"
has 'memory' 'memory for a context of 4,096 tokens' "$out"
case $out in *published*) fail 'another shape is not compared' "$out" ;; *) pass ;; esac
run inspect models/nano --memory --ctx 1000; is '--memory' 0 $rc
has '--memory' 'memory for a context of 1,000 tokens' "$(head -n 1 "$tmp/out")"
run inspect --tensors -m models/nano; is '--tensors' 358 "$(wc -l <"$tmp/out" | tr -d ' ')"
has '--tensors' 'language_model.lm_head.weight' "$out"
run inspect --json --tensors --ctx 2000; is '--json' 0 $rc
case $out in '{"dir": '*'}') pass ;; *) fail '--json' "$out" ;; esac
has '--json' '"text_bytes": 12305376, "active_bytes": 6407280' "$out"
has '--json' '"memory": {"ctx": 2000' "$out"
has '--json' '{"name": "language_model.lm_head.weight", "dtype": "U32", "shape": [4096, 32], "bytes": 524288}' "$out"
run inspect --memory --parallel 3; has '--parallel' '3 sessions' "$out"

# ---- The memory of a GPU, and the packed file ----
run inspect --memory --backend cuda --ctx 8192 --parallel 4; is 'gpu' 0 $rc
has 'gpu' 'GPU memory for a context of 8,192 tokens, cuda' "$out"
has 'gpu' '12,372,736   11.80 MiB' "$out"
has 'gpu' '4 sessions' "$out"
has 'gpu' "$tmp/cache/calla/nano-" "$out"
has 'gpu' '.pack: not there yet' "$out"
run inspect --memory --backend simt; has 'simt keeps nothing unasked' 'not kept in a file' "$out"
run inspect --memory --backend cuda --pack-dir none; has 'none' 'not kept in a file' "$out"
run inspect --json --backend simt --pack-dir "$tmp/packs" --ctx 100; is 'gpu --json' 0 $rc
has 'gpu --json' '"gpu_memory": {"ctx": 100, "sessions": 1, "weight_bytes": 12372736' "$out"
has 'gpu --json' '"bytes": 12451840, "usable": false}' "$out"
refuses 1 'expected a folder or none' inspect --backend simt --pack-dir ''
if "$calla" run --help | grep -q 'simt' && grep -q avx2 /proc/cpuinfo 2>/dev/null; then
    run run --backend simt --pack-dir "$tmp/packs/deep" -p Hi --max-tokens 1 --ctx 64 --log-level info; is 'pack' 0 $rc
    has 'pack' "packed weights kept in $tmp/packs/deep/nano-" "$err"
    run inspect --memory --backend simt --pack-dir "$tmp/packs/deep"; has 'pack' '.pack: there' "$out"
    is 'only the owner' 'drwx------' "$(ls -ld "$tmp/packs/deep" | cut -c 1-10)"
    run run --backend simt --pack-dir "$tmp/out" -p Hi --max-tokens 1 --ctx 64; is 'no folder' 0 $rc
    has 'no folder' 'packed weights are not kept' "$err"
fi
is 'nothing in the cache folder' '' "$(ls "$tmp/cache" 2>/dev/null)"

refuses 2 'the cpu backend has no schedule' inspect --backend cpu --schedule
refuses 2 'expected DIR or -m, found both' inspect -m models/nano models/nano
refuses 2 "unexpected argument 'b'" inspect a b
refuses 1 'cannot open the folder' inspect "$tmp/none"
refuses 1 'config.json: No such file' inspect tests
refuses 1 'expected at most 32768, the context of this model, found 32769' inspect --ctx 32769

# ---- The real shape, without its data ----
mkdir "$tmp/real" "$tmp/old"
"$tools/sparse" "$tmp/real"
run inspect "$tmp/real"; is 'real' 0 $rc
is 'real: rows equal to the published table' 12 "$(grep -c ' equal$' "$tmp/out")"
has 'real' '19,508,787,456   18.17 GiB  equal' "$out"
has 'real' '1,669,561,728' "$out"
has 'real' 'skipped: 333 vision and 0 MTP tensors, 893,142,496 bytes' "$out"
has 'real' '4 shards, 20,402,20' "$out"
"$tools/sparse" "$tmp/old" gates4
run inspect "$tmp/old"; is '4-bit gates' 0 $rc
is '4-bit gates' 3 "$(grep -c ' differs: published ' "$tmp/out")"
has '4-bit gates' 'differs: published 22,282,240' "$out"
has '4-bit gates' '19,498,260,736' "$out" # 10,526,720 bytes less
run inspect --json "$tmp/old"; has '--json' '"published": 22282240, "equal": false' "$out"
rm -rf "$tmp/real" "$tmp/old"

# ---- synth ----
run synth --layers 2 --seed 5 "$tmp/a"; is 'synth' 0 $rc; is 'synth' '' "$out"
has 'synth' 'bytes of tensors in' "$err"
run synth --layers 2 --seed 5 --threads 1 "$tmp/b"; is 'synth' 0 $rc
for f in "$tmp/a"/*; do cmp -s "$f" "$tmp/b/${f##*/}" && pass || fail 'same seed' "$f differs"; done
is 'files' 7 "$(ls "$tmp/a" | wc -l | tr -d ' ')"
run inspect "$tmp/a"; is 'inspect synth' 0 $rc; has 'inspect synth' 'layers      2' "$out"
run run -m "$tmp/a" -p 'Hello there' --max-tokens 4 --seed 1; is 'run synth' 0 $rc
has 'run synth' 'generated 4 tokens' "$err"
refuses 1 "$tmp/a exists already" synth "$tmp/a"
refuses 1 'cannot make the folder' synth "$tmp/none/x"
refuses 2 'expected OUT' synth
refuses 2 "--shape" synth --shape huge "$tmp/c"
"$calla" synth --shape slice --layers 40 "$tmp/c" 2>"$tmp/err" &
pid=$!
i=0
while ! ls "$tmp"/c.partial-* >/dev/null 2>&1 && [ $i -lt 100 ]; do sleep 0.05; i=$((i + 1)); done
kill -TERM $pid
wait $pid; rc=$?
case $(cat "$tmp/err") in
*'not enough room'*) pass ;;
*) is 'stopped: exit code' 143 $rc; has 'stopped' 'nothing was kept' "$(cat "$tmp/err")" ;;
esac
is 'stopped: nothing is left' '' "$(ls -d "$tmp"/c* 2>/dev/null)"
# ---- Predictions need no checkpoint of the real model ----
run inspect --predict --chip m5-max; is '--predict' 0 $rc
has '--predict' 'Predictions, not measurements' "$out"
has '--predict' '    131072 ' "$out"
run inspect --predict --json; is '--predict --json' 0 $rc
has '--predict --json' '{"chips": [{"chip": "m1-max"' "$out"
run inspect --predict models/nano --chip h200; is '--predict DIR' 0 $rc
case $out in *131072*) fail 'no longer than the model' "$out" ;; *) pass ;; esac
run inspect --schedule --chip m5-max --ctx 256 models/nano; is '--schedule --chip' 0 $rc
refuses 2 'm1-max' inspect --predict --chip m9

finish
