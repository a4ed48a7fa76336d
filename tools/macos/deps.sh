#!/bin/sh
# deps.sh DIR: the libraries that calla links, built for arm64 macOS: DIR/include, DIR/lib/*.a; of
# libedit and libcurl, which macOS has, the headers.
#
# Their sources come from Debian: apt downloads them and checks them against the archive's signed
# indexes; Debian's patches (security fixes among them) are applied. tools/macos/sources.txt has
# the files that were proven with their SHA-256; another version that apt vouches for is taken
# with a word about it. Nothing is installed, and apt's own lists are not touched.
#
# Environment: CC, AR   the cross compiler and its archiver
#              HOST     the machine as configure names it (aarch64-apple-darwin)
#              SOURCES  a folder that has the tarballs already, for a machine without apt; then
#                       the SHA-256 must be those of sources.txt
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
: "${CC:?}" "${AR:?}" "${HOST:=aarch64-apple-darwin}"
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
packages='yajl utf8proc libmicrohttpd libedit curl'
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { echo "macos: $*" >&2; }

# quiet LOG COMMAND...: what it printed only when it fails.
quiet() {
    q_log=$1
    shift
    "$@" >"$q_log" 2>&1 </dev/null && return
    tail -n 40 "$q_log" >&2
    return 1
}

# The archive's source lists, from those of its binary packages.
source_lists() {
    signed=
    [ -r $keyring ] && signed="[signed-by=$keyring] "
    apt-get indextargets --format "deb-src $signed\$(REPO_URI) \$(RELEASE) \$(COMPONENT)" \
        'ORIGIN: Debian' 'IDENTIFIER: Packages' | LC_ALL=C sort -u
}

fetch() {
    apt=$dir/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$dir/tarballs"
    source_lists >"$apt/sources.list"
    if [ ! -s "$apt/sources.list" ]; then
        say "apt has no lists of Debian's packages: 'apt-get update' as root, or SOURCES=folder"
        return 1
    fi
    set -- -q -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- \
        -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=
    quiet "$apt/update.log" apt-get "$@" update
    # shellcheck disable=SC2086
    (cd "$dir/tarballs" && quiet "$apt/source.log" apt-get "$@" source --download-only $packages)
}

# Every tarball against sources.txt.
check() {
    (cd "$dir/tarballs" && sha256sum -- *.orig.tar.* *.debian.tar.*) >"$dir/found.txt"
    while read -r sum name; do
        grep -q "^$sum  $name\$" "$here/sources.txt" && continue
        if [ -n "${SOURCES:-}" ]; then
            say "$name: expected a file of tools/macos/sources.txt, found SHA-256 $sum"
            return 1
        fi
        say "$name is not among those that were proven (tools/macos/sources.txt); apt vouches for it"
    done <"$dir/found.txt"
}

# unpack NAME: the source with Debian's patches in $dir/src/NAME.
unpack() {
    src=$dir/src/$1
    rm -rf "$src"
    mkdir -p "$src"
    set -- "$1" "$dir/tarballs/$1"_*.orig.tar.* "$dir/tarballs/$1"_*.debian.tar.*
    if [ $# != 3 ]; then
        say "$1: expected one source tarball and one of Debian, found $*"
        return 1
    fi
    tar -xf "$2" -C "$src" --strip-components=1
    tar -xf "$3" -C "$src" debian/patches
    sed 's/#.*//' "$src/debian/patches/series" | while read -r p _; do
        [ -z "$p" ] || quiet "$dir/patch.log" patch -d "$src" -p1 -f -i "$src/debian/patches/$p"
    done
}

# compile NAME FLAGS... FILE.c...: lib/libNAME.a
compile() {
    name=$1
    shift
    rm -rf "$src/o"
    mkdir -p "$src/o"
    (cd "$src/o" && quiet "$dir/$name.log" $CC -O2 -ffile-prefix-map="$src=$name" -w -c "$@")
    rm -f "$dir/lib/lib$name.a"
    $AR rcs "$dir/lib/lib$name.a" "$src"/o/*.o
}

build_yajl() {
    unpack yajl
    # CMake would fill in the version.
    version=$(sed -n 's/.*YAJL_\(MAJOR\|MINOR\|MICRO\) \([0-9]*\)).*/s|${YAJL_\1}|\2|;/p' "$src/CMakeLists.txt")
    mkdir -p "$dir/include/yajl"
    cp "$src"/src/api/*.h "$dir/include/yajl/"
    sed "$version" "$src/src/api/yajl_version.h.cmake" >"$dir/include/yajl/yajl_version.h"
    compile yajl -I"$dir/include" -I"$src/src" "$src"/src/*.c
}

build_utf8proc() {
    unpack utf8proc
    cp "$src/utf8proc.h" "$dir/include/"
    compile utf8proc -DUTF8PROC_STATIC "$src/utf8proc.c"
}

build_libmicrohttpd() {
    unpack libmicrohttpd
    (
        cd "$src"
        quiet "$dir/libmicrohttpd.log" ./configure --host="$HOST" --disable-shared \
            --enable-static --disable-https --disable-doc --disable-examples --disable-tools \
            --disable-curl --disable-dauth --disable-bauth --disable-postprocessor \
            --disable-nls --with-pic CC="$CC" AR="$AR" RANLIB="$AR s" CFLAGS="-O2 -ffile-prefix-map=$src=libmicrohttpd -w"
        quiet "$dir/libmicrohttpd.log" make -j"$jobs" -C src/microhttpd libmicrohttpd.la
    )
    cp "$src/src/include/microhttpd.h" "$dir/include/"
    cp "$src/src/microhttpd/.libs/libmicrohttpd.a" "$dir/lib/"
}

# macOS has these two itself: the program opens them when it needs them.
build_libedit() {
    unpack libedit
    cp "$src/src/histedit.h" "$dir/include/"
}

build_curl() {
    unpack curl
    mkdir -p "$dir/include/curl"
    cp "$src"/include/curl/*.h "$dir/include/curl/"
}

want=$(cksum <"$0"; echo "$CC $HOST")
[ "$(cat "$dir/done" 2>/dev/null)" = "$want" ] && exit 0
rm -rf "$dir/done" "$dir/include" "$dir/lib"
mkdir -p "$dir/include" "$dir/lib"
if [ -n "${SOURCES:-}" ] && [ "$SOURCES" != "$dir/tarballs" ]; then
    mkdir -p "$dir/tarballs"
    for p in $packages; do cp "$SOURCES/$p"_*.tar.* "$dir/tarballs/"; done
else
    fetch
fi
rm -f "$dir"/tarballs/*.asc # upstream's signatures
check
for p in $packages; do
    say "building $p"
    "build_$p"
done
echo "$want" >"$dir/done"
