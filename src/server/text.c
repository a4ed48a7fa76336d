#include "server/text.h"

#include <string.h>
#include <time.h>

#include "base/json.h"
#include "calla.h"

#define PIECE 512u

/* Valid UTF-8 pieces of the input, one after the other. */
static void each_valid(strbuf *out, const char *s, size_t n,
                       void (*put)(strbuf *out, const char *s, size_t n))
{
    calla_utf8_stream stream = {0};
    char valid[3 * (PIECE + 3)];
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t n_piece = n - i < PIECE ? n - i : PIECE;
        put(out, valid, calla_utf8_stream_push(&stream, s + i, n_piece, valid));
    }
    put(out, valid, calla_utf8_stream_finish(&stream, valid));
}

/* json_write_string adds quotes, which pieces of one string must not have. */
static void put_json(strbuf *out, const char *s, size_t n)
{
    const size_t at = out->len;
    if (n == 0 || !json_write_string(out, s, n) || out->failed) return;
    const size_t n_inner = out->len - at - 2;
    memmove(out->data + at, out->data + at + 1, n_inner);
    out->len = at + n_inner;
    out->data[out->len] = '\0';
}

void text_json(strbuf *out, const char *s, size_t n)
{
    strbuf_putc(out, '"');
    each_valid(out, s, n, put_json);
    strbuf_putc(out, '"');
}

static void put_printable(strbuf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        /* U+0080..U+009F (C2 80..C2 9F) are controls too. */
        const bool c1 = c == 0xc2 && i + 1 < n && (unsigned char)s[i + 1] < 0xa0;
        if (c == '\n')
            strbuf_puts(out, "\\n");
        else if (c == '\t')
            strbuf_puts(out, "\\t");
        else if (c < 0x20 || c == 0x7f)
            strbuf_printf(out, "\\x%02x", c);
        else if (c1)
            strbuf_printf(out, "\\x%02x", (unsigned char)s[++i]);
        else
            strbuf_putc(out, s[i]);
    }
}

void text_printable(strbuf *out, const char *s, size_t n)
{
    each_valid(out, s, n, put_printable);
}

bool text_is_utf8(const char *s, size_t n)
{
    calla_utf8_stream stream = {0};
    char valid[3 * (PIECE + 3)];
    bool same = true;
    /* Valid text passes through unchanged; a piece may hold back or bring up to 3 bytes. */
    size_t at = 0;
    for (size_t i = 0; same && i < n; i += PIECE) {
        const size_t n_piece = n - i < PIECE ? n - i : PIECE;
        const size_t m = calla_utf8_stream_push(&stream, s + i, n_piece, valid);
        same = m <= n - at && memcmp(valid, s + at, m) == 0;
        at += m;
    }
    return same && at == n;
}

double text_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void text_time(strbuf *out, double unix_time)
{
    char buf[32];
    struct tm tm;
    const time_t seconds = (time_t)unix_time;
    const double fraction = unix_time - (double)seconds;
    (void)gmtime_r(&seconds, &tm);
    (void)strftime(buf, sizeof buf, "%Y-%m-%dT%H:%M:%S", &tm);
    const unsigned ms = (unsigned)(fraction * 1e3);
    strbuf_printf(out, "%s.%03uZ", buf, ms < 1000 ? ms : 999);
}

void text_clock(strbuf *out, double unix_time)
{
    char buf[16];
    struct tm tm;
    const time_t seconds = (time_t)unix_time;
    (void)localtime_r(&seconds, &tm);
    (void)strftime(buf, sizeof buf, "%H:%M:%S", &tm);
    strbuf_puts(out, buf);
}
