#!/bin/sh
# The libraries and tools that calla needs from the system.
#
#   deps.sh --missing build|test|ci   prints what is missing, one line; nothing when all is there
#   deps.sh build|test|ci             installs what is missing with apt or Homebrew, or names it
#
# build: what a program needs; test: and cmocka; ci: and the tools of .ci/run.
# Environment: CC, CXX, CPPFLAGS, LDFLAGS as the build uses them.
set -u
CC=${CC:-cc}

# compiles HEADER LIBS: can a program include this header and link these libraries?
compiles() {
    for h in stdarg.h stddef.h stdint.h stdio.h setjmp.h "$1"; do
        echo "#include <$h>"
    done | { cat; echo 'int main(void) { return 0; }'; } |
        $CC ${CPPFLAGS:-} -x c - -o /dev/null ${LDFLAGS:-} "$2" 2>/dev/null
}

# The C++ compiler that belongs to CC, as mk/gpu.mk chooses it.
compiles_cxx() {
    case $CC in
    *clang*) cxx=$(echo "$CC" | sed 's/clang/clang++/') ;;
    *gcc*) cxx=$(echo "$CC" | sed 's/gcc/g++/') ;;
    *) cxx=c++ ;;
    esac
    echo '#include <math.h>
int main() { return 0; }' | ${CXX:-$cxx} -std=c++17 -x c++ -fsyntax-only - 2>/dev/null
}

has() { command -v "$1" >/dev/null 2>&1; }
has_ld64() { has ld64.lld || has ld64.lld-14 || ls /usr/lib/llvm-*/bin/ld64.lld >/dev/null; }
has_python() { python3 -c "import $1" >/dev/null 2>&1; }

# check NAME APT BREW COMMAND...: notes NAME and its packages when COMMAND fails. BREW -: none.
missing= apt= brew=
check() {
    c_name=$1 c_apt=$2 c_brew=$3
    shift 3
    "$@" 2>/dev/null && return
    missing="$missing $c_name"
    apt="$apt $c_apt"
    [ "$c_brew" = - ] || brew="$brew $c_brew"
}

find_missing() {
    brew_prefix=
    if has brew; then
        brew_prefix=$(brew --prefix)
        CPPFLAGS="${CPPFLAGS:-} -I$brew_prefix/include"
        LDFLAGS="${LDFLAGS:-} -L$brew_prefix/lib"
    fi
    check yajl libyajl-dev yajl compiles yajl/yajl_parse.h -lyajl
    check utf8proc libutf8proc-dev utf8proc compiles utf8proc.h -lutf8proc
    check libmicrohttpd libmicrohttpd-dev libmicrohttpd compiles microhttpd.h -lmicrohttpd
    # Headers only: the library is opened when something is downloaded.
    check libcurl libcurl4-openssl-dev curl compiles curl/curl.h -lc
    check libedit libedit-dev libedit compiles histedit.h -ledit
    check c++ g++ - compiles_cxx
    [ "$1" = build ] && return
    check cmocka libcmocka-dev cmocka compiles cmocka.h -lcmocka
    check python3 python3 python3 has python3
    [ "$1" = test ] && return
    check pkg-config pkg-config pkgconf has pkg-config
    check clang clang llvm has clang
    check clang-format clang-format clang-format has clang-format
    check clang-tidy clang-tidy llvm has clang-tidy
    check python3-venv "python3 python3-venv" python3 python3 -c 'import venv, ensurepip'
    check ld64.lld lld lld has_ld64
    check patch patch - has patch
    check xz xz-utils xz has xz
    check man-db man-db man-db has man
    check jinja2 python3-jinja2 - has_python jinja2
    check aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" - \
        has aarch64-linux-gnu-gcc
    check aarch64-linux-gnu-g++ g++-aarch64-linux-gnu - has aarch64-linux-gnu-g++
    check qemu-aarch64 qemu-user qemu has qemu-aarch64
}

# as_root COMMAND...: root runs it, others through sudo.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif has sudo; then
        sudo "$@"
    else
        return 1
    fi
}

# quiet COMMAND...: shows what it printed only when it fails.
quiet() {
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null
    rc=$?
    [ $rc = 0 ] || cat "$log"
    rm -f "$log"
    return $rc
}

apt_install() {
    install='env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends'
    if ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1; then
        as_root $install "$@" >/dev/null 2>&1 </dev/null && return
    fi
    # There were no package lists, or they are old.
    quiet as_root apt-get -q update && quiet as_root $install "$@"
}

mode=install
if [ "${1:-}" = --missing ]; then
    mode=missing
    shift
fi
case ${1:-} in
build | test | ci) group=$1 ;;
*)
    echo "usage: deps.sh [--missing] build|test|ci" >&2
    exit 2
    ;;
esac

if ! has "${CC%% *}"; then
    [ $mode = missing ] && echo "a C compiler ($CC)" && exit 0
    echo "calla needs a C compiler; there is no '$CC' (set CC=... to name another)." >&2
    exit 1
fi
find_missing "$group"
missing=${missing# }
if [ $mode = missing ]; then
    [ -z "$missing" ] || echo "$missing"
    exit 0
fi
[ -z "$missing" ] && exit 0

if has apt-get && [ "$(id -u)" != 0 ] && ! has sudo; then
    echo "calla: packages are missing, and only root can install them; there is no sudo here." >&2
elif has apt-get; then
    echo "calla: installing$apt (apt)" >&2
    apt_install $apt >&2 || echo "calla: apt could not install them." >&2
elif has brew; then
    echo "calla: installing$brew (Homebrew)" >&2
    brew install $brew >&2 || echo "calla: Homebrew could not install them." >&2
fi
missing= apt= brew=
find_missing "$group"
[ -z "$missing" ] && exit 0
echo "calla still needs:$missing." >&2
if has apt-get; then
    echo "As root: apt-get install$apt" >&2
else
    echo "Install them (with their headers) by your system's package manager, then try again." >&2
fi
exit 1
