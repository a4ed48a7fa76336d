#!/bin/sh
# Every header compiles on its own, with warnings as errors; the public one as C++ too.
# Arguments: one per header, "FILE FLAG..." with the flags it needs. Environment: CC, FLAGS.
CC=${CC:-cc}
bad=0
for h in "$@"; do
    file=${h%% *}
    # A second inclusion proves the guard. -O1: some intrinsics are macros without it.
    printf '#include "%s"\n#include "%s"\ntypedef int not_empty;\n' "${file#*/}" "${file#*/}" |
        $CC ${FLAGS:-} ${h#"$file"} -Werror -O1 -Iinclude -Isrc -fsyntax-only -x c - || {
        echo "$file does not compile on its own"
        bad=1
    }
done
if command -v c++ >/dev/null 2>&1; then
    echo '#include "calla.h"' | c++ -Wall -Wextra -Werror -Iinclude -fsyntax-only -x c++ - || bad=1
fi
exit $bad
