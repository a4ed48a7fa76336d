#!/bin/sh
# deb.sh OUT: builds calla with PREFIX=/usr and makes OUT/calla_VERSION_ARCH.deb and
# OUT/libcalla-dev_VERSION_ARCH.deb. Needs dpkg-dev; everything else is what a build needs.
# MAINTAINER='Name <address>' is put into the packages.
set -eu
umask 022
MAINTAINER=${MAINTAINER:-calla maintainers <calla@localhost>}
out=$1
here=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^.define CALLA_VERSION "\(.*\)"/\1/p' include/calla.h)
arch=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
mkdir -p "$out"
stage=$out/stage
rm -rf "$stage"
make -s install PREFIX=/usr DESTDIR="$stage/calla" LIBDIR="/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" \
    BUILD="$out/build"

# What only a program that is built against the library needs.
dev=$stage/libcalla-dev
mkdir -p "$dev/usr/lib"
mv "$stage/calla/usr/include" "$dev/usr/"
mv "$stage"/calla/usr/lib/*-* "$dev/usr/lib/"
rmdir "$stage/calla/usr/lib" 2>/dev/null || true

# Libraries, from what the program is linked with.
mkdir -p "$out/debian"
: >"$out/debian/control"
depends=$(cd "$out" && dpkg-shlibdeps -O --ignore-missing-info "stage/calla/usr/bin/calla" 2>/dev/null |
    sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || { echo "deb.sh: cannot tell what the program depends on" >&2; exit 1; }

# package NAME DEPENDS SECTION RECOMMENDS: documents, control file, checksums, the archive.
package() {
    root=$stage/$1
    doc=$root/usr/share/doc/$1
    mkdir -p "$doc" "$root/DEBIAN"
    cp "$here/packaging/deb/copyright" "$doc/copyright"
    gzip -9nc "$here/CHANGELOG.md" >"$doc/NEWS.gz"
    printf '%s (%s) unstable; urgency=medium\n\n  * What changed is in NEWS.gz.\n\n -- %s  %s\n' "$1" "$version" \
        "$MAINTAINER" "$(LC_ALL=C date -Ru -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.gz"
    find "$root/usr/share/man" -name '*.[0-9]' -exec gzip -9nf {} + 2>/dev/null || true
    size=$(du -k -s --apparent-size "$root/usr" | cut -f1)
    sed -e "s|@maintainer@|$MAINTAINER|; s|@version@|$version|; s|@arch@|$arch|; s|@depends@|$2|; s|@size@|$size|" \
        "$here/packaging/deb/$1.control" >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/${1}_${version}_$arch.deb" >/dev/null
    echo "$out/${1}_${version}_$arch.deb"
}

[ ! -f "$stage/calla/usr/bin/calla" ] || strip --strip-unneeded "$stage/calla/usr/bin/calla"
strip --strip-debug "$dev"/usr/lib/*/libcalla.a
package calla "$depends"
package libcalla-dev "libyajl-dev, libutf8proc-dev, libmicrohttpd-dev"
rm -rf "$stage" "$out/debian"
