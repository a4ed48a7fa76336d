#!/bin/sh
# gpu-bundle.sh BUILD OUT: a folder with the programs for a GPU machine that has no compiler for us
# and none of our libraries: the programs without debug information, every library they need but
# the C library's own, the demonstration model, and run.sh, which is gpu-check.sh in that place.
set -e
build=$1 out=$2
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/models"
for p in calla calla-gpu-check bench-gpu; do
    strip -o "$out/bin/$p" "$build/$p"
done
# The C library's parts and the loader must be the machine's own.
ldd "$out"/bin/* | awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' |
    while read -r lib; do cp -L "$lib" "$out/lib/"; done
cp -R models/nano "$out/models/"
cp tools/gpu-check.sh "$out/gpu-check.sh"
cat >"$out/run.sh" <<'END'
#!/bin/sh
# run.sh PROGRAM ARGUMENT...: one of bin/, with our libraries. Without: gpu-check.sh.
here=$(cd "$(dirname "$0")" && pwd)
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
case ${1:-} in
calla | calla-gpu-check | bench-gpu)
    program=$1
    shift
    exec "$here/bin/$program" "$@"
    ;;
esac
BIN=$here/bin exec bash "$here/gpu-check.sh" "$@"
END
chmod +x "$out/run.sh"
# With the bundled libraries and the C library alone, is anything missing?
missing=$(LD_LIBRARY_PATH="$out/lib" ldd "$out"/bin/* | grep 'not found' || true)
outside=$(LD_LIBRARY_PATH="$(cd "$out/lib" && pwd)" ldd "$out"/bin/* |
    awk '$2 == "=>" { print $3 }' | grep -v "$out/lib/" |
    grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' || true)
if [ -n "$missing$outside" ]; then
    echo "gpu-bundle: not in the bundle: $missing $outside" >&2
    exit 1
fi
newest=$(objdump -T "$out"/bin/* "$out"/lib/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "$out: $(du -sm "$out" | cut -f 1) MiB; needs $newest"
