#!/bin/sh
# metal-flatten.sh FAMILY FILE: FILE (src/kernels/kernels.metal) with its own headers in their
# places, for the compiler of a Mac, which finds no files of ours.
#
# Each header is taken once. A condition on what is known here is decided: KX_FAMILY is FAMILY,
# __METAL_VERSION__ and __cplusplus are defined, __CUDACC__ is not. All others stay: those of
# CALLA_RUNG, of the value of __METAL_VERSION__, of KX_SHIM. Names of headers begin in src/.
set -eu
awk -v family="$1" -v file="$2" '
function fail(text) {
    print "metal-flatten.sh: " text >"/dev/stderr"
    failed = 1
    exit 1
}
# 1, 0, or -1 when the condition is for the compiler.
function value(c) {
    sub(/\/\*.*/, "", c)
    gsub(/defined *\( *__METAL_VERSION__ *\)/, "1", c)
    gsub(/defined *\( *__cplusplus *\)/, "1", c)
    gsub(/defined *\( *__CUDACC__ *\)/, "0", c)
    gsub(/KX_FAMILY *== *[0-9]+/, "<&>", c)
    while (match(c, /<KX_FAMILY *== *[0-9]+>/)) {
        number = substr(c, RSTART, RLENGTH)
        gsub(/[^0-9]/, "", number)
        c = substr(c, 1, RSTART - 1) (number == family ? "1" : "0") substr(c, RSTART + RLENGTH)
    }
    gsub(/[ \t]/, "", c)
    if (c !~ /^[01!&|()]+$/) return -1
    do {
        before = c
        gsub(/!0/, "1", c)
        gsub(/!1/, "0", c)
        gsub(/\(0\)/, "0", c)
        gsub(/\(1\)/, "1", c)
        if (!sub(/0&&[01]|1&&0/, "0", c) && !sub(/1&&1/, "1", c))
            if (!sub(/1\|\|[01]|0\|\|1/, "1", c)) sub(/0\|\|0/, "0", c)
    } while (c != before)
    if (c != "0" && c != "1") fail("cannot decide: " $0)
    return c + 0
}
# State of an open condition: how[d] is -1 when its directives are kept, else whether a branch was
# taken; on[d]: are lines of the present branch kept.
function flatten(path, depth,    line, base, name, kind, v) {
    if (path in seen) return
    seen[path] = 1
    base = d
    guard[path] = ""
    while ((got = (getline line < path)) > 0) {
        if (line !~ /^[ \t]*#/) {
            if (on[d]) print line
            continue
        }
        $0 = line
        kind = line
        sub(/^[ \t]*#[ \t]*/, "", kind)
        sub(/[^a-z].*/, "", kind)
        if (kind == "if" || kind == "ifdef" || kind == "ifndef") {
            name = line
            sub(/^[ \t]*#[ \t]*[a-z]+[ \t]*/, "", name)
            v = kind == "if" ? value(name) : -1
            if (kind == "ifndef" && name ~ /^CALLA_[A-Z0-9_]*_H$/) v = 2 # a guard: never needed
            d++
            how[d] = v
            on[d] = on[d - 1] && v != 0
            if (v == -1 && on[d]) print line
        } else if (kind == "elif" || kind == "else") {
            if (how[d] == -1) {
                if (on[d]) print line
                if (kind == "elif") {
                    name = line
                    sub(/^[ \t]*#[ \t]*elif[ \t]*/, "", name)
                    if (value(name) != -1) fail("a condition half known: " path ": " line)
                }
            } else {
                name = line
                sub(/^[ \t]*#[ \t]*elif[ \t]*/, "", name)
                v = kind == "else" ? 1 : value(name)
                if (v == -1) fail("a condition half known: " path ": " line)
                on[d] = on[d - 1] && !how[d] && v
                how[d] = how[d] || v
            }
        } else if (kind == "endif") {
            if (how[d] == -1 && on[d]) print line
            d--
        } else if (kind == "include" && line ~ /"/) {
            if (!on[d]) continue
            name = line
            sub(/^[^"]*"/, "", name)
            sub(/".*/, "", name)
            if (depth > 20) fail(path ": included too deep")
            flatten(src name, depth + 1)
        } else if (on[d]) {
            if (line ~ /^#define CALLA_[A-Z0-9_]*_H$/) continue
            print line
            while (line ~ /\\$/ && (getline line < path) > 0) print line
        }
    }
    if (got < 0) fail("cannot read " path)
    if (d != base) fail(path ": an #if without its end")
    close(path)
}
BEGIN {
    src = file
    sub(/kernels\/[^\/]*$/, "", src)
    d = 0
    on[0] = 1
    flatten(file, 0)
}
' </dev/null | cat -s
