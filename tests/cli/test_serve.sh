#!/bin/sh
# `calla serve` with the demonstration model: where it listens, who may ask, streams, hang-ups,
# shutting down, logs, traces. What the APIs answer is tested elsewhere.
. tests/cli/lib.sh
pid=
trap '[ -z "$pid" ] || kill -9 $pid 2>/dev/null; rm -rf "$tmp"' EXIT
ask() { "$tools/ask" "$@"; }
hello='{"messages":[{"role":"user","content":"Hello!"}],"max_tokens":40}'
stream='{"messages":[{"role":"user","content":"Hello!"}],"max_tokens":40,"stream":true}'
# A text that the model repeats for a long time: nothing stops it but the limit.
long='{"prompt":"a a a a a a a a","max_tokens":20000,"stream":true,"logit_bias":{"0":-100}}'

# start ARG...: a server on a free port; sets pid, url.
start() {
    rm -f "$tmp/url"
    "$calla" serve --port 0 "$@" </dev/null >"$tmp/url" 2>"$tmp/log" &
    pid=$!
    tries=0
    while [ ! -s "$tmp/url" ] && kill -0 $pid 2>/dev/null && [ $tries -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    url=$(cat "$tmp/url")
}

# stop SIGNAL: sets rc.
stop() {
    kill -"$1" $pid
    wait $pid
    rc=$?
    pid=
    log=$(cat "$tmp/log")
}

# await TEXT NAME: waits for it in the log.
await() {
    tries=0
    while ! grep -qF "$1" "$tmp/log" && [ $tries -lt 400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    has "$2" "$1" "$(cat "$tmp/log")"
}

# ---- Usage ----
run serve --help; is 'serve --help' 0 $rc; has 'serve --help' '--api-key-file FILE' "$out"
refuses 2 "expected a size like 512M or 4G, found '4X'" serve --cache-ram 4X
refuses 2 'expected a whole number from 0 to 65535' serve --port 70000
refuses 2 "expected a whole number from 1 to 64, found '0'" serve --parallel 0
refuses 1 '--ctx is 2000000, expected at most' serve --ctx 2000000 --log-level error
for origin in https://x/path x https:// https://x/ 'https://a,https://b?'; do
    refuses 1 '--cors-origin: expected * or an origin like' serve --port 0 --log-level error --cors-origin "$origin"
done

# ---- Answers ----
start
has 'url' 'http://127.0.0.1:' "$url"
a=$(ask "$url" GET /health); has health '200 OK' "$a"; has health '{"status":"ok","ready":true}' "$a"
a=$(ask "$url" GET '/health?ready'); has 'health?ready' '200 OK' "$a"
a=$(ask "$url" GET /ready); has ready '200 OK' "$a"
a=$(ask "$url" POST /v1/chat/completions "$hello"); has chat 'Hello! I am Calla. How can I help you?' "$a"
a=$(ask "$url" POST /v1/chat/completions "$stream"); has stream 'text/event-stream' "$a"; has stream 'data: [DONE]' "$a"
a=$(ask "$url" GET /); has page '<!doctype html>' "$a"; has page "Content-Security-Policy: default-src 'none'" "$a"
a=$(ask "$url" GET /nowhere); has nowhere '404 Not Found' "$a"
a=$(ask "$url" GET /health '' 'Origin: http://evil.example'); has 'open to all' '200 OK' "$a"
a=$(ask "$url" GET /v1/models '' 'Origin: http://evil.example'); has origin '403 Forbidden' "$a"
a=$(printf 'GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n' | ask "$url"); has rebinding '403 Forbidden' "$a"
a=$(printf 'GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' | ask "$url"); has 'rebinding, absolute' '403 Forbidden' "$a"
a=$(printf 'GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' | ask "$url"); has 'absolute' '"id":"nano"' "$a"
a=$(printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n' | ask "$url"); has '1 GB' ' 413 ' "$a"

# A client that goes stops its generation.
ASK_BYTES=2000 ask "$url" POST /v1/completions "$long" >"$tmp/cut"
has 'cut' 'data: ' "$(cat "$tmp/cut")"
await '"stream":true,"gone":true' 'the client went'
await '"stop":"cancelled"' 'and the log says so'
a=$(ask "$url" GET /metrics)
has metrics 'calla_clients_gone_total 1' "$a"
has metrics 'calla_generations_total{end="cancelled"} 1' "$a"
has metrics 'calla_running 0' "$a"
has metrics 'calla_requests_total{route="/v1/chat/completions",status="200"} 2' "$a"
has metrics 'calla_requests_total{route="/v1/chat/completions",status="413"} 1' "$a"
has metrics 'calla_requests_total{route="other",status="404"} 1' "$a"

run serve --port "${url##*:}"; is 'port in use' 1 $rc; is 'port in use' '' "$out"
has 'port in use' "port ${url##*:} of 127.0.0.1 is in use by another program" "$err"
is 'port in use' 1 "$(printf '%s\n' "$err" | wc -l | tr -d ' ')"

stop TERM; is 'TERM' 0 $rc
has log '"event":"request","id":"req_' "$log"
has log '"path":"/v1/chat/completions","status":200' "$log"
has log '"cached_tokens":' "$log"
case $log in *Hello*) fail 'no prompts in the log' "$log" ;; *) pass ;; esac

# ---- Draining: what runs is finished, what comes is refused ----
: >"$tmp/a"
start --log-format text --log-prompts
ask "$url" POST /v1/completions '{"prompt":"a a a a","max_tokens":300,"stream":true}' >"$tmp/a" &
first=$!
tries=0
while ! grep -q 'data: ' "$tmp/a" && [ $tries -lt 400 ]; do sleep 0.01; tries=$((tries + 1)); done
stop TERM; is 'TERM under load' 0 $rc
wait $first
has 'finished' 'data: [DONE]' "$(cat "$tmp/a")"
has 'prompts in the log' 'a a a a' "$log"
has 'text' ' POST /v1/completions 200 ' "$log"
if ask "$url" GET /health >/dev/null; then fail 'after the end' 'still answers'; else pass; fi

# No time to drain: every client is told, in its API's words.
message='{"messages":[{"role":"user","content":"Hello!"}],"max_tokens":20000,"stream":true}'
: >"$tmp/a"; : >"$tmp/b"; : >"$tmp/c"
start --drain-seconds 0 --parallel 1
ask "$url" POST /v1/completions "$long" >"$tmp/a" &
first=$!
tries=0
while ! grep -q 'data: ' "$tmp/a" && [ $tries -lt 400 ]; do sleep 0.01; tries=$((tries + 1)); done
ask "$url" POST /v1/messages "$message" >"$tmp/b" & # waits behind it
second=$!
ask "$url" POST /v1/chat/completions "$hello" >"$tmp/c" & # this too
third=$!
tries=0
while ! ask "$url" GET /metrics | grep -q '^calla_queue_length 2' && [ $tries -lt 400 ]; do
    sleep 0.01
    tries=$((tries + 1))
done
stop INT; is 'INT' 0 $rc
wait $first; wait $second; wait $third
has 'cut off: OpenAI' '"code":"shutting_down"' "$(tail -n 20 "$tmp/a")"
has 'cut off: Anthropic' 'event: error' "$(cat "$tmp/b")"
has 'cut off: Anthropic' '"type":"overloaded_error"' "$(cat "$tmp/b")"
has 'cut off: whole' '503 Service Unavailable' "$(cat "$tmp/c")"
has 'cut off: whole' '"code":"shutting_down"' "$(cat "$tmp/c")"
has 'cut off: log' '"stop":"error"' "$log"

# ---- Keys, a Unix socket, traces ----
printf '# comment\n\nkey-one\nkey-two\n' >"$tmp/keys"; chmod 600 "$tmp/keys"
start --api-key-file "$tmp/keys" --unix-socket "$tmp/sock" --trace "$tmp/trace" --model-name my-model
is 'socket url' "unix:$tmp/sock" "$url"
a=$(ask "$url" GET /v1/models); has 'no key' '401 Unauthorized' "$a"
a=$(ask "$url" GET /v1/models '' 'Authorization: Bearer key-three'); has 'wrong key' '401 Unauthorized' "$a"
a=$(ask "$url" GET /v1/models '' 'Authorization: Bearer key-two'); has 'key' '"id":"my-model"' "$a"
a=$(ask "$url" POST /v1/chat/completions "$hello" 'x-api-key: key-one'); has 'x-api-key' 'I am Calla' "$a"
a=$(ask "$url" GET /health); has 'health without key' '200 OK' "$a"
stop TERM; is 'socket TERM' 0 $rc
case $log in *key-*) fail 'no keys in the log' "$log" ;; *) pass ;; esac
[ ! -e "$tmp/sock" ]; is 'the socket is removed' 0 $?
is 'traces' 5 "$(ls "$tmp/trace" | wc -l | tr -d ' ')"
trace=$(grep -l Hello "$tmp/trace"/*.json)
has 'mode of a trace' '-rw-------' "$(ls -l "$trace")"
is 'trace: request' "$hello" "$("$tools/jsonget" request <"$trace")"
has 'trace: response' 'I am Calla' "$("$tools/jsonget" response <"$trace")"
case $(cat "$tmp/trace"/*) in *key-*) fail 'no keys in traces' 'found one' ;; *) pass ;; esac

# ---- A recorded conversation, replayed: the server's own counts ----
start --trace "$tmp/day"
user() { printf '{"role":"user","content":"%s"}' "$1"; }
asks() { # MESSAGES: sets answer
    answer=$(ask "$url" POST /v1/chat/completions "{\"messages\":[$1],\"max_tokens\":200,\"temperature\":0}" |
        sed 1,/^.$/d | "$tools/jsonget" choices | sed 's/.*"content": \("[^"]*"\).*/\1/')
    talk="$1,{\"role\":\"assistant\",\"content\":$answer}"
}
asks "$(user 'What is 3 + 4?')"
asks "$talk,$(user 'And 5 + 6?')"
asks "$talk,$(user 'Thank you.')"
ask "$url" GET /v1/models >/dev/null
stop TERM
# A field of each turn of the report; of each record.
replayed() { sed -n "s/^ *{\"turn\".*\"$1\": \([0-9]*\),.*/\1/p" "$tmp/r" | tr '\n' ' '; }
recorded() { cat "$tmp"/day/*.json | sed -n "s/.*\"usage\": .*\"$1\": \([0-9]*\).*/\1/p" | sort -n | tr '\n' ' '; }
run bench --agent "$tmp/day" --json "$tmp/r"
is 'replay: exit code' 0 "$rc"
has 'replay: records of other paths' 'left out: 1 record' "$out"
is 'replay: prompts' "$(recorded prompt_tokens)" "$(replayed prompt_tokens)"
is 'replay: cached' "$(recorded cached_tokens)" "$(replayed cached_tokens)"
is 'replay: turns' 3 "$(replayed cached_tokens | wc -w | tr -d ' ')"

# ---- An idle model leaves memory and comes back ----
cp -r models/nano "$tmp/model"
start --idle-unload 0.3 -m "$tmp/model"
await 'the model is unloaded after' 'idle'
a=$(ask "$url" GET /ready); has 'ready without the model' '200 OK' "$a"
a=$(ask "$url" GET /metrics); has 'metrics without the model' 'calla_requests_total' "$a"
for i in 1 2 3 4; do ask "$url" POST /v1/chat/completions "$hello" >"$tmp/idle$i" & done
a=$(ask "$url" POST /v1/chat/completions "$stream"); has 'back' 'data: [DONE]' "$a"
tries=0
while [ "$(cat "$tmp"/idle? | grep -c 'I am Calla')" != 4 ] && [ $tries -lt 200 ]; do sleep 0.05; tries=$((tries + 1)); done
is 'all that waited' 4 "$(cat "$tmp"/idle? | grep -c 'I am Calla')"
mv "$tmp/model" "$tmp/away"
tries=0
while [ "$(grep -c 'the model is unloaded after' "$tmp/log")" -lt 2 ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
a=$(ask "$url" POST /v1/chat/completions "$hello"); has 'gone' '503 Service Unavailable' "$a"; has 'gone' '"code":"not_loaded"' "$a"
await 'the model cannot be loaded again' 'why'
mv "$tmp/away" "$tmp/model"
a=$(ask "$url" POST /v1/chat/completions "$hello"); has 'there again' 'I am Calla' "$a"
# Not while it works.
ask "$url" POST /v1/completions '{"prompt":"a a a a","max_tokens":1000,"stream":true}' >"$tmp/a"
has 'a long answer' 'data: [DONE]' "$(cat "$tmp/a")"
stop TERM; is 'idle: TERM' 0 $rc
start --idle-unload 0.2; await 'the model is unloaded after' 'idle'; stop INT; is 'asleep: INT' 0 $rc

# ---- Refusals ----
: >"$tmp/empty"
run serve --port 0 --api-key-file "$tmp/empty"; is 'no keys' 1 $rc; has 'no keys' 'expected a key, found none' "$err"
run serve --port 0 --api-key-file "$tmp/none"; is 'no file' 1 $rc; has 'no file' "$tmp/none" "$err"
run serve --port 0 -m "$tmp"; is 'no model' 1 $rc; has 'no model' 'config.json' "$err"
run serve --unix-socket "$tmp/empty"; is 'not a socket' 1 $rc; has 'not a socket' 'something else has this name' "$err"
run serve --port 0 --trace "$tmp/empty/x"; is 'no folder' 1 $rc; has 'no folder' 'cannot make the folder' "$err"
finish
