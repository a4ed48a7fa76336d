#!/bin/sh
# calla verify: agrees with itself on every path, catches planted faults and names the layer.
set -u
. tests/cli/lib.sh
model=models/nano
ref=$tmp/cpu.safetensors
layers=language_model.model.layers
sentence='On Monday the baker of Lima sold 17 loaves, 3 cakes and 1 pie, and then closed the shop.'
printf '%s\n%s\n%s\n' "$sentence" "$sentence" "$sentence" >"$tmp/text"

run verify --write --backend cpu --text "$tmp/text" --tokens 48 --trace 24 -m $model "$ref"
is 'write: exit code' 0 "$rc"
has 'write' '48 positions in 1 sequence' "$out"

# The same arithmetic again: nothing differs, bit for bit, as a prompt or token by token.
for how in '' --step; do
    # shellcheck disable=SC2086
    run verify --backend cpu -m $model $how --max-dlogit 1e-9 --json "$tmp/json" "$ref"
    is "cpu $how: exit code" 0 "$rc"
    has "cpu $how" 'ratio 1.000000' "$out"
    has "cpu $how" 'max 0.00000' "$out"
    has "cpu $how" 'none of 17 points stands out' "$out"
    is "cpu $how: JSON" true "$("$tools/jsonget" passed <"$tmp/json")"
done
# Another arithmetic: within the bars, on both paths.
run verify --backend cpu --variant ref --kv f32 -m $model "$ref"
is 'ref: exit code' 0 "$rc"
run verify --write --backend cpu --kv f32 --text "$tmp/text" --tokens 20 --top 0 -m $model "$tmp/f32"
run verify --backend simt --min-top1 90 -m $model "$tmp/f32"
is 'simt: exit code' 0 "$rc"
has 'simt' 'none of 17 points stands out' "$out"
run verify --backend simt --step --min-top1 90 -m $model "$tmp/f32"
is 'simt, steps: exit code' 0 "$rc"

# faulty TENSOR HOW POINT [ARG...]
faulty() {
    "$tools/damage" $model "$tmp/damaged" "$1" "$2" || fail "$1" 'cannot be damaged'
    tensor=$1 point=$3
    shift 3
    run verify -m "$tmp/damaged" "$@" --json "$tmp/json" "$ref"
    is "$tensor: exit code" 1 "$rc"
    has "$tensor" FAILED "$out"
    is "$tensor: fault" "$point" "$("$tools/jsonget" fault <"$tmp/json")"
    rm -r "$tmp/damaged"
}
faulty $layers.2.mlp.switch_mlp.down_proj.weight nibbles 'layer 2 experts' --backend cpu
faulty $layers.3.self_attn.v_proj.weight nibbles 'layer 3 attention' --backend cpu
faulty $layers.5.linear_attn.in_proj_b.weight nibbles 'layer 5 gdn' --backend cpu
faulty $layers.5.linear_attn.A_log -100 'layer 5 gdn' --backend cpu # no decay
faulty $layers.2.linear_attn.A_log -100 'layer 2 gdn' --backend simt
faulty $layers.4.mlp.switch_mlp.up_proj.weight nibbles 'layer 4 experts' --backend simt --step
faulty language_model.model.embed_tokens.weight nibbles embedding --backend cpu
faulty language_model.lm_head.weight nibbles null --backend cpu
has 'head' 'see the final norm and the output matrix' "$out"

refuses 1 'cannot open' verify -m $model "$tmp/none"
refuses 2 'belong to --write' verify -m $model --text "$tmp/text" "$ref"
refuses 1 'header length' verify -m $model tests/cli/lib.sh
"$calla" synth --shape nano --layers 4 "$tmp/other" 2>/dev/null
refuses 1 'trace is of 8 layers' verify -m "$tmp/other" "$ref"
printf '1 2 3\n4096\n' >"$tmp/ids"
refuses 1 'line 2: expected ids' verify --write -m $model --ids "$tmp/ids" "$tmp/x"
printf '1 2 3\n\n7, 8\n' >"$tmp/ids"
run verify --write --backend cpu -m $model --ids "$tmp/ids" --top 8 "$tmp/x"
has 'ids' '5 positions in 2 sequences' "$out"
run verify --backend cpu -m $model --layers "$tmp/x"
is 'ids: exit code' 0 "$rc"
has 'ids' 'layer 7 experts' "$out"
finish
