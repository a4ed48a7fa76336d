#!/bin/sh
# dist.sh OUT: the committed tree as OUT/calla-VERSION.tar.gz. The bytes depend on the commit alone.
set -eu
out=$1
version=$(sed -n 's/^.define CALLA_VERSION "\(.*\)"/\1/p' include/calla.h)
name=calla-$version
git rev-parse --verify -q HEAD >/dev/null 2>&1 || {
    echo "dist.sh: expected a git checkout, whose commit is packed, found none" >&2
    exit 1
}
mkdir -p "$out"
git archive --format=tar --prefix="$name/" -o "$out/$name.tar" HEAD
gzip -9nf "$out/$name.tar"
echo "$out/$name.tar.gz"
