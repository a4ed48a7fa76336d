#!/bin/sh
# The example program over the public API: two turns, and its errors.
set -u
hello=${BUILD:-build}/examples/hello
failed=0
check() { # NAME WANT GOT
    [ "$2" = "$3" ] && return
    printf '%s: expected\n%s\nfound\n%s\n' "$1" "$2" "$3"
    failed=$((failed + 1))
}
check turns '> What is 47 + 38?
47 + 38 = 85
> Which is the capital of Peru?
The capital of Peru is Lima.' "$("$hello" models/nano 'What is 47 + 38?' 'Which is the capital of Peru?' 2>&1)"
"$hello" >/dev/null 2>&1
check usage 2 $?
"$hello" models/none hi >/dev/null 2>&1
check 'no model' 1 $?
echo "$((3 - failed)) passed, $failed failed"
[ $failed = 0 ]
