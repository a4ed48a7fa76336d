#!/bin/sh
# planted.sh ROUNDS [ARG...] - does `calla bench --compare` see a build that is 5 % slower? Copies the
# source tree (and what is built), lets each step of the CPU executor in the copy wait for 5 % of
# the time it took, and runs `calla bench ARG...` of the sound build, the slow one and the sound
# one again, in turns. The two must be told apart; the sound build and itself must not.
#   BUILD      folder with a finished build, copied too (build)
#   QUIET      a command that keeps the rest of the machine still while its arguments run, if there
#              is one; it is called for PIECE rounds at a time (6)
#   SLOWER     part of the time (0.05)
set -eu
[ $# -ge 1 ] || { echo "usage: bench/planted.sh ROUNDS [ARG...]" >&2; exit 2; }

# planted.sh --piece DIR FROM TO ARG...: rounds FROM .. TO - 1
if [ "$1" = --piece ]; then
    dir=$2 i=$3 to=$4
    shift 4
    while [ "$i" -lt "$to" ]; do
        for side in $([ $((i % 2)) = 0 ] && echo a b c || echo c b a); do
            [ $side = b ] && program=$dir/slow || program=$dir/sound
            "$program" bench "$@" --json "$dir/$side$i.json" >/dev/null
        done
        i=$((i + 1))
    done
    exit
fi

rounds=$1 build=${BUILD:-build} piece=${PIECE:-6}
shift
[ $# -gt 0 ] || set -- -m models/nano --backend cpu --prefill 512 --decode 256 --steps 400 --reps 5
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
tree=$dir/tree
mkdir "$tree"
git ls-files -co --exclude-standard | tar -cf - -T - | tar -xf - -C "$tree"
[ ! -d "$build" ] || cp -a "$build" "$tree/build"
[ ! -f config.mk ] || cp config.mk "$tree/"
make_calla() { make -C "$tree" --no-print-directory BUILD=build NVCC= WERROR=0 build/calla >/dev/null; }
make_calla
cp "$tree/build/calla" "$dir/sound"
forward=src/exec/cpu/forward.c
sed -e 's/^    layers(ex);/    const double planted = time_now();\n    layers(ex);/' \
    -e "s/^    logits(ex);/    logits(ex);\n    for (const double now = time_now(); time_now() < now + ${SLOWER:-0.05} * (now - planted);) {}/" \
    $forward >"$tree/$forward"
[ "$(grep -c planted "$tree/$forward")" = 2 ] || { echo "$forward has changed: nothing planted"; exit 1; }
make_calla
cp "$tree/build/calla" "$dir/slow"

i=0 list_a= list_b= list_c=
while [ $i -lt "$rounds" ]; do
    to=$((i + piece < rounds ? i + piece : rounds))
    # shellcheck disable=SC2086
    ${QUIET:-} sh bench/planted.sh --piece "$dir" $i $to "$@"
    i=$to
done
for i in $(seq 0 $((rounds - 1))); do
    list_a=$list_a,$dir/a$i.json list_b=$list_b,$dir/b$i.json list_c=$list_c,$dir/c$i.json
done
failed=0
echo "the sound build against itself"
"$dir/sound" bench --compare "${list_a#,}" "${list_c#,}" || failed=1
echo "the slow build against the sound one"
"$dir/sound" bench --compare "${list_a#,}" "${list_b#,}" && failed=1
[ -z "${KEEP:-}" ] || cp "$dir"/*.json "$KEEP"
[ $failed = 0 ] && echo "told apart" || echo "FAILED"
exit $failed
