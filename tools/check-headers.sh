#!/bin/sh
# Every header compiles on its own, with warnings as errors; the public one as C++ too.
# Environment: CC, and FLAGS for it.
CC=${CC:-cc}
bad=0
for h in $(find include src -name '*.h' | LC_ALL=C sort); do
    # A second inclusion proves the guard.
    printf '#include "%s"\n#include "%s"\ntypedef int not_empty;\n' "${h#*/}" "${h#*/}" |
        $CC ${FLAGS:-} -Werror -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -Iinclude -Isrc \
            -fsyntax-only -x c - || {
        echo "$h does not compile on its own"
        bad=1
    }
done
if command -v c++ >/dev/null 2>&1; then
    echo '#include "calla.h"' | c++ -Wall -Wextra -Werror -Iinclude -fsyntax-only -x c++ - || bad=1
fi
exit $bad
