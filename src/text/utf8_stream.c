#include "text/utf8.h"

#include <string.h>
#include "calla.h"

size_t utf8_read(const char *s, size_t n, uint32_t *cp, utf8_kind *kind)
{
    const uint8_t *b = (const uint8_t *)s;
    const uint8_t lead = b[0];
    uint8_t low = 0x80, high = 0xBF; /* range of the second byte */
    size_t len;
    uint32_t c;
    *kind = UTF8_CHAR;
    if (lead < 0x80) {
        *cp = lead;
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        len = 2;
        c = lead & 0x1Fu;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        len = 3;
        c = lead & 0x0Fu;
        if (lead == 0xE0) low = 0xA0;  /* overlong */
        if (lead == 0xED) high = 0x9F; /* surrogates */
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        len = 4;
        c = lead & 0x07u;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F; /* above U+10FFFF */
    } else {
        *kind = UTF8_BAD;
        return 1;
    }
    for (size_t i = 1; i < len; i++) {
        if (i == n) {
            *kind = UTF8_SHORT;
            return i;
        }
        if (b[i] < low || b[i] > high) {
            *kind = UTF8_BAD;
            return i;
        }
        c = c << 6 | (b[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *cp = c;
    return len;
}

size_t utf8_write(uint32_t cp, char *out)
{
    uint8_t *b = (uint8_t *)out;
    if (cp < 0x80) {
        b[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        b[0] = (uint8_t)(0xC0 | cp >> 6);
        b[1] = (uint8_t)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        b[0] = (uint8_t)(0xE0 | cp >> 12);
        b[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
        b[2] = (uint8_t)(0x80 | (cp & 0x3F));
        return 3;
    }
    b[0] = (uint8_t)(0xF0 | cp >> 18);
    b[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3F));
    b[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
    b[3] = (uint8_t)(0x80 | (cp & 0x3F));
    return 4;
}

bool utf8_repair(strbuf *out, const char *s, size_t n)
{
    size_t copied = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        utf8_kind kind;
        const size_t len = utf8_read(s + i, n - i, &cp, &kind);
        if (kind != UTF8_CHAR) {
            strbuf_append(out, s + copied, i - copied);
            strbuf_puts(out, UTF8_REPLACEMENT);
            copied = i + len;
        }
        i += len;
    }
    return strbuf_append(out, s + copied, n - copied);
}

static size_t put_replacement(char *out)
{
    memcpy(out, UTF8_REPLACEMENT, 3);
    return 3;
}

/* Adds bytes to the held prefix until it is a character or proven broken. Returns the bytes taken
 * from the input; *w grows by what was written. */
static size_t finish_held(calla_utf8_stream *s, const char *bytes, size_t n, char *out, size_t *w)
{
    size_t used = 0;
    while (s->n_held != 0 && used < n) {
        uint32_t cp;
        utf8_kind kind;
        s->held[s->n_held] = (unsigned char)bytes[used];
        (void)utf8_read((const char *)s->held, s->n_held + 1, &cp, &kind);
        if (kind == UTF8_BAD) { /* the held bytes are the subpart; this byte begins anew */
            *w += put_replacement(out + *w);
            s->n_held = 0;
            return used;
        }
        s->n_held++;
        used++;
        if (kind == UTF8_CHAR) {
            memcpy(out + *w, s->held, s->n_held);
            *w += s->n_held;
            s->n_held = 0;
        }
    }
    return used;
}

size_t calla_utf8_stream_push(calla_utf8_stream *s, const char *bytes, size_t n, char *out)
{
    size_t w = 0;
    size_t i = finish_held(s, bytes, n, out, &w);
    while (i < n) {
        uint32_t cp;
        utf8_kind kind;
        const size_t len = utf8_read(bytes + i, n - i, &cp, &kind);
        if (kind == UTF8_CHAR) {
            memcpy(out + w, bytes + i, len);
            w += len;
        } else if (kind == UTF8_BAD) {
            w += put_replacement(out + w);
        } else {
            memcpy(s->held, bytes + i, len);
            s->n_held = (unsigned)len;
        }
        i += len;
    }
    return w;
}

size_t calla_utf8_stream_finish(calla_utf8_stream *s, char *out)
{
    const size_t w = s->n_held != 0 ? put_replacement(out) : 0;
    s->n_held = 0;
    return w;
}
