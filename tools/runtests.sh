#!/bin/sh
# Runs tests and adds up their counts.
#
#   runtests.sh NAME=COMMAND...
#
# A COMMAND's result is what it prints: cmocka's summary lines, or "N passed, N failed" (", N
# skipped" may follow; the last such line counts). It has failed when it exits non-zero, is killed,
# runs past TEST_TIMEOUT seconds (300), or prints no result; that is one failure when it counted none
# itself. A NAME that begins with "check/" is one test, judged by its exit code alone.
# JOBS commands run at a time (default: one a CPU). The last line is the sum; exit 1 on any failure.
set -u

# one NAME COMMAND LOG: runs COMMAND, writes LOG.res: "passed failed skipped rc seconds".
one() {
    t0=$(date +%s)
    limit=
    command -v timeout >/dev/null 2>&1 && limit="timeout ${TEST_TIMEOUT:-300}"
    $limit sh -c "$2" >"$3" 2>&1 </dev/null
    rc=$?
    case $1 in
    check/*) [ $rc = 0 ] && p='1 0 0' || p='0 1 0' ;;
    *)
        p=$(awk -v rc=$rc '
            /\[  PASSED  \] [0-9]+ test/ { n = $0; sub(/.*PASSED  \] /, "", n); p += n; seen = 1 }
            /\[  FAILED  \] [0-9]+ test/ { n = $0; sub(/.*FAILED  \] /, "", n); f += n; seen = 1 }
            /\[  SKIPPED \] [0-9]+ test/ { n = $0; sub(/.*SKIPPED \] /, "", n); s += n; seen = 1 }
            /^[0-9]+ passed, [0-9]+ failed/ { P = $1; F = $3; S = $6 == "skipped" ? $5 : 0; plain = 1 }
            END {
                if (plain) { p += P; f += F; s += S }
                if (f == 0 && (rc != 0 || !(seen || plain))) f = 1
                print p + 0, f + 0, s + 0
            }' "$3")
        ;;
    esac
    echo "$p $rc $(($(date +%s) - t0))" >"$3.res"
    set -- "$1" "$2" "$3" $p
    if [ "$5" = 0 ]; then
        [ "$6" = 0 ] && skipped= || skipped=", $6 skipped"
        printf '  ok    %-28s %5d passed%s\n' "$1" "$4" "$skipped"
        return
    fi
    printf '  FAIL  %-28s %5d passed, %d failed (exit %d)\n' "$1" "$4" "$5" $rc
    {
        grep -nE '\[  FAILED  \]|^FAIL|not ok|runtime error|Sanitizer|error:|rror at ' "$3" | head -n 20
        echo "--- its last lines:"
        tail -n 25 "$3"
        echo "--- again: $2"
    } | sed 's/^/        /'
}

if [ "${1:-}" = --one ]; then
    [ -n "${2:-}" ] || exit 0 # xargs without input
    one "$(cat "$2.name")" "$(cat "$2.cmd")" "$2"
    exit 0
fi

logs=$(mktemp -d "${TMPDIR:-/tmp}/calla-tests.XXXXXX") || exit 1
trap 'rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM
n=100
for t in "$@"; do
    n=$((n + 1))
    printf '%s' "${t%%=*}" >"$logs/$n.name"
    printf '%s' "${t#*=}" >"$logs/$n.cmd"
done
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
find "$logs" -name '*.cmd' | sed 's/\.cmd$//' | LC_ALL=C sort |
    xargs -n 1 -P "$jobs" sh "$0" --one

cat "$logs"/*.res 2>/dev/null | awk -v want=$# '
    { p += $1; f += $2; s += $3; n++ }
    END {
        if (n < want) f += want - n # a runner that was killed itself
        if (want == 0) f = 1        # no tests is no success
        printf "%d passed, %d failed", p, f
        if (s) printf ", %d skipped", s
        printf "\n"
        exit f > 0
    }'
