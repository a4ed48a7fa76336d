#include "server/api_random.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

void random_bytes(void *out, size_t n)
{
    if (getentropy(out, n) == 0) return;
    /* No source: not unpredictable, but different every time. */
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t x = (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 32 ^ (uintptr_t)out;
    for (size_t i = 0; i < n; i++) {
        x += 0x9e3779b97f4a7c15u;
        uint64_t z = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        ((unsigned char *)out)[i] = (unsigned char)(z >> 56);
    }
}

uint64_t random_u64(void)
{
    uint64_t x;
    random_bytes(&x, sizeof x);
    return x;
}

void random_id(char out[RANDOM_ID_MAX], const char *prefix)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char raw[24];
    random_bytes(raw, sizeof raw);
    const int n = snprintf(out, RANDOM_ID_MAX, "%.15s", prefix);
    for (size_t i = 0; i < sizeof raw; i++)
        out[(size_t)n + i] = letters[raw[i] % 62];
    out[(size_t)n + sizeof raw] = '\0';
}
