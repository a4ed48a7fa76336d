#!/bin/sh
# faults.sh - are faults in the code caught, and named? Copies the source tree (and what is built),
# plants one fault after the other in the copy, and expects `calla selftest` to fail with the
# kernel's name and `calla verify`, against a reference that the sound build wrote, to name the
# first layer and block. Not part of the tests: eight builds of one file each, some minutes.
#   BUILD      folder with a finished build, copied too (build)
#   PLANT      only the faults whose name contains this
set -u
build=${BUILD:-build}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
tree=$tmp/tree model=models/nano
passed=0 failed=0
export XDG_CACHE_HOME="$tmp/cache"

pass() { passed=$((passed + 1)); }
fail() {
    failed=$((failed + 1))
    echo "  NOT CAUGHT: $1"
}

make_calla() {
    make -C "$tree" --no-print-directory BUILD=build NVCC= WERROR=0 build/calla >"$tmp/make.log" 2>&1 ||
        { tail -n 20 "$tmp/make.log"; echo "the copy does not build"; exit 1; }
}

# begin NAME: a fault's turn; false when another is asked for.
begin() {
    case $1 in *"${PLANT:-}"*) ;; *) return 1 ;; esac
    echo "$1"
    touched=
}
# plant FILE SED: the same edit everywhere where it fits; it must fit.
plant() {
    cp "$1" "$tmp/sound" && touched="$touched $1"
    sed "$2" "$tmp/sound" >"$tree/$1"
    ! cmp -s "$tmp/sound" "$tree/$1" || { echo "  $1 has changed: \"$2\" fits nothing"; failed=$((failed + 1)); }
}
restore() {
    for f in $touched; do cp "$f" "$tree/$f"; done
    touched=
}
# selftest_says BACKEND PATTERN...: fails, and each PATTERN is in a line.
selftest_says() {
    backend=$1
    shift
    "$tree/build/calla" selftest -m $model --backend "$backend" >"$tmp/out" 2>&1 && fail 'selftest passes'
    for pattern; do
        if grep -q -- "$pattern" "$tmp/out"; then pass; else fail "selftest says nothing like '$pattern'"; fi
    done
    sed -n 's/^  FAILED /  selftest: /p' "$tmp/out" | cut -c 1-150 | head -n 6
}
# verify_names POINT ARG...
verify_names() {
    point=$1
    shift
    "$tree/build/calla" verify -m $model "$@" --json "$tmp/json" "$tmp/ref" >"$tmp/out" 2>&1
    rc=$?
    [ $rc = 1 ] && grep -q "\"fault\": \"$point\"" "$tmp/json" && pass || fail "verify $*: exit code $rc, not '$point'"
    sed -n 's/^drift: /  verify: /p; /^replac/s/^/  verify: /p; /^without/s/^/  verify: /p' "$tmp/out"
}

echo "copying and building the sound tree"
mkdir "$tree"
git ls-files -co --exclude-standard | tar -cf - -T - | tar -xf - -C "$tree"
[ ! -d "$build" ] || cp -a "$build" "$tree/build"
[ ! -f config.mk ] || cp config.mk "$tree/"
make_calla
calla=$tree/build/calla
sentence='On Monday the baker of Lima sold 17 loaves, 3 cakes and 1 pie, and then closed the shop.'
printf '%s\n%s\n%s\n' "$sentence" "$sentence" "$sentence" >"$tmp/text"
"$calla" verify --write --backend cpu --text "$tmp/text" --tokens 48 --trace 24 -m $model "$tmp/ref" || exit 1
for args in '--backend cpu' '--backend simt --min-top1 90' '--backend simt --step --min-top1 90'; do
    # shellcheck disable=SC2086
    "$calla" verify -m $model $args "$tmp/ref" >"$tmp/out" 2>&1 && pass || { fail "the sound build does not pass: $args"; cat "$tmp/out"; }
done
"$calla" selftest -m $model --backend cpu >"$tmp/out" 2>&1 && pass || fail 'selftest of the sound build'
variants=$(sed -n 's/^  ok *\([a-z0-9]*\) *matrix products.*/\1/p' "$tmp/out")

low='/vi_low(vi a)/,/^}/s/_mm\([0-9]*\)_and_si[0-9]*(a,/_mm\1_and_si\1(_mm\1_srli_epi32(a, 4),/'
high='/vi_high(vi a)/,/^}/s/vi_low(_mm\([0-9]*\)_srli_epi32(a, 4))/_mm\1_and_si\1(a, _mm\1_set1_epi8(15))/'
for v in $variants; do
    case $v in
    avx2 | avxvnni) codes=src/exec/cpu/int_256.inc scan=src/exec/cpu/vec_gdn.inc gone='s/v_set(decay)/v_set(1.0f + 0.0f * decay)/' ;;
    avx512) codes=src/exec/cpu/matmul_avx512vnni.c scan=src/exec/cpu/gdn_avx512.c gone='s/_mm512_set1_ps(decay)/_mm512_set1_ps(1.0f + 0.0f * decay)/' ;;
    *) codes= scan=src/exec/cpu/vec_gdn.inc gone='s/v_set(decay)/v_set(1.0f + 0.0f * decay)/' ;;
    esac
    if [ -n "$codes" ] && begin "cpu $v: the high nibble first"; then
        plant $codes "$low; $high"
        make_calla
        selftest_says cpu "FAILED  $v *matmul_i16 is wrong" "demonstration model's logits"
        verify_names 'layer 0 gdn' --backend cpu --variant $v
        restore
    fi
    if begin "cpu $v: the delta rule without decay"; then
        plant $scan "$gone"
        make_calla
        selftest_says cpu "FAILED  $v *gdn_scan is wrong"
        verify_names 'layer 0 gdn' --backend cpu --variant $v
        restore
    fi
done

# What every kernel and its reference get from the executor: no kernel is wrong.
if begin 'cpu, all variants: no decay in the fifth delta rule'; then
    plant src/exec/cpu/gdn.c 's/= expf(-rate \* softplus/= expf((c->i_gdn == 4 ? 0.0f : -rate) * softplus/'
    make_calla
    selftest_says cpu "demonstration model's logits"
    verify_names 'layer 5 gdn' --backend cpu
    restore
fi

if begin 'gpu decode: the high nibble first'; then
    plant src/kernels/prim_q4dot_simt.h 's/>> 4 \* i) & 15u/>> 4 * (i ^ 1u)) \& 15u/g'
    make_calla
    selftest_says simt 'FAILED  gemv' 'decode  max |dlogit|'
    verify_names 'layer 0 gdn' --backend simt --step
    restore
fi
if begin 'gpu prefill: the high nibble first'; then
    plant src/kernels/prim_mm_simt.h 's/mm_weight(w, s, b) | mm_weight(w >> 4, s, b) << 16/mm_weight(w >> 4, s, b) | mm_weight(w, s, b) << 16/'
    plant src/kernels/prim_gmm_simt.h 's/(4 \* (k & 7u))/(4 * ((k ^ 1u) \& 7u))/'
    make_calla
    selftest_says simt 'FAILED  .*mm' 'prefill max |dlogit|'
    verify_names 'layer 0 gdn' --backend simt
    restore
fi
if begin 'gpu: the delta rule without decay'; then
    plant src/kernels/gdn.h '/^KFN float gdn_alpha/,/^}/s/kx_exp(-rate/kx_exp(0.0f * rate/'
    make_calla
    selftest_says simt 'FAILED  gdn' 'decode  max |dlogit|'
    verify_names 'layer 0 gdn' --backend simt
    verify_names 'layer 0 gdn' --backend simt --step
    restore
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
