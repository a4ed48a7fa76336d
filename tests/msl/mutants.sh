#!/bin/sh
# mutants.sh BUILD COMPILE LINK OBJECTS...: errors planted in the text of the matrix tiles, one at a
# time; each must make calla-gpu-check fail. COMPILE: the C++ compiler with its flags; OBJECTS: those
# of calla-gpu-check, BUILD/msl/gemm_RUNG.o among them. The last line is "N passed, N failed".
set -u
build=$1 compile=$2 link=$3
shift 3
work=$build/mutants
mkdir -p "$work/metal"
passed=0 failed=0

# mutant RUNG CASES EXPRESSION: what sed does to the text.
mutant() {
    rung=$1 cases=$2 expression=$3
    sed "$expression" "$build/metal/gemm.metal" >"$work/metal/gemm.metal"
    if cmp -s "$build/metal/gemm.metal" "$work/metal/gemm.metal"; then
        echo "FAIL rung $rung, $expression: nothing to change"
        failed=$((failed + 1))
        return
    fi
    version=310 tensor=
    if [ "$rung" -ge 2 ]; then version=400 tensor=-D__HAVE_TENSOR__; fi
    if ! $compile -w -iquote "$work" -DKX_FAMILY=3 -DMSL_NAME=gemm -DMSL_RUNG="$rung" \
        -DCALLA_RUNG="$rung" -D__METAL_VERSION__=$version $tensor \
        -DMSL_TEXT='"metal/gemm.metal"' -DMSL_BYTES='"metal/gemm.bytes"' \
        -c tests/msl/run.cpp -o "$work/gemm.o"; then
        echo "FAIL rung $rung, $expression: does not compile"
        failed=$((failed + 1))
        return
    fi
    objects=
    for o in $all; do
        [ "$o" = "$build/msl/gemm_$rung.o" ] && o=$work/gemm.o
        objects="$objects $o"
    done
    $link -o "$work/check" $objects $libs || exit 1
    if "$work/check" --device msl --rung "$rung" --draws 6 --only "$cases" >"$work/log" 2>&1; then
        echo "FAIL rung $rung, $expression: not found"
        failed=$((failed + 1))
    else
        echo "ok   rung $rung, $expression"
        passed=$((passed + 1))
    fi
}

all= libs=
for o in "$@"; do
    case $o in
    -*) libs="$libs $o" ;;
    *) all="$all $o" ;;
    esac
done

dense=gemm_dense
mutant 0 $dense 's/const uint w = simd_lane_u32(from, 2 \* r + j \/ 4)/const uint w = simd_lane_u32(from, r + j \/ 4)/'
mutant 1 $dense 's/(8 \* i + row) \* a_pitch + k + col)/(8 * i + col) * a_pitch + k + row)/'
mutant 1 $dense 's/(8 \* i + col) \* b_pitch + k + row, b_pitch/(8 * i + row) * b_pitch + k + col, 1/'
mutant 1 $dense 's/#define MM_ROW(e) (8 \* ((e) \/ 8)/#define MM_ROW(e) (8 * ((e) \/ 2 \& 1)/'
mutant 1 $dense 's/for (uint i = 0; i < 16; i++) acc.v\[i\] = 0.0f/for (uint i = 1; i < 16; i++) acc.v[i] = 0.0f/'
mutant 2 $dense 's/mm_16x32x16<true>/mm_16x32x16<false>/'
mutant 2 $dense 's/B + 16 \* b_pitch, b_pitch, lane/B + 8 * b_pitch, b_pitch, lane/'
mutant 2 $dense 's/mode::multiply_accumulate/mode::multiply/'
mutant 2 $dense 's/return 4 \* ((lane \/ 4 & 2u) | (lane & 1u))/return 4 * ((lane \/ 4 \& 1u) | (lane \& 2u))/'
mutant 2 $dense 's/for (uint i = 0; i < 16; i++) acc.v\[i\] = 0.0f/for (uint i = 1; i < 16; i++) acc.v[i] = 0.0f/'
mutant 3 gemm_dense_codes 's/scale = kx_bf16_load(s & 0xffffu), bias = kx_bf16_load(s >> 16);/scale = kx_bf16_load(s >> 16), bias = kx_bf16_load(s \& 0xffffu);/'
mutant 3 gemm_dense_codes 's/kmin(8 \* i + lay16_row(lane), t.n_x - 1)/kmin(4 * i + lay16_row(lane), t.n_x - 1)/'
mutant 3 gemm_dense_codes 's/for (uint i = 0; i < BM; i++) sum\[i\] = 0.0f/for (uint i = 1; i < BM; i++) sum[i] = 0.0f/'
mutant 3 gemm_dense_codes 's/16 \* (c \/ 4) + lay16_col(lane) + (c & 3u)/16 * (c \/ 4) + lay16_col(lane) + (~c \& 3u)/'
mutant 3 gemm_dense_codes 's/(device uchar \*)(w + (ulong)w0 \* (t.cols \/ 8))/(device uchar *)(w + (ulong)t.w0 * (t.cols \/ 8))/'
mutant 3 moe_codes 's/tw.slice((int)(64 \* g + 64), 0)/tw.slice((int)(64 * g), 0)/'
mutant 3 moe_codes 's/(ushort)kx_bf16_store(kx_silu(v.z) \* v.w)/(ushort)kx_bf16_store(kx_silu(v.w) * v.z)/'
rm -f "$work/check" "$work/gemm.o"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
