/* fuzz_json.c - any bytes as JSON: what parses is written and parsed again to the same text. */
#include <stdlib.h>
#include <string.h>
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_doc doc = {0}, again = {0};
    strbuf a = {0}, b = {0};
    const json_limits limits = {.max_depth = 1000};
    if (json_parse(&doc, (const char *)data, size, &limits, NULL) != CALLA_OK) return 0;
    if (!json_write(&a, doc.root)) abort();
    /* A number beyond the range of a double is written as Infinity, which is not JSON. */
    if (strstr(a.data, "Infinity") == NULL) {
        if (json_parse(&again, a.data, a.len, &limits, NULL) != CALLA_OK) abort();
        if (!json_write(&b, again.root)) abort();
        if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0) abort();
    }
    strbuf_deinit(&a);
    strbuf_deinit(&b);
    json_free(&doc);
    json_free(&again);
    return 0;
}
