#!/bin/sh
# man.sh CALLA: calla(1) on stdout, docs/calla.1.in with the commands of the program put in.
# man.sh CALLA COMMAND: calla-COMMAND(1), from the command's option table.
set -e
if [ -n "${2:-}" ]; then
    echo '.\" Made by tools/man.sh from the option table of the command.'
    grep '^\.Dd ' docs/calla.1.in
    "$1" --mdoc "$2"
    exit
fi
sed '/^@COMMANDS@$/,$d' docs/calla.1.in
"$1" --mdoc
sed '1,/^@COMMANDS@$/d' docs/calla.1.in
