#!/bin/sh
# demo.sh CALLA: a few questions to the demonstration model. Answers on stdout, speed on stderr.
calla=$1
for q in "Hello! Who are you?" "What is 47 + 38?" "Sort these words alphabetically: pear, apple, lemon"; do
    printf '\n> %s\n' "$q"
    "$calla" run -p "$q" </dev/null || exit 1
done
cat <<EOF

That was models/nano, a demonstration model of 21.7 million parameters. To chat with it:  $calla run
With the real model, in its MLX 4-bit form:                                   $calla run -m FOLDER
EOF
