#!/bin/sh
# tools/runtests.sh: what it counts as passed and as failed.
passed=0 failed=0
# expect LAST_LINE RC NAME=COMMAND...
expect() {
    want=$1 want_rc=$2
    shift 2
    got=$(sh tools/runtests.sh "$@" | tail -n 1)
    sh tools/runtests.sh "$@" >/dev/null 2>&1
    rc=$?
    if [ "$got" = "$want" ] && [ $rc = "$want_rc" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $*: expected '$want' and exit $want_rc, found '$got' and exit $rc"
    fi
}
cm='[  PASSED  ] 3 test(s).'
expect '3 passed, 0 failed' 0 "a=echo '$cm'"
expect '6 passed, 0 failed' 0 "a=echo '$cm'; echo '$cm'"
expect '5 passed, 0 failed' 0 "a=echo '$cm'" "b=echo 2 passed, 0 failed"
expect '2 passed, 0 failed, 4 skipped' 0 "a=echo 2 passed, 0 failed, 4 skipped"
expect '3 passed, 2 failed' 1 "a=echo '$cm'; echo '[  FAILED  ] 2 test(s), listed below:'; exit 2"
expect '3 passed, 1 failed' 1 "crash after its counts=echo '$cm'; kill -SEGV \$\$"
expect '3 passed, 1 failed' 1 "exit code alone=echo '$cm'; exit 1"
expect '0 passed, 1 failed' 1 "prints no result=true"
expect '0 passed, 1 failed' 1 "is killed=kill -KILL \$\$"
expect '0 passed, 1 failed' 1 "does not exist=./no-such-program"
expect '1 passed, 1 failed' 1 "check/a=true" "check/b=false"
expect '9 passed, 1 failed' 1 "exit 0 in spite of failures=echo 9 passed, 1 failed"
expect '0 passed, 1 failed' 1
TEST_TIMEOUT=1
export TEST_TIMEOUT
command -v timeout >/dev/null && expect '1 passed, 1 failed' 1 "hangs=echo 1 passed, 0 failed; sleep 5"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
