#!/bin/sh
# Chat on a pseudo-terminal: tests/cli/*.pty are the scripts.
. tests/cli/lib.sh
export LSAN_OPTIONS="suppressions=$PWD/tests/cli/lsan.supp:print_suppressions=0"

# chat SCRIPT ARG...: adds the counts of one script.
chat() {
    script=$1
    shift
    "$tools/pty" "tests/cli/$script" "$calla" run "$@" >"$tmp/log" 2>&1
    cat "$tmp/log"
    counts=$(grep "^[0-9]* passed, [0-9]* failed$" "$tmp/log")
    [ -n "$counts" ] || counts="0 passed, 1 failed"
    passed=$((passed + ${counts%% *}))
    failed=$((failed + $(echo "$counts" | sed 's/.*, \([0-9]*\) failed/\1/')))
}

chat chat.pty --temp 0
mode=$(ls -l "$tmp/state/calla/history" | cut -c1-10)
is 'history file' -rw------- "$mode"
chat chat-stop.pty --temp 100 --seed 1
chat chat-full.pty --ctx 40
chat chat-escape.pty --system "$(printf 'A\033[31mB\302\2331mC\rD\177')"
awk 'BEGIN { for (i = 0; i < 530; i++) printf "word " }' >"$tmp/long.txt"
chat read-stop.pty -f "$tmp/long.txt" --no-think --variant ref
NO_COLOR=1 chat chat-plain.pty --no-think

# The line editor is opened, not linked; there is none.
calla=$(dirname "$tools")/calla-edit-opened
chat edit-opened.pty --no-think
calla=$(dirname "$tools")/calla-edit-plain
chat edit-plain.pty --no-think

finish
