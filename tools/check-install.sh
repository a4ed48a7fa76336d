#!/bin/sh
# Installs into a folder of its own, runs the installed program, builds a program against the
# installed library by its pkg-config file, uninstalls, and looks for what stayed.
set -eu
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
prefix=$stage/opt
BUILD=${BUILD:-build}
make -s install PREFIX="$prefix" BUILD="$BUILD"
cd "$stage"
"$prefix/bin/calla" --version
answer=$("$prefix/bin/calla" run --no-think -p 'What is 47 + 38?' </dev/null 2>log) || { cat log; exit 1; }
echo "answer: $answer"
# The session beside the model: one turn of it.
"$prefix/bin/calla" bench --agent --turns 1 >log 2>&1 || { cat log; exit 1; }
case $answer in *85*) ;; *) echo "the installed model did not say 85"; exit 1 ;; esac
cat >user.c <<'EOF'
#include <calla.h>
#include <stdio.h>
int main(void)
{
    return puts(calla_version()) < 0;
}
EOF
# shellcheck disable=SC2046
${CC:-cc} user.c -o user $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs calla)
./user
for page in $(ls "$prefix/share/man/man1"); do
    if command -v man >/dev/null; then man --warnings -l "$prefix/share/man/man1/$page" >man.txt 2>man.log; fi
    if [ -s man.log ]; then cat man.log; exit 1; fi
done
for c in $("$prefix/bin/calla" --commands); do
    [ -s "$prefix/share/man/man1/calla-$c.1" ] || { echo "no manual page for calla $c"; exit 1; }
done
for unit in system user; do
    grep -q "^ExecStart=$prefix/bin/calla serve$" "$prefix/lib/systemd/$unit/calla.service"
done
bash -n "$prefix/share/bash-completion/completions/calla"
cd - >/dev/null
# With DESTDIR the files name PREFIX, not the staging folder.
make -s install PREFIX=/usr DESTDIR="$stage/pkg" BUILD="$BUILD"
grep -q '^prefix=/usr$' "$stage/pkg/usr/lib/pkgconfig/calla.pc"
# Spaces in PREFIX and DESTDIR.
make -s install PREFIX='/my opt' DESTDIR="$stage/a b" BUILD="$BUILD"
"$stage/a b/my opt/bin/calla" run -q --no-think -p 'Hello!' --max-tokens 1 </dev/null
flags=$(PKG_CONFIG_PATH="$stage/a b/my opt/lib/pkgconfig" pkg-config --cflags --libs calla)
for want in '-I/my\ opt/include' '-L/my\ opt/lib'; do
    case $flags in *"$want"*) ;; *) echo "pkg-config: expected $want in $flags"; exit 1 ;; esac
done
make -s uninstall PREFIX="$prefix" BUILD="$BUILD"
left=$(find "$prefix" -type f)
[ -z "$left" ] || { echo "uninstall left: $left"; exit 1; }
