# check.sh - for tests/scripts/test_msl.sh: a text of the Metal kernels before a compiler and before
# the lint, at a language level and a rung of its matrix tiles (- : a family without tiles).
#
#   msl_find_clang                        sets CLANGXX; fails when there is none
#   msl_compile TEXT LEVEL RUNG           messages on stdout; the compiler's status
#   msl_lint TEXT LEVEL RUNG [--kernels]  likewise

BUILD=${BUILD:-build}

msl_find_clang() {
    [ -n "${CLANGXX:-}" ] && return 0
    for c in clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14; do
        command -v $c >/dev/null 2>&1 && CLANGXX=$c && return 0
    done
    return 1
}

# The macros that the driver and Apple's compiler define.
msl_macros() { # LEVEL RUNG
    printf '%s' "-D__METAL_VERSION__=$1"
    [ "$2" = - ] || printf ' %s' "-DCALLA_RUNG=$2"
    [ "$1" -lt 400 ] || printf ' %s' -D__HAVE_TENSOR__
}

# Unused functions: a text has all helpers of its headers. Attributes and pragmas are the lint's.
msl_compile() {
    [ "$2" -lt 400 ] && std=c++14 || std=c++17
    $CLANGXX -x c++ -std=$std -pedantic-errors -fsyntax-only -nostdinc -Itests/msl -DKX_SHIM \
        $(msl_macros "$2" "$3") -Wall -Wextra -Werror -Wdouble-promotion \
        -Wimplicit-float-conversion -Wno-unknown-attributes -Wno-ignored-attributes \
        -Wno-unknown-pragmas -Wno-unused-parameter -Wno-unused-function "$1" 2>&1
}

msl_lint() {
    empty=$BUILD/msl/empty
    if [ ! -d "$empty/MetalPerformancePrimitives" ]; then
        mkdir -p "$empty/MetalPerformancePrimitives"
        : >"$empty/metal_stdlib" >"$empty/metal_tensor"
        : >"$empty/MetalPerformancePrimitives/MetalPerformancePrimitives.h"
    fi
    ${CC:-cc} -E -undef -nostdinc -x c "-I$empty" $(msl_macros "$2" "$3") "$1" \
        >"$msl_tmp/expanded" 2>&1 || { cat "$msl_tmp/expanded"; return 1; }
    "$BUILD/msl-lint" "$1" "$msl_tmp/expanded" ${4:+"$4"}
}
