# lib.sh - sourced by the command line tests (test_*.sh), which run from the top of the source tree.
#   CALLA      the program (build/calla)       CLI_TOOLS  helpers built from tests/cli/*.c
calla=${CALLA:-build/calla}
tools=${CLI_TOOLS:-build/tests/cli}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
unset CALLA_MODEL NO_COLOR
export XDG_STATE_HOME="$tmp/state" XDG_CACHE_HOME="$tmp/cache" XDG_CONFIG_HOME="$tmp/config" XDG_DATA_HOME="$tmp/data"
passed=0 failed=0

# pass NAME; fail NAME DETAIL
pass() { passed=$((passed + 1)); }
fail() {
    failed=$((failed + 1))
    printf 'FAILED %s: %s\n' "$1" "$2"
}

# is NAME WANT GOT: equal strings.
is() { if [ "$2" = "$3" ]; then pass; else fail "$1" "expected '$2', found '$3'"; fi; }

# has NAME WANT TEXT: TEXT contains WANT.
has() {
    case $3 in
    *"$2"*) pass ;;
    *) fail "$1" "expected '$2' in '$3'" ;;
    esac
}

# run ARG...: runs the program without terminal or input; sets rc, out, err.
run() {
    "$calla" "$@" </dev/null >"$tmp/out" 2>"$tmp/err"
    rc=$?
    out=$(cat "$tmp/out")
    err=$(cat "$tmp/err")
}

# refuses RC WANT ARG...: exit code RC, nothing on stdout, WANT in the one line on stderr.
refuses() {
    want_rc=$1 want=$2
    shift 2
    run "$@"
    is "calla $*: exit code" "$want_rc" "$rc"
    is "calla $*: stdout" '' "$out"
    has "calla $*" "$want" "$err"
    is "calla $*: lines" 1 "$(wc -l <"$tmp/err" | tr -d ' ')"
}

# Prints the counts for tools/runtests.sh.
finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}
