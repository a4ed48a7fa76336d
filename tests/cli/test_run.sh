#!/bin/sh
# `calla run` with the demonstration model: answers, input, options, JSON, exit codes, signals.
. tests/cli/lib.sh
hello='Hello! I am Calla. How can I help you?'
figures='generated 12 tokens'

# ---- The program ----
run; is 'no command' 2 $rc; has 'no command' 'usage: calla COMMAND' "$err"; is 'no command' '' "$out"
run --help; is --help 0 $rc; has --help 'answer a prompt, or chat' "$out"; is --help '' "$err"
run --version; is --version 0 $rc; has --version 'calla ' "$out"
refuses 2 "unknown command 'fly'" fly
refuses 2 "unknown option '--fly'" --fly
run run --help; is 'run --help' 0 $rc; has 'run --help' '--presence-penalty X' "$out"; is 'run --help' '' "$err"
is 'widest line of help' 80 "$(printf '%s\n' "$out" | awk '{ if (length > m) m = length } END { print m <= 80 ? 80 : m }')"

# ---- Answers ----
run run -p 'Hello!' --no-think
is 'answer' "$hello" "$out"; is 'answer' 0 $rc; has 'answer' "$figures" "$err"
run run -p 'Hello!' --no-think -q; is 'quiet' "$hello" "$out"; is 'quiet' '' "$err"
run run -p 'Hello!'; is 'thinking is not in stdout' "$hello" "$out"
case $err in *greet*) fail 'thinking in a file' "$err" ;; *) pass ;; esac
run run -p 'Hello!' --show-thinking; is '--show-thinking' "$hello" "$out"; has '--show-thinking' 'I greet' "$err"
run run --prompt='Hello!' --no-think; is '--prompt=' "$hello" "$out"
run run -pHello! --no-think; is '-pTEXT' "$hello" "$out"
run run -p 'Hello!' --no-think -v; has '-v' 'seed ' "$err"
run run -p 'Hello!' --no-think --kv f32 --threads 1 --ctx 64; is 'f32 cache' "$hello" "$out"
run run -p 'Hello!' --no-think --max-tokens 3; is '--max-tokens' 0 $rc; has '--max-tokens' 'stopped at --max-tokens' "$err"
run run --raw -p 'Hello!' --max-tokens 5; is '--raw' 0 $rc; has '--raw' 'prompt 2 tokens' "$err"

# ---- Input ----
out=$(printf 'Hello!' | "$calla" run --no-think -q); is 'stdin' "$hello" "$out"
out=$(printf 'Hello!\n' | "$calla" run --no-think -q -f -); is '-f -' "$hello" "$out"
printf 'Hello!\n' >"$tmp/hello.txt"
run run -f "$tmp/hello.txt" --no-think; is '-f' "$hello" "$out"
printf 'Hello\377!' >"$tmp/bad.txt"
run run -f "$tmp/bad.txt" --max-tokens 1; is 'bad UTF-8' 0 $rc; has 'bad UTF-8' 'replaced by U+FFFD' "$err"
refuses 1 'the prompt is empty' run
refuses 1 'the prompt is empty' run -p ''
refuses 1 "$tmp/none: No such file" run -f "$tmp/none"
refuses 1 "$tmp: Is a directory" run -f "$tmp"
head -c 16777217 /dev/zero | tr '\0' a >"$tmp/big.txt"
refuses 1 'expected at most 16777216 bytes, found more' run -f "$tmp/big.txt"
rm "$tmp/big.txt"
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "word " }' >"$tmp/long.txt"
refuses 1 'the context holds 64' run -f "$tmp/long.txt" --ctx 64

# ---- Usage errors ----
refuses 2 "unknown option '--tmep'" run --tmep 1
refuses 2 "unknown option '-Z'" run -Z
refuses 2 "unexpected argument 'Hello'" run Hello
refuses 2 "'--temp' needs a value" run --temp
refuses 2 'takes no value' run --json=yes -p x
refuses 2 'exclude each other' run -p x -f y
refuses 2 'no --system or --tools' run --raw --system x -p y
number() { # NAME LOW HIGH BAD...
    name=$1 low=$2 high=$3
    shift 3
    for bad; do
        refuses 2 "--$name: expected a $kind from $low to $high, found '$bad'" run "--$name" "$bad" -p x
    done
}
kind=number
number temp 0 100 -1 101 hot nan inf 0x1 '' ' 1' 1e999
number top-p 0 1 -0.1 1.1
number min-p 0 0.999 -0.1 1
number presence-penalty -2 2 -2.1 2.1
number frequency-penalty -2 2 -3 x
number repetition-penalty 0.1 10 0 11
kind='whole number'
number top-k 0 1000000 -1 1000001 1.5
number seed 0 9007199254740991 -1 9007199254740992 99999999999999999999 x
number max-tokens 1 1000000 0 -5 many
number ctx 16 1048576 15 1048577
number threads 1 256 0 257 ''
refuses 1 '--ctx: expected at most 32768' run --ctx 32769 -p x
refuses 2 "--backend: expected one of auto|cpu|metal|cuda|simt, found 'gpu'" run --backend gpu -p x
refuses 2 "--only: there is no mechanism 'x'" bench --ablate --only pdl,x
refuses 2 '--only chooses among the mechanisms of --ablate' bench --only pdl
refuses 2 "--kv: expected one of bf16|f32, found 'bf'" run --kv bf -p x
refuses 2 "--variant: expected one of ref|avx2|avxvnni|avx512|neon|i8mm, found 'sse'" run --variant sse -p x
refuses 2 '--log-level: expected one of' run --log-level loud -p x

# ---- Models ----
refuses 1 "$tmp/none" run -m "$tmp/none" -p x
refuses 1 'expected the folder of a checkpoint, found an empty name' run -m '' -p x
CALLA_MODEL=$tmp/env; export CALLA_MODEL
refuses 1 "$tmp/env" run -p x
run run -m models/nano -p 'Hello!' --no-think; is '-m before CALLA_MODEL' "$hello" "$out"
CALLA_MODEL=models/nano
run run -p 'Hello!' --no-think; is 'CALLA_MODEL' "$hello" "$out"
unset CALLA_MODEL
program=$(cd "$(dirname "$calla")" && pwd)/$(basename "$calla")
out=$(cd / && "$program" run -p 'Hello!' --no-think -q); is 'demo model from another folder' "$hello" "$out"
mkdir "$tmp/other"
for f in models/nano/*; do ln -s "$PWD/$f" "$tmp/other/"; done
rm "$tmp/other/chat_template.jinja"
echo '{{ messages }}' >"$tmp/other/chat_template.jinja"
run run -m "$tmp/other" -p 'Hello!'; is 'another template' 1 $rc; has 'another template' chat_template.jinja "$err"
run run -m "$tmp/other" --raw -p 'Hello!' --max-tokens 2; is 'another template, --raw' 0 $rc

# ---- Sampling and JSON ----
json() { "$tools/jsonget" "$@" <"$tmp/out"; }
run run -p 'Hello!' --json; is 'json' 0 $rc; is 'json' '' "$err"
is 'json lines' 1 "$(wc -l <"$tmp/out" | tr -d ' ')"
is 'json text' "$hello" "$(json text)"
is 'json model' nano "$(json model)"
is 'json finish' stop "$(json finish_reason)"
is 'json prompt_tokens' 12 "$(json prompt_tokens)"
has 'json reasoning' 'I greet' "$(json reasoning)"
has 'json seed' "$(json seed)" '0123456789'"$(json seed)"
run run -p 'Hello!' --json --no-think --max-tokens 3; is 'json length' length "$(json finish_reason)"
is 'json reasoning null' null "$(json reasoning)"; is 'json generated' 3 "$(json generated_tokens)"
run run -p 'Hello!' --json --temp 1.5 --top-p 0.9 --top-k 40 --min-p 0.01 --presence-penalty 1 --seed 42
is 'json seed given' 42 "$(json seed)"; is 'json temperature' 1.5 "$(json temperature)"
is 'json top_k' 40 "$(json top_k)"; is 'json presence_penalty' 1 "$(json presence_penalty)"
run run -p 'Hello!' --json --no-think --variant ref; is 'plain C' ref "$(json variant)"; is 'plain C' "$hello" "$(json text)"
hot='--raw -p Once --temp 3 --max-tokens 30 -q'
run run $hot --seed 7; first=$out
run run $hot --seed 7; is 'same seed, same text' "$first" "$out"
run run $hot --seed 8; if [ "$first" = "$out" ]; then fail 'another seed' "$out"; else pass; fi
run run --raw -p Once --temp 3 --max-tokens 20 --json; seed=$(json seed); first=$(json text)
run run --raw -p Once --temp 3 --max-tokens 20 --json --seed "$seed"; is 'the seed of --json repeats the run' "$first" "$(json text)"

# ---- Tools ----
echo '[{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]' >"$tmp/tools.json"
run run -p 'Hello!' --json --no-think --max-tokens 1; plain=$(json prompt_tokens)
run run -p 'Hello!' --json --no-think --max-tokens 1 --tools "$tmp/tools.json"; is '--tools' 0 $rc
if [ "$(json prompt_tokens)" -gt "$plain" ]; then pass; else fail '--tools' 'the prompt did not grow'; fi
echo '{}' >"$tmp/tools.json"; refuses 1 'expected a JSON array' run -p x --tools "$tmp/tools.json"
echo '[' >"$tmp/tools.json"; refuses 1 "$tmp/tools.json" run -p x --tools "$tmp/tools.json"

# ---- Output that nobody takes ----
{ "$calla" run -p 'Hello!' --no-think </dev/null 2>"$tmp/err"; echo $? >"$tmp/rc"; } | true
is 'closed pipe' 1 "$(cat "$tmp/rc")"; is 'closed pipe is quiet' '' "$(cat "$tmp/err")"
if [ -c /dev/full ]; then
    "$calla" run -p 'Hello!' --no-think </dev/null >/dev/full 2>"$tmp/err"; is 'full disk' 1 $?
    has 'full disk' 'standard output: No space left on device' "$(cat "$tmp/err")"
fi

# ---- Signals: rewarding repetition makes it talk until the context is full ----
babble="run --raw -p Hello! --temp 0 --repetition-penalty 0.1 --ctx 32768 --max-tokens 30000"
interrupt() { # SIGNAL CODE ARG...; for "cut" the mapped file is emptied instead
    sig=$1 code=$2
    shift 2
    : >"$tmp/out"
    "$calla" $babble "$@" </dev/null >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    i=0 # until it talks; --json is silent
    while [ ! -s "$tmp/out" ] && [ $i -lt 100 ] && [ $# = 0 ]; do sleep 0.1; i=$((i + 1)); done
    [ $# = 0 ] || sleep 1
    if [ "$sig" = cut ]; then : >"$tmp/cut/model.safetensors"; else kill -s "$sig" "$pid"; fi
    wait "$pid"
    is "$sig $*" "$code" $?
}
interrupt INT 130; has 'INT' 'stopped by a signal' "$(cat "$tmp/err")"
cp -r models/nano "$tmp/cut"; CALLA_MODEL=$tmp/cut; export CALLA_MODEL
interrupt cut 1; unset CALLA_MODEL
is 'a file cut short' 'calla: a file of the model can no longer be read: it was cut short while in use, or its disk failed' "$(cat "$tmp/err")"
interrupt TERM 143; has 'TERM' 'stopped by a signal' "$(cat "$tmp/err")"
interrupt INT 130 --json; is 'INT --json' cancelled "$(json finish_reason)"

finish
