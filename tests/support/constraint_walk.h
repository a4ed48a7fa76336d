/* constraint_walk.h - random texts that a constraint accepts. For tests. */
#ifndef CALLA_TESTS_CONSTRAINT_WALK_H
#define CALLA_TESTS_CONSTRAINT_WALK_H

#include <string.h>

#include "text/constraint.h"

#define WALK_MAX 6000u

typedef struct walk_random {
    uint64_t state;
} walk_random;

static inline uint32_t walk_draw(walk_random *r, uint32_t n)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 33) % n;
}

/* What a model might write at once; the first ones end things. */
static const char *const walk_pieces[] = {"}",
                                          "\"",
                                          "]",
                                          "\n</parameter>\n",
                                          "</function>\n</tool_call>",
                                          "\">",
                                          ",",
                                          ":",
                                          ", ",
                                          ": ",
                                          "{",
                                          "[",
                                          "<tool_call>\n<function=",
                                          "<",
                                          "</",
                                          "\n",
                                          "  ",
                                          "\\u",
                                          "\\",
                                          "\xc3\xa9",
                                          "\xf0\x9f\x98\x80",
                                          "null",
                                          "false",
                                          "0",
                                          "12",
                                          "-",
                                          ".5",
                                          "e",
                                          "E+1",
                                          "ab",
                                          "Z",
                                          "</parameter>",
                                          "x<p",
                                          "\"a\"",
                                          "\\ud83d\\ude00",
                                          "/",
                                          "@b.c",
                                          "d800",
                                          "\\n"};
#define WALK_N_PIECES (sizeof walk_pieces / sizeof walk_pieces[0])

/* Appends a random accepted text, from the constraint's present state to an allowed end; false: too
 * long, or nothing could come next (*stuck, which must never be). */
static inline bool walk(constraint *c, walk_random *r, strbuf *out, bool *stuck)
{
    *stuck = false;
    while (out->len < WALK_MAX) {
        if (constraint_may_end(c) && walk_draw(r, out->len < 40 ? 6 : 2) == 0) return true;
        char byte = (char)walk_draw(r, 256);
        const char *s = &byte;
        size_t n = 1;
        const uint32_t long_texts = out->len > 400;
        if (walk_draw(r, 4) != 0) {
            s = walk_pieces[walk_draw(r, long_texts ? 6 : WALK_N_PIECES)];
            n = strlen(s);
        }
        bool ok = constraint_advance(c, s, n);
        for (uint32_t k = 0, at = walk_draw(r, 256); !ok && k < 256; k++) {
            byte = (char)(at + k); /* any byte that may come */
            s = &byte;
            n = 1;
            ok = constraint_advance(c, s, n);
        }
        if (!ok) {
            *stuck = !constraint_may_end(c);
            return !*stuck;
        }
        strbuf_append(out, s, n);
    }
    return false;
}

#endif
