#!/bin/sh
# ab.sh A B PAIRS [ARG...] - two programs `calla`, alternating: PAIRS runs of `bench ARG...` each, then
# `bench --compare`. A and B may be the same: then nothing should differ. The files stay in $AB_DIR
# when that is set. Twelve pairs show 5 % on a machine whose runs differ by 2.5 %.
set -eu
[ $# -ge 3 ] || { echo "usage: bench/ab.sh A B PAIRS [ARG...]" >&2; exit 2; }
a=$1 b=$2 pairs=$3
shift 3
dir=${AB_DIR:-$(mktemp -d)}
[ -n "${AB_DIR:-}" ] || trap 'rm -rf "$dir"' EXIT
i=0 list_a= list_b=
while [ $i -lt "$pairs" ]; do
    # Who goes first turns, so that neither always follows the other.
    for side in $([ $((i % 2)) = 0 ] && echo a b || echo b a); do
        [ $side = a ] && program=$a || program=$b
        "$program" bench "$@" --json "$dir/$side$i.json" >/dev/null
    done
    list_a=$list_a,$dir/a$i.json list_b=$list_b,$dir/b$i.json
    i=$((i + 1))
done
"$b" bench --compare "${list_a#,}" "${list_b#,}"
