#!/bin/sh
# `calla quantize`: what is refused. What it writes: tests/unit/test_quantize.c.
. tests/cli/lib.sh
refuses 2 'HF_DIR OUT' quantize models/nano
refuses 2 '--mtp-bits belongs to --keep-mtp' quantize --mtp-bits 4 models/nano "$tmp/out"
refuses 2 'expected 4 or 8, found 5' quantize --mtp-bits 5 models/nano "$tmp/out"
refuses 1 'models/nano is in MLX'"'"'s layout already' quantize models/nano "$tmp/out"
refuses 1 "$tmp/nowhere" quantize "$tmp/nowhere" "$tmp/out"
mkdir "$tmp/empty"
refuses 1 'config.json' quantize "$tmp/empty" "$tmp/out"
# What both writers of checkpoints share: a limit on the size of files is an error, not the end.
got=$(
    ulimit -f 64
    "$calla" synth --shape nano "$tmp/limited" 2>&1 >/dev/null
    echo "code $?"
)
has 'a file that may not grow' 'File too large' "$got"
has 'a file that may not grow' 'code 1' "$got"
is 'nothing is left' 'empty' "$(cd "$tmp" && ls -d */ | tr -d /)"
# What a killed run left goes with the next; what a living one writes stays.
mkdir "$tmp/new.partial-999999999" "$tmp/new.partial-$$" "$tmp/new.partial-old"
: >"$tmp/new.partial-999999999/model-00001-of-00002.safetensors"
"$calla" synth --shape nano --layers 4 "$tmp/new" 2>/dev/null
is 'stale parts' "new new.partial-$$ new.partial-old" "$(cd "$tmp" && echo new*)"
finish
