#!/bin/sh
# `calla doctor`: what it finds, and what it says to do about it.
. tests/cli/lib.sh
pid=
trap '[ -z "$pid" ] || kill -9 $pid 2>/dev/null; rm -rf "$tmp"' EXIT
export CALLA_PORT=0

# ---- All well, but for what this machine may lack ----
run doctor
has machine 'machine: ' "$out"; has memory 'of which calla may plan with' "$out"; has GPU 'GPU' "$out"
has model 'its files are complete and what they should be' "$out"
has table 'context  KV cache     state   buffers   weights       sum  memory' "$out"
has table '32768 ' "$out"
has 'the real model' 'model: Qwen3.6-35B-A3B, 4-bit, as this machine would run it' "$out"
has port 'port 0 of 127.0.0.1 is free' "$out"
has models "$tmp/data/calla/models" "$out"
has config 'configuration: none' "$out"
is stderr '' "$err"
case $out in *PROBLEM*) want=1 ;; *) want=0 ;; esac
is 'exit code' $want $rc

# problem WHAT NEXT: the last run found this, and says what to do.
problem() {
    is "$1: exit code" 1 $rc
    has "$1" "$1" "$(grep -F PROBLEM "$tmp/out")"
    has "$1" "$2" "$(grep -F -e '->' "$tmp/out")"
}

# ---- Problems ----
mkdir "$tmp/cut"; cp models/nano/*.json "$tmp/cut"; head -c 100000 models/nano/model.safetensors >"$tmp/cut/model.safetensors"
run doctor -m "$tmp/cut"; problem model.safetensors 'calla pull --check'
run doctor -m nowhere; problem "no model 'nowhere'" 'calla models'
: >"$tmp/plain"
CALLA_MODELS=$tmp/plain/models run doctor; problem "models: $tmp/plain/models cannot be written" 'chown'
mkdir -p "$tmp/config/calla"; echo 'prot = 1' >"$tmp/config/calla/config"
run doctor; problem 'configuration' 'mend that line'; has line "$tmp/config/calla/config:1: unknown key 'prot'" "$err"
printf '[serve]\nmodel = %s\n' "$tmp/cut" >"$tmp/config/calla/config"
run doctor; problem model.safetensors 'calla pull'; has 'configuration' "configuration: $tmp/config/calla/config" "$out"
rm "$tmp/config/calla/config"
echo key >"$tmp/keys"; chmod 644 "$tmp/keys"
CALLA_API_KEY_FILE=$tmp/keys run doctor; problem 'others may read the keys' "chmod 600 $tmp/keys"
chmod 600 "$tmp/keys"; CALLA_API_KEY_FILE=$tmp/keys run doctor; has keys 'readable by their owner only' "$out"
CALLA_API_KEY_FILE=$tmp/none run doctor; problem "$tmp/none: No such file" 'make the file of keys'
CALLA_HOST=256.0.0.1 run doctor; problem 'host 256.0.0.1' 'an address of this machine'

# ---- A port in use, by calla or by another ----
"$calla" serve --port 0 </dev/null >"$tmp/url" 2>"$tmp/log" &
pid=$!
tries=0
while [ ! -s "$tmp/url" ] && [ $tries -lt 600 ]; do sleep 0.05; tries=$((tries + 1)); done
port=$(sed 's/.*://; s,/.*,,' "$tmp/url")
CALLA_PORT=$port run doctor; has 'in use by calla' "a calla serve answers on port $port of 127.0.0.1 already" "$out"
kill $pid; wait $pid; pid=
if command -v python3 >/dev/null 2>&1; then
    python3 -c '
import socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1)
print(s.getsockname()[1], flush=True)
while True: s.accept()[0].close()' >"$tmp/port" &
    pid=$!
    tries=0
    while [ ! -s "$tmp/port" ] && [ $tries -lt 600 ]; do sleep 0.05; tries=$((tries + 1)); done
    port=$(cat "$tmp/port")
    CALLA_PORT=$port run doctor; problem "port $port of 127.0.0.1: Address already in use" "lsof -i :$port"
    kill -9 $pid; wait $pid 2>/dev/null; pid=
fi
finish
