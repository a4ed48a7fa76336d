#!/bin/sh
# twin.sh RUN PROGRAM: a few answers of the demonstration model from PROGRAM, started by RUN, against
# those of build/calla.
set -u
run=$1 program=$2
passed=0 failed=0
for prompt in 'What is 47 + 38?' 'Which is the capital of Peru?' 'Hello!'; do
    want=$(build/calla run --backend cpu --no-think --temp 0 -q -p "$prompt" 2>/dev/null)
    got=$($run "$program" run --backend cpu --no-think --temp 0 -q -p "$prompt" 2>/dev/null)
    if [ -n "$want" ] && [ "$got" = "$want" ]; then
        passed=$((passed + 1))
        echo "$prompt $got"
    else
        failed=$((failed + 1))
        echo "FAIL: $prompt: expected '$want', found '$got'"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
