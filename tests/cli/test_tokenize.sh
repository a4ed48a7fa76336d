#!/bin/sh
# `calla tokenize`: text to ids and back.
. tests/cli/lib.sh
text='Hello <|im_end|> wörld 😀'
ids='861 220 4034 271 127 114 81 498 2821'

# piped TEXT ARG...: as run, with TEXT as the standard input.
piped() {
    printf '%s' "$1" >"$tmp/in"
    shift
    "$calla" "$@" <"$tmp/in" >"$tmp/out" 2>"$tmp/err"
    rc=$?
    out=$(cat "$tmp/out")
    err=$(cat "$tmp/err")
}

piped "$text" tokenize; is 'ids' "$ids" "$out"; is 'ids' 0 $rc; is 'ids' '' "$err"
piped "$text" tokenize -; is '-' "$ids" "$out"
run tokenize "$tmp/in"; is 'FILE' "$ids" "$out"
piped "$text" tokenize -m models/nano; is '-m' "$ids" "$out"
piped "$text" tokenize --plain
case " $out " in *' 4034 '*) fail '--plain' "$out" ;; *) pass ;; esac
piped '' tokenize; is 'no text' '' "$out"; is 'no text' 0 $rc
piped "$ids" tokenize --decode; is '--decode' "$text" "$out"; is '--decode' 0 $rc
piped "[861, 220,4034]" tokenize -d; is '-d, JSON' 'Hello <|im_end|>' "$out"
piped '127' tokenize -d; is 'half a character' 303 "$(od -An -to1 "$tmp/out" | tr -d ' ')"
piped 'a b' tokenize --json
is '--json' '{"n": 2, "ids": [64, 284], "pieces": ["a", " b"], "text": "a b"}' "$out"
piped "64 284" tokenize --json -d
is '--json --decode' '{"n": 2, "ids": [64, 284], "pieces": ["a", " b"], "text": "a b"}' "$out"
head -c 100000 models/nano/tokenizer.json >"$tmp/in"
"$calla" tokenize "$tmp/in" | "$calla" tokenize -d >"$tmp/out"
if cmp -s "$tmp/in" "$tmp/out"; then pass; else fail 'round trip' 'text differs'; fi

piped '1 2 99999' tokenize -d; is 'id out of range' 1 $rc
has 'id out of range' "byte 4 of the input: expected an id from 0 to 4064, found '99999'" "$err"
piped '1 -2' tokenize -d; has 'negative id' "found '-2'" "$err"
piped '1 2x' tokenize -d; has 'no id' "found 'x'" "$err"
refuses 1 "$tmp/none: No such file" tokenize "$tmp/none"
refuses 1 "tokenizer.json: No such file" tokenize -m tests "$tmp/in"
refuses 2 '--plain is for encoding only' tokenize --plain -d
refuses 2 "unexpected argument" tokenize a b

finish
