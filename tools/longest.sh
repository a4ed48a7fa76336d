#!/bin/sh
# longest.sh [N]: the N longest functions of src/ (10), by lines from the name to the brace.
n=${1:-10}
awk '
# House style: a body begins with "{" and ends with "}" in the first column.
/^[a-zA-Z_].*[a-zA-Z0-9_]\(/ && !/;$/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); start = FNR }
/^\}/ && start { printf "%5d  %s:%d %s\n", FNR - start + 1, FILENAME, start, name; start = 0 }
' $(find src -name '*.[ch]') | sort -rn | head -n "$n"
