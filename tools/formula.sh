#!/bin/sh
# formula.sh DIST URL: DIST/calla.rb for the tarball in DIST, which is (to be) published at URL.
set -eu
dist=$1 url=$2
version=$(sed -n 's/^.define CALLA_VERSION "\(.*\)"/\1/p' include/calla.h)
tarball=$dist/calla-$version.tar.gz
case $url in
https://*/*) ;;
*) echo "formula.sh: expected URL=https://... of the published tarball, found \"$url\"" >&2; exit 2 ;;
esac
sum=$( (sha256sum "$tarball" 2>/dev/null || shasum -a 256 "$tarball") | cut -d' ' -f1)
homepage=${HOMEPAGE:-$(printf '%s' "$url" | cut -d/ -f1-3)}
sed -e "s|@url@|$url|; s|@sha256@|$sum|; s|@homepage@|$homepage|" packaging/homebrew/calla.rb.in >"$dist/calla.rb.tmp"
mv "$dist/calla.rb.tmp" "$dist/calla.rb"
if command -v ruby >/dev/null 2>&1; then ruby -c "$dist/calla.rb" >/dev/null; fi
echo "$dist/calla.rb"
