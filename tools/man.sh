#!/bin/sh
# man.sh CALLA: the manual page on stdout, docs/calla.1.in with the commands of the program put in.
set -e
sed '/^@COMMANDS@$/,$d' docs/calla.1.in
"$1" --mdoc
sed '1,/^@COMMANDS@$/d' docs/calla.1.in
