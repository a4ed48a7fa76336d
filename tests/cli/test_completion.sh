#!/bin/sh
# `calla completion`: bash's script is tried; zsh's and fish's where these shells are installed. The
# manual pages of the commands.
. tests/cli/lib.sh
case $calla in /*) ;; *) calla=$PWD/$calla ;; esac

refuses 2 "expected bash, zsh or fish, found 'sh'" completion sh
refuses 2 'expected bash|zsh|fish' completion

# Two pulled models, as far as completion can tell.
for m in owner/Model-A owner/Model-B; do
    mkdir -p "$tmp/data/calla/models/$m"
    echo '{}' >"$tmp/data/calla/models/$m/config.json"
done

# ---- bash ----
if command -v bash >/dev/null 2>&1; then
    "$calla" completion bash >"$tmp/c.bash"
    cat >"$tmp/try.bash" <<'END'
. "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_calla
printf '%s\n' "${COMPREPLY[@]}"
END
    # complete WORD...: what bash offers, on one line.
    complete() { bash "$tmp/try.bash" "$tmp/c.bash" "$calla" "$@" | tr '\n' ' '; }
    is commands 'serve selftest ' "$(complete se)"
    is options '--log-format --log-prompts --log-level ' "$(complete serve --log)"
    is words 'auto text json ' "$(complete serve --log-format '')"
    is words 'text ' "$(complete serve --log-format te)"
    has models 'owner/Model-A owner/Model-B' "$(complete run -m owner/)"
    has models 'owner/Model-B' "$(complete rm owner/Model-B)"
    is folders 'models/nano ' "$(complete run -m models/n)"
    is files 'docs/MODEL.md ' "$(complete run -f docs/MOD)"
    is numbers ' ' "$(complete run --seed '')"
    is config 'run serve pull ' "$(complete config '')"
    for c in $("$calla" --commands); do
        for o in $("$calla" "$c" --help | sed -n 's/^  ...* --\([a-z0-9-]*\).*/--\1/p'); do
            case $o in --version) continue ;; esac
            has "calla $c" "$o " "$(complete "$c" "$o")"
        done
    done
fi

# ---- zsh, fish ----
"$calla" completion zsh >"$tmp/_calla"
"$calla" completion fish >"$tmp/calla.fish"
for c in $("$calla" --commands); do
    has "zsh $c" "    $c)" "$(cat "$tmp/_calla")"
    has "fish $c" "-a $c -d" "$(cat "$tmp/calla.fish")"
done
if command -v zsh >/dev/null 2>&1; then
    zsh -n "$tmp/_calla"; is 'zsh -n' 0 $?
    a=$(zsh -fc "autoload -U compinit; compinit -D; . '$tmp/_calla'; whence -w _calla" 2>&1)
    is zsh '_calla: function' "$a"
fi
if command -v fish >/dev/null 2>&1; then
    a=$(HOME=$tmp fish --no-config -c "source '$tmp/calla.fish'; complete -C 'calla ser'" 2>&1)
    has fish serve "$a"
    a=$(HOME=$tmp fish --no-config -c "source '$tmp/calla.fish'; complete -C 'calla serve --log-f'" 2>&1)
    has fish --log-format "$a"
    a=$(HOME=$tmp fish --no-config -c "source '$tmp/calla.fish'; complete -C 'calla serve --log-format te'" 2>&1)
    has fish text "$a"
fi

# ---- Manual pages ----
for c in $("$calla" --commands); do
    sh tools/man.sh "$calla" "$c" >"$tmp/calla-$c.1"
    has "calla-$c(1)" ".Sh OPTIONS" "$(cat "$tmp/calla-$c.1")"
    has "calla-$c(1)" ".Dd " "$(cat "$tmp/calla-$c.1")"
done
finish
