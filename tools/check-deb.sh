#!/bin/sh
# check-deb.sh DIR: installs the packages of DIR in a bare Debian of this machine's release, runs the
# program there, and removes it again. Needs root and debootstrap; MIRROR is asked for packages.
set -eu
dir=$1
MIRROR=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep 'debian/*$' | head -n 1)}
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase "$suite" "$root" "$MIRROR" >"$root.log" 2>&1 || { tail -20 "$root.log"; exit 1; }
rm -f "$root.log"
cp "$dir"/calla_*.deb "$dir"/libcalla-dev_*.deb "$root/tmp/"
in_root() { chroot "$root" env LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
in_root sh -c 'apt-get -q -y install /tmp/calla_*.deb >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }'
in_root calla --version
answer=$(in_root calla run --no-think -p 'What is 47 + 38?' </dev/null)
echo "answer: $answer"
case $answer in *85*) ;; *) echo "the installed model did not say 85"; exit 1 ;; esac
in_root calla selftest --backend cpu | tail -n 1
in_root sh -c 'test -s /usr/share/man/man1/calla.1.gz && test -s /usr/share/doc/calla/copyright'
in_root sh -c 'apt-get -q -y --no-install-recommends install gcc libc6-dev pkg-config /tmp/libcalla-dev_*.deb >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }'
cat >"$root/tmp/user.c" <<'EOF'
#include <calla.h>
#include <stdio.h>
int main(void)
{
    return puts(calla_version()) < 0;
}
EOF
in_root sh -c 'cd /tmp && gcc user.c -o user $(pkg-config --cflags --libs calla) && ./user'
in_root sh -c 'apt-get -q -y purge calla libcalla-dev >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }'
left=$(find "$root/usr" "$root/etc" "$root/var/lib" -name '*calla*' ! -path '*/dpkg/*' ! -path '*/apt/*')
[ -z "$left" ] || { echo "purge left: $left"; exit 1; }
echo "1 passed, 0 failed"
