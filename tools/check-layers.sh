#!/bin/sh
# A folder of src/ includes only what stands below it (docs/ARCHITECTURE.md, "Layers"), its own
# headers, the public header, and system headers.
exec awk '
BEGIN {
    may["base"]   = " base "
    may["format"] = " base format "
    may["net"]    = " base net "
    may["text"]   = " base text "
    may["model"]  = " base format model "
    may["kernels"] = " kernels "
    may["exec"]   = " base format model kernels exec "
    may["check"]  = " base model kernels exec engine check "
    may["engine"] = " base format model kernels exec text engine "
    may["server"] = " base text engine server "
    may["bench"]  = " base format model exec check text engine server bench "
    may["cli"]    = " base net format model exec check text engine server bench cli "
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split(FILENAME, at, "/")
    split($0, q, "\"")
    if (q[2] == "calla.h") next
    slash = index(q[2], "/")
    # "kernels.inc" beside the file is written with its folder, as every include is.
    to = slash ? substr(q[2], 1, slash - 1) : "?"
    if (to == "base" && FILENAME ~ /^src\/kernels\/ref_/) next # host code beside its kernels
    if (!(at[2] in may) || index(may[at[2]], " " to " ") == 0) {
        printf "%s:%d: %s/ must not include \"%s\"\n", FILENAME, FNR, at[2], q[2]
        bad = 1
    }
}
END { exit bad }' $(find src -name '*.[ch]' -o -name '*.inc' -o -name '*.cpp' -o -name '*.cu' | LC_ALL=C sort)
