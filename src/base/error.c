#define CALLA_ERROR_C
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Names and values come out of files: control characters of ASCII and of Unicode's C1 block become
 * '?', so that a sentence is one line and steers no terminal. */
static void make_printable(char *s)
{
    for (; *s != '\0'; s++) {
        const unsigned char c = (unsigned char)s[0], next = (unsigned char)s[1];
        if (c < 0x20 || c == 0x7f)
            s[0] = '?';
        else if (c == 0xc2 && next >= 0x80 && next < 0xa0)
            s[0] = s[1] = '?';
    }
}

static ATTR_PRINTF(4, 0) calla_status
    err_vset(calla_error *err, calla_status code, uint64_t offset, const char *fmt, va_list ap)
{
    if (err != NULL) {
        err->code = code;
        err->offset = offset;
        (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
        make_printable(err->message);
    }
    return code;
}

calla_status err_set(calla_error *err, calla_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)err_vset(err, code, CALLA_NO_OFFSET, fmt, ap);
    va_end(ap);
    return code;
}

calla_status err_set_at(calla_error *err, calla_status code, uint64_t offset, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)err_vset(err, code, offset, fmt, ap);
    va_end(ap);
    return code;
}

calla_status err_prefix(calla_error *err, calla_status code, const char *fmt, ...)
{
    if (err == NULL) return code;
    char old[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->message)
        (void)snprintf(err->message + n, sizeof err->message - (size_t)n, ": %s", old);
    make_printable(err->message);
    return code;
}

const char *calla_status_name(calla_status status)
{
    switch (status) {
#define CALLA_STATUS_NAME(name, text)                                                              \
    case CALLA_##name:                                                                             \
        return text;
        CALLA_STATUS_LIST(CALLA_STATUS_NAME)
#undef CALLA_STATUS_NAME
    }
    return "unknown status";
}
