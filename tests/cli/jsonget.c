/* jsonget KEY... <FILE: prints the value at this path of one JSON document: strings as they are,
 * other values as JSON. Exit 1 when the input is not JSON or has no such member. */
#include <stdio.h>
#include "base/json.h"

int main(int argc, char **argv)
{
    strbuf in = {0}, out = {0};
    json_doc doc = {0};
    calla_error err = {0};
    char block[4096];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0)
        strbuf_append(&in, block, n);
    if (json_parse(&doc, in.data ? in.data : "", in.len, NULL, &err) != CALLA_OK) {
        fprintf(stderr, "jsonget: %s\n", err.message);
        strbuf_deinit(&in);
        return 1;
    }
    const json_value *v = doc.root;
    for (int i = 1; i < argc && v; i++)
        v = json_get(v, argv[i]);
    if (v && v->type == JSON_STRING)
        strbuf_append(&out, v->text, v->n_text);
    else if (v)
        json_write(&out, v);
    if (out.data) puts(out.data);
    const int rc = v ? 0 : 1;
    strbuf_deinit(&out);
    strbuf_deinit(&in);
    json_free(&doc);
    return rc;
}
