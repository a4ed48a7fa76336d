#!/bin/sh
# tidy.sh FILE: clang-tidy on one source, silent unless it finds something.
out=$(clang-tidy --quiet -p . "$1" 2>&1)
rc=$?
out=$(echo "$out" | grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter|^$')
[ -z "$out" ] && exit $rc
echo "$out"
[ $rc = 0 ] || exit 1
case $out in *warning:* | *error:*) exit 1 ;; esac
