#!/bin/sh
# fuzz.sh BUILD SECONDS NAME...: runs each fuzz target for SECONDS from its committed corpus.
# New inputs stay in BUILD/corpus; an input that fails goes to tests/fuzz/corpus, where every later
# `make test` runs it again.
build=$1 seconds=$2
shift 2
failed=0 passed=0
for name in "$@"; do
    known=tests/fuzz/corpus/fuzz_$name
    mkdir -p "$known" "$build/corpus/$name"
    echo "fuzz_$name: $seconds s"
    log=$build/fuzz_$name.log
    if "$build/fuzz_$name" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=20 -print_final_stats=1 \
        -artifact_prefix="$known/" "$build/corpus/$name" "$known" >"$log" 2>&1 </dev/null; then
        passed=$((passed + 1))
        sed -n 's/^stat::number_of_executed_units: */  runs: /p; s/^stat::peak_rss_mb: */  peak MB: /p' "$log"
    else
        failed=$((failed + 1))
        grep -vE '^#[0-9]+' "$log" | tail -n 40
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
