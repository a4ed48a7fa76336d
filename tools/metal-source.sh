#!/bin/sh
# metal-source.sh FILE...: C source on stdout: the texts of the families in the order of KX_FAMILY,
# and which of them has a kernel (exec/gpu/metal/source.h).
set -eu
cat <<'TOP'
/* Made by tools/metal-source.sh. */
#include "exec/gpu/metal/source.h"

#include "exec/gpu/device.h"

TOP
for file; do
    printf 'static const char text_%s[] = {\n' "$(basename "$file" .metal)"
    od -An -v -tu1 "$file" |
        awk '{ for (i = 1; i <= NF; i++) printf "%s,", $i; print "" } END { print "0" }'
    echo '};'
done
echo
echo 'const metal_source metal_sources[METAL_SOURCES] = {'
for file; do
    name=$(basename "$file" .metal)
    grep -q 'mm_zero' "$file" && tiles=true || tiles=false
    printf '    {"%s", text_%s, sizeof text_%s - 1, %s},\n' "$name" "$name" "$name" $tiles
done
cat <<'OF'
};

const uint8_t metal_source_of[KERNEL_COUNT] = {
OF
i=0
for file; do
    printf '#define KX_FAMILY %d\n' $((i + 1))
    printf '#define K(name, threads, bindings) [KERNEL_##name] = %d,\n' $i
    printf '#include "kernels/kernels.inc"\n#undef K\n#undef KX_FAMILY\n'
    i=$((i + 1))
done
cat <<'END'
#define KX_FAMILY 6
#define K(name, threads, bindings) [KERNEL_##name] = UINT8_MAX,
#include "kernels/kernels.inc"
};
END
