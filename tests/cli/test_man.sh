#!/bin/sh
# docs/calla.1 says what the program's option tables say.
. tests/cli/lib.sh
sh tools/man.sh "$calla" >"$tmp/calla.1"
if cmp -s "$tmp/calla.1" docs/calla.1; then pass; else fail 'docs/calla.1 is not current' 'run make man'; fi
finish
