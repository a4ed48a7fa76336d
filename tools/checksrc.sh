#!/bin/sh
# Bans: functions that have no bound or hide errors, allocation outside base/mem.c, tabs and long
# lines, and in any file the path of somebody's machine. "checksrc: REASON" in a line's comment lets
# that line pass.
files=$(git ls-files -co --exclude-standard 2>/dev/null || find . -type f)
sources=$(echo "$files" | grep -E '^(include|src|tests|examples)/.*\.(c|h|inc)$' | LC_ALL=C sort)
bad=0

# A pattern is matched against code without comments and strings.
awk '
function code(s,   a, b) {
    gsub(/\\./, "", s)
    gsub(/"[^"]*"/, "\"\"", s)
    if (inside) {
        b = index(s, "*/")
        if (!b) return ""
        s = substr(s, b + 2)
        inside = 0
    }
    sub(/\/\/.*/, "", s)
    while ((a = index(s, "/*")) > 0) {
        b = index(substr(s, a + 2), "*/")
        if (!b) { inside = 1; return substr(s, 1, a - 1) }
        s = substr(s, 1, a - 1) " " substr(s, a + b + 3)
    }
    return s
}
function ban(what) { printf "%s:%d: %s\n", FILENAME, FNR, what; bad = 1 }
FNR == 1 { inside = 0 }
{
    if (index($0, "\t")) ban("a tab")
    if (length($0) > 100 && $0 !~ /[^ -~]/) ban("longer than 100 columns")
    c = code($0)
    if (index($0, "checksrc:")) next # a reason is given on the line
    if (match(c, /(^|[^a-zA-Z0-9_.>])(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok|alloca|system|popen|tmpnam|mktemp)[ ]*\(/))
        ban("banned: " substr(c, RSTART, RLENGTH) ")")
    if (FILENAME ~ /^src\// && FILENAME !~ /^src\/base\/mem\.c$/ &&
        match(c, /(^|[^a-zA-Z0-9_.>])(malloc|calloc|realloc|free|strdup|strndup|asprintf|posix_memalign|aligned_alloc)[ ]*\(/))
        ban("allocation outside base/mem.c: " substr(c, RSTART, RLENGTH) ")")
    # The kernel dialects are headers of compilers of their own and cannot include base/.
    if (FILENAME !~ /base\/attrs\.h$|kernels\/(dialect_[a-z]+|simt|prim_[a-z_]+)\.h$/ &&
        FILENAME ~ /^(src|include)\// && c ~ /__attribute__|__builtin_/ && FILENAME != "include/calla.h")
        ban("a compiler extension outside base/attrs.h")
    if (FILENAME ~ /^src\/(base|format|model|exec|text|engine)\// && match(c, /(^|[^a-zA-Z0-9_.>])(printf|puts|putchar|exit|abort|perror)[ ]*\(/))
        ban("the library never prints and never exits: " substr(c, RSTART, RLENGTH) ")")
}
END { exit bad }' $sources || bad=1

# Text files only; the pattern is spelled so that this file does not match itself.
paths='/(root|wor[k]|tm[p]/[a-z]+|home/[a-z]+|Users/[a-z]+)/'
text=$(echo "$files" | grep -vE '^(tests/(data|eval|golden|fuzz/corpus)|models)/|\.safetensors$')
# shellcheck disable=SC2086
if grep -nE "$paths" $text /dev/null | grep -vE '^LICENSE:'; then
    echo "a path of one machine in a committed file"
    bad=1
fi
exit $bad
