/* SHA-256 by Armv8's instructions for it. */
#include "base/sha_blocks.h"
#include <arm_neon.h>

void sha256_blocks_armsha(uint32_t h[8], const uint8_t *p, size_t n)
{
    uint32x4_t abcd = vld1q_u32(h), efgh = vld1q_u32(h + 4);
    for (; n > 0; n--, p += 64) {
        const uint32x4_t abcd_0 = abcd, efgh_0 = efgh;
        uint32x4_t w[4];
        for (int i = 0; i < 4; i++)
            w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * i)));
        for (int i = 0; i < 16; i++) {
            const int k = i & 3;
            if (i >= 4) {
                const uint32x4_t s0 = vsha256su0q_u32(w[k], w[(k + 1) & 3]);
                w[k] = vsha256su1q_u32(s0, w[(k + 2) & 3], w[(k + 3) & 3]);
            }
            const uint32x4_t kw = vaddq_u32(w[k], vld1q_u32(sha256_k + 4 * i));
            const uint32x4_t before = abcd;
            abcd = vsha256hq_u32(abcd, efgh, kw);
            efgh = vsha256h2q_u32(efgh, before, kw);
        }
        abcd = vaddq_u32(abcd, abcd_0);
        efgh = vaddq_u32(efgh, efgh_0);
    }
    vst1q_u32(h, abcd);
    vst1q_u32(h + 4, efgh);
}
