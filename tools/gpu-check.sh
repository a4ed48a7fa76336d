#!/bin/bash
# gpu-check.sh [PART...]: what is to be shown on a machine with an NVIDIA GPU.
#
#   verify     logits and layers of the demonstration model against the CPU's, as a prompt and step by step
#   check      every kernel and the driver against their references, four ways of running
#   break      a kernel with a bad address, and life after it
#   sanitize   compute-sanitizer: memcheck, racecheck, initcheck, synccheck on small cases
#   bench      ceilings of the device
#   time       kernels against the ceilings
#
# Without PART: all of them. Logs go to LOGS (default: gpu-logs). The last line is "N passed, N
# failed". BIN is the folder of the programs (default: build); LIMIT seconds for one program (120);
# SANITIZER names compute-sanitizer; TOOLS and ONLY are its tools and its groups of cases.
set -u
BIN=${BIN:-build}
LOGS=${LOGS:-gpu-logs}
LIMIT=${LIMIT:-120}
SANITIZER=${SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)}
TOOLS=${TOOLS:-memcheck racecheck initcheck synccheck}
ONLY=${ONLY:-driver,util =basic_embed,=basic_norm_bf16,=basic_top8,=basic_argmax
    =gemv_one,=gemv_many,=gemv_row,=gemv_router,=gemv_moe_one,=gemv_moe_many
    =attn_step,=attn_step_mma,=attn_scan =gdn_step,=gdn_step_split,=gdn_scan_8,=gdn_scan_direct
    =gemm_dense,=gemm_expand,=gemm_router,=moe_lists,=moe}
mkdir -p "$LOGS"
passed=0 failed=0

# step NAME COMMAND...: output to a log; a line with the result and the log's last line.
step() {
    local name=$1 log t0=$SECONDS rc
    log=$LOGS/$1.log
    shift
    timeout "$LIMIT" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    if [ $rc = 0 ]; then
        passed=$((passed + 1))
        printf 'ok   %-28s %4d s  %s\n' "$name" $((SECONDS - t0)) "$(tail -n 1 "$log")"
    else
        failed=$((failed + 1))
        printf 'FAIL %-28s %4d s  exit %d\n' "$name" $((SECONDS - t0)) $rc
        grep -aE 'FAIL|ERROR SUMMARY|Invalid|hazard|Uninit' "$log" | head -n 12
        tail -n 2 "$log"
    fi
}

check() {
    step check "$BIN/calla-gpu-check" --device cuda
    step check-graph "$BIN/calla-gpu-check" --device cuda --graph
    step check-early "$BIN/calla-gpu-check" --device cuda --early
    step check-graph-early "$BIN/calla-gpu-check" --device cuda --graph --early
}

# As a prompt a GPU rounds to bf16, and the demonstration model has many ties: hence the bar.
verify() {
    local ref=$LOGS/cpu.safetensors nano here i
    for i in 1 2 3 4 5 6 7 8; do
        echo "On Monday the baker of Lima sold $i loaves, 3 cakes and 1 pie. Sort these words: pear, apple, fig!"
    done >"$LOGS/text"
    here=$(dirname "$0")
    nano=$here/models/nano # in the bundle
    [ -d "$nano" ] || nano=$here/../models/nano
    step verify-write "$BIN/calla" verify --write --backend cpu -m "$nano" --text "$LOGS/text" --tokens 512 "$ref"
    step verify-prompt "$BIN/calla" verify --backend cuda -m "$nano" --min-top1 90 --layers \
        --json "$LOGS/verify-prompt.json" "$ref"
    step verify-step "$BIN/calla" verify --backend cuda -m "$nano" --min-top1 90 --layers --step \
        --json "$LOGS/verify-step.json" "$ref"
    grep -hE '^(perplexity|top-1|KL|.dlogit.|drift)' "$LOGS"/verify-*.log
}

sanitize() {
    local tool group n api
    if [ -z "$SANITIZER" ]; then
        echo "FAIL compute-sanitizer is not here"
        failed=$((failed + 1))
        return
    fi
    for tool in $TOOLS; do
        n=0 api=
        # Asking a module for a symbol that it may lack is not an error.
        [ "$tool" = memcheck ] && api='--report-api-errors no'
        for group in $ONLY; do
            n=$((n + 1))
            step "$tool-$n" "$SANITIZER" --tool "$tool" $api --error-exitcode 9 --print-limit 20 \
                "$BIN/calla-gpu-check" --device cuda --draws 1 --raw --only "$group"
        done
    done
}

bench() {
    step bench "$BIN/bench-gpu"
    cat "$LOGS/bench.log"
}

# The ceilings of `bench`, when it ran.
timing() {
    local gbs='' tflops=''
    if [ -f "$LOGS/bench.log" ]; then
        gbs=$(awk '/^read kernel/ && $(NF - 1) > m { m = $(NF - 1) } END { print m }' "$LOGS/bench.log")
        tflops=$(awk '/^bf16 products/ { for (i = 1; i < NF; i++) if ($(i + 1) == "TFLOP/s" && $i > m) m = $i }
                      END { print m }' "$LOGS/bench.log")
    fi
    step time "$BIN/calla-gpu-check" --device cuda --draws 1 --time ${gbs:+--gbs $gbs} ${tflops:+--tflops $tflops}
    cat "$LOGS/time.log"
}

for part in ${*:-verify check break sanitize bench time}; do
    case $part in
    verify | check | sanitize | bench) $part ;;
    break) step break "$BIN/bench-gpu" --break ;;
    time) timing ;;
    *)
        echo "gpu-check.sh: no part \"$part\"" >&2
        exit 2
        ;;
    esac
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
