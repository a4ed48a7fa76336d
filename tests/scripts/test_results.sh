#!/bin/sh
# The tables and plots of docs/RESULTS.md are those of bench/results; a changed one is noticed.
set -u
failed=0
calla=${BUILD:-build}/calla
command -v python3 >/dev/null || { echo '0 passed, 0 failed'; exit 0; }
python3 tools/results.py --check --calla "$calla" || { echo 'run make results'; failed=$((failed + 1)); }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
sed 's/| calla | [0-9]/| calla | 7/' docs/RESULTS.md >"$tmp/a.md"
python3 tools/results.py --check "$tmp/a.md" >/dev/null && { echo 'a changed table passes'; failed=$((failed + 1)); }
python3 tools/results.py "$tmp/a.md" >/dev/null
cmp -s docs/RESULTS.md "$tmp/a.md" || { echo 'the tables do not come back'; failed=$((failed + 1)); }
"$calla" inspect --predict --json >"$tmp/predict.json"
cmp -s "$tmp/predict.json" bench/results/predict.json || { echo 'other predictions: run make results'; failed=$((failed + 1)); }
python3 -c 'import sys, xml.etree.ElementTree as e; [e.parse(f) for f in sys.argv[1:]]' docs/plots/*.svg ||
    { echo 'a plot is no XML'; failed=$((failed + 1)); }
echo "$((5 - failed)) passed, $failed failed"
[ $failed = 0 ]
