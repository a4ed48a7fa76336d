#!/bin/sh
# `calla quantize`: what is refused. What it writes: tests/unit/test_quantize.c.
. tests/cli/lib.sh
refuses 2 'HF_DIR OUT' quantize models/nano
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
finish
