#!/bin/sh
# Configuration file, environment, command line: which wins, what is refused, what calla config says.
. tests/cli/lib.sh
mkdir -p "$tmp/config/calla"
file=$tmp/config/calla/config

# config LINE...: writes the file.
config() { printf '%s\n' "$@" >"$file"; }

# ---- Without a file ----
run config serve; is 'no file' 0 $rc; has 'no file' 'port = 8080  # default' "$out"
has 'no file' '# ctx is not set: ' "$out"
run config run; has 'no file' 'think = true  # default' "$out"; has 'no file' '# temp is not set' "$out"
run config; has all '[run]' "$out"; has all '[serve]' "$out"; has all '[pull]' "$out"

# ---- Precedence ----
config '# a comment' 'backend = cpu   # for all' 'port=1' '' '[serve]' '  port = 9000' 'queue = 7' \
    'log-prompts = yes' '[run]' 'think = off' 'system = "He said \"a # b\" \\ \n"'
run config serve --queue 9
has own "port = 9000  # $file:6" "$out"
has general "backend = \"cpu\"  # $file:2" "$out"
has flag "log-prompts = true  # $file:8" "$out"
has 'command line' 'queue = 9  # command line' "$out"
CALLA_PORT=9001 CALLA_QUEUE=8 run config serve --queue 9
has environment 'port = 9001  # CALLA_PORT' "$out"
has 'command line' 'queue = 9  # command line' "$out"
CALLA_LOG_PROMPTS=0 run config serve; has 'environment flag' 'log-prompts = false  # CALLA_LOG_PROMPTS' "$out"
run config run; has opposite "no-think = true  # $file:10" "$out"
has quoted 'system = "He said \"a # b\" \\ \n"' "$out"
run config run --think; has opposite 'think = true  # command line' "$out"
CALLA_PORT= run config serve; has 'empty variable' "port = 9000  # $file:6" "$out"

# What it prints is a file that says the same.
run config; sed 's/  # .*//; /^#/d' "$tmp/out" >"$tmp/first"; cp "$tmp/out" "$tmp/again"
CALLA_CONFIG=$tmp/again run config; sed 's/  # .*//; /^#/d' "$tmp/out" >"$tmp/second"
is 'again' 0 "$(cmp -s "$tmp/first" "$tmp/second"; echo $?)"

# ---- Which file ----
printf 'port = 7\n' >"$tmp/other"
run config serve --config "$tmp/other"; has '--config' "port = 7  # $tmp/other:1" "$out"
CALLA_CONFIG=$tmp/other run config serve; has CALLA_CONFIG "port = 7  # $tmp/other:1" "$out"
CALLA_CONFIG=$tmp/other run config serve --config "$file"; has '--config first' 'port = 9000' "$out"
CALLA_CONFIG=none run config serve; has none 'port = 8080  # default' "$out"
refuses 2 "cannot open $tmp/nowhere" serve --config "$tmp/nowhere"
CALLA_CONFIG=$tmp/nowhere refuses 2 "cannot open $tmp/nowhere" serve

# ---- It works ----
config "model = models/nano" '[run]' 'think = false'
run run -p 'Hello!'; is run 0 $rc; is run 'Hello! I am Calla. How can I help you?' "$out"
CALLA_MODEL=$tmp/none run run -p 'Hello!'; is CALLA_MODEL 1 $rc; has CALLA_MODEL "$tmp/none" "$err"
config "model = $tmp/none"
run tokenize --help; is 'others' 0 $rc
run inspect --memory; is 'a model for all' 1 $rc; has 'a model for all' "$tmp/none" "$err"
run inspect --memory models/nano; is 'a folder that is given' 0 $rc

# ---- Refusals: each names file and line ----
# bad TEXT LINE: the second line of the file.
bad() {
    config '# first' "$2"
    refuses 2 "$file:2: $1" serve
}
bad "unknown key 'prot'" 'prot = 80'
bad "port: expected a whole number from 0 to 65535, found '70000'" 'port = 70000'
bad "port: expected a whole number from 0 to 65535, found 'x'" 'port = "x"'
bad "expected '=' after the key" 'port 80'
bad 'expected a key or [section]' 'Port = 80'
bad 'expected a value after' 'port ='
bad 'expected a value after' 'port = # 80'
bad 'expected a closing quote' 'host = "x'
bad 'expected nothing after the closing quote' 'host = "x" y'
bad 'expected a section like' '[serve'
bad 'expected nothing after the section' '[serve] x'
bad 'expected a key or [section]' '= 5'
bad 'expected a key or [section]' 'é = 5'
bad 'log-prompts: expected true or false' 'log-prompts = 2'
bad "log-format: expected one of auto|text|json, found 'xml'" 'log-format = xml'
bad "temp: expected a number from 0 to 100, found 'hot'" 'temp = hot'
config '[bench]' 'port = 1'; refuses 2 "$file:2: expected a section [run], [serve] or [pull], found [bench]" serve
config 'port = 1' '[serve]' 'temp = 1'; refuses 2 "$file:3: unknown key 'temp' of calla serve" serve
config 'port = 1' 'port = 2'; refuses 2 "$file:2: 'port' is on line 1 already" serve
config '[run]' 'temp = -5'; refuses 2 "$file:2: temp: expected a number" serve
printf 'port = 1\0\n' >"$file"; refuses 2 'found a NUL byte' serve
head -c 2000000 /dev/zero | tr '\0' '#' >"$file"; refuses 2 'more than the limit' serve
rm "$file"; mkdir "$file"; refuses 2 'is not a regular file' serve; rmdir "$file"
printf '\r\nport = 5\r\n# no line break at the end' >"$file"; run config serve; has CRLF "port = 5  # $file:2" "$out"
rm "$file"
CALLA_PORT=x refuses 2 "CALLA_PORT: expected a whole number from 0 to 65535, found 'x'" serve
CALLA_LOG_PROMPTS=maybe refuses 2 'CALLA_LOG_PROMPTS: expected true or false' serve
CALLA_PROT=1 run config serve; has 'unknown variable' 'the environment has CALLA_PROT, which is no option' "$err"
refuses 2 "there is no command 'sing'" config sing
refuses 2 'calla bench takes no configuration' config bench
refuses 2 "unknown option '--config'" bench --config x
refuses 2 "unknown option '--prot'" config serve --prot 1
finish
