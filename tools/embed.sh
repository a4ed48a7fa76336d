#!/bin/sh
# embed.sh NAME HEADER [FILE]: C source on stdout that defines NAME[] and NAME_bytes with the bytes
# of FILE; without FILE, of nothing.
set -e
name=$1 header=$2 file=${3:-/dev/null}
printf '/* Made by tools/embed.sh. */\n#include "%s"\n\n' "$header"
printf 'const unsigned char %s[] = {\n' "$name"
od -An -v -tu1 "$file" | awk '{ for (i = 1; i <= NF; i++) printf "%s,", $i; print "" } END { print "0" }'
printf '};\nconst size_t %s_bytes = sizeof %s - 1;\n' "$name" "$name"
