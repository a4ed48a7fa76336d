#!/bin/sh
# Readiness for a supervisor, and the units for systemd and launchd.
. tests/cli/lib.sh
case $calla in /*) ;; *) calla=$PWD/$calla ;; esac

# ---- Notifications ----
# listen NAME: a socket of that name (@: an abstract one), calla serve with it, then SIGTERM; prints
# what came, a line a datagram.
cat >"$tmp/listen.py" <<'END'
import os, signal, socket, subprocess, sys
name = sys.argv[1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("\0" + name[1:] if name[0] == "@" else name)
s.settimeout(60)
p = subprocess.Popen([sys.argv[2], "serve", "--port", "0", "-m", sys.argv[3]], stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL, env={**os.environ, "NOTIFY_SOCKET": name})
try:
    while True:
        text = s.recv(4096).decode()
        print(text.replace("\n", " "), flush=True)
        if "READY=1" in text:
            p.send_signal(signal.SIGTERM)
        if "STOPPING=1" in text or "cannot" in text or "config.json" in text and "opening" not in text:
            break
finally:
    print("rc", p.wait(60))
END
if command -v python3 >/dev/null 2>&1; then
    for name in "$tmp/notify" "@calla-test-$$"; do
        case $name in @*) [ "$(uname -s)" = Linux ] || continue ;; esac
        out=$(python3 "$tmp/listen.py" "$name" "$calla" models/nano)
        has "$name" 'STATUS=opening models/nano' "$out"
        has "$name" 'READY=1 STATUS=answering at http://127.0.0.1:' "$out"
        has "$name" 'STOPPING=1' "$out"
        has "$name" 'rc 0' "$out"
    done
    out=$(python3 "$tmp/listen.py" "$tmp/fails" "$calla" "$tmp")
    has fails 'config.json' "$out"; has fails 'rc 1' "$out"
    case $out in *READY*) fail fails "$out" ;; *) pass ;; esac
    # A socket that is not there, or no name of one: no obstacle.
    for name in "$tmp/none" relative "$(printf '%0200d' 0)" /; do
        NOTIFY_SOCKET=$name run serve --port 0 -m "$tmp"; is "NOTIFY_SOCKET=$name" 1 $rc
    done
fi

# ---- Units ----
for unit in calla.service calla-user.service; do
    sed "s|@bindir@|$(dirname "$calla")|" "packaging/systemd/$unit.in" >"$tmp/$unit"
    has "$unit" "ExecStart=$calla serve" "$(cat "$tmp/$unit")"
    if command -v systemd-analyze >/dev/null 2>&1; then
        a=$(systemd-analyze verify --man=no "$tmp/$unit" 2>&1 | grep -F "$unit")
        is "systemd-analyze verify $unit" '' "$a"
    fi
done
sed "s|@bindir@|/opt/x|" packaging/launchd/calla.plist.in >"$tmp/calla.plist"
if command -v python3 >/dev/null 2>&1; then
    a=$(python3 -c 'import plistlib, sys; d = plistlib.load(open(sys.argv[1], "rb")); print(d["ProgramArguments"][3])' "$tmp/calla.plist")
    is plist /opt/x/calla "$a"
fi
finish
