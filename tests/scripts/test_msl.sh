#!/bin/sh
# The Metal kernels on a machine without Metal: every text compiles with clang++ against a header of
# ours (address spaces, built-in functions by language level), and passes the lint; planted mistakes
# do not. Levels and rungs as docs/TESTING.md says. Skipped without clang++: what needs it.
set -u
. tests/msl/check.sh
msl_tmp=$(mktemp -d "${TMPDIR:-/tmp}/calla-msl.XXXXXX") || exit 1
trap 'rm -rf "$msl_tmp"' EXIT
passed=0 failed=0 skipped=0
have_clang=1
msl_find_clang || have_clang=0

bad() { # WHAT OUTPUT
    failed=$((failed + 1))
    echo "FAIL: $1"
    head -n 12 "$2"
}

# ---- Every text ----

levels() { # NAME: "LEVEL RUNG" lines
    case $1 in
    gemm | attn) set -- "310 0" "320 0" "400 0" "310 1" "320 1" "400 1" "400 2" "400 3" ;;
    *) set -- "310 -" "320 -" "400 -" ;;
    esac
    printf '%s\n' "$@"
}
: >"$msl_tmp/kernels"
for name in basic gemv gemm gdn attn; do
    text=$BUILD/metal/$name.metal
    levels $name >"$msl_tmp/levels"
    while read -r level rung; do
        what="$name, level $level, rung $rung"
        if msl_lint "$text" "$level" "$rung" >"$msl_tmp/out"; then
            passed=$((passed + 1))
        else
            bad "lint of $what" "$msl_tmp/out"
        fi
        if [ $have_clang = 0 ]; then
            skipped=$((skipped + 1))
        elif msl_compile "$text" "$level" "$rung" >"$msl_tmp/out"; then
            passed=$((passed + 1))
        else
            bad "compiling $what" "$msl_tmp/out"
        fi
    done <"$msl_tmp/levels"
    msl_lint "$text" 400 3 --kernels >>"$msl_tmp/kernels"
done

# The kernels of the texts are those of kernels.inc, with their threads and buffers.
sort "$msl_tmp/kernels" | awk '{ print $1, $2, $3 }' >"$msl_tmp/have"
sed -n 's/^K(\([a-z0-9_]*\), \([0-9]*\), \([0-9]*\))$/\1 \2 \3/p' src/kernels/kernels.inc |
    grep -v '_mma ' | sort >"$msl_tmp/want"
if cmp -s "$msl_tmp/have" "$msl_tmp/want"; then
    passed=$((passed + 1))
else
    diff "$msl_tmp/want" "$msl_tmp/have" >"$msl_tmp/out"
    bad 'kernels.inc and the texts differ' "$msl_tmp/out"
fi

# ---- Planted mistakes ----

# Each must be refused, with a message that has WANT. LEVEL NAME: where it is planted; "compile" or
# "lint" refuses it.
plant() { # compile|lint LEVEL WANT, the mistake on stdin
    cat >"$msl_tmp/mistake"
    cat "$BUILD/metal/basic.metal" "$msl_tmp/mistake" >"$msl_tmp/planted.metal"
    if [ "$1" = compile ] && [ $have_clang = 0 ]; then
        skipped=$((skipped + 1))
        return
    fi
    if "msl_$1" "$msl_tmp/planted.metal" "$2" - >"$msl_tmp/out"; then
        bad "the $1 at $2 did not see:" "$msl_tmp/mistake"
    elif grep -q -e "$3" "$msl_tmp/out"; then
        passed=$((passed + 1))
    else
        cat "$msl_tmp/mistake" >>"$msl_tmp/out"
        bad "the $1 at $2 says nothing of \"$3\":" "$msl_tmp/out"
    fi
}
# The same of a text that sed has changed; it must have changed something.
mutate() { # compile|lint NAME LEVEL RUNG WANT SCRIPT
    sed "$6" "$BUILD/metal/$2.metal" >"$msl_tmp/planted.metal"
    echo "$2: $6" >"$msl_tmp/mistake"
    if cmp -s "$BUILD/metal/$2.metal" "$msl_tmp/planted.metal"; then
        bad "this changes nothing:" "$msl_tmp/mistake"
    elif [ "$1" = compile ] && [ $have_clang = 0 ]; then
        skipped=$((skipped + 1))
    elif "msl_$1" "$msl_tmp/planted.metal" "$3" "$4" >"$msl_tmp/out"; then
        bad "the $1 did not see:" "$msl_tmp/mistake"
    elif grep -q -e "$5" "$msl_tmp/out"; then
        passed=$((passed + 1))
    else
        cat "$msl_tmp/mistake" >>"$msl_tmp/out"
        bad "the $1 says nothing of \"$5\":" "$msl_tmp/out"
    fi
}
# What is right stays right when it is planted: the mistakes below fail for their own sake.
right() { # compile|lint LEVEL
    cat "$BUILD/metal/basic.metal" - >"$msl_tmp/planted.metal"
    if [ "$1" = compile ] && [ $have_clang = 0 ]; then
        skipped=$((skipped + 1))
    elif "msl_$1" "$msl_tmp/planted.metal" "$2" - >"$msl_tmp/out"; then
        passed=$((passed + 1))
    else
        bad "the $1 at $2 refuses what is right" "$msl_tmp/out"
    fi
}
. tests/msl/mistakes.sh

echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]
