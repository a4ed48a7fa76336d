#!/bin/sh
# dist.sh OUT: the committed tree as OUT/calla-VERSION.tar.gz. The bytes depend on the commit alone.
set -eu
out=$1
version=$(sed -n 's/^.define CALLA_VERSION "\(.*\)"/\1/p' include/calla.h)
name=calla-$version
mkdir -p "$out"
git archive --format=tar --prefix="$name/" HEAD | gzip -9n >"$out/$name.tar.gz.tmp"
mv "$out/$name.tar.gz.tmp" "$out/$name.tar.gz"
echo "$out/$name.tar.gz"
