/* lines.h - a program that answers each line of standard input with a line. */
#ifndef CALLA_TESTS_ORACLE_LINES_H
#define CALLA_TESTS_ORACLE_LINES_H

#include <stdio.h>
#include <stdlib.h>
#include "base/mem.h"

/* out: emptied and filled with the answer, its newline included. False: no answer, the program
 * fails. */
typedef bool (*line_answer)(strbuf *out, const char *line, size_t n);

static inline int answer_lines(line_answer answer)
{
    strbuf in = {0}, out = {0};
    int c, rc = EXIT_SUCCESS;
    while (rc == EXIT_SUCCESS && (c = getchar()) != EOF) {
        if (c != '\n') {
            (void)strbuf_putc(&in, (char)c);
            continue;
        }
        if (in.failed || !answer(&out, in.data, in.len) ||
            fwrite(out.data, 1, out.len, stdout) != out.len)
            rc = EXIT_FAILURE;
        strbuf_clear(&in);
    }
    strbuf_deinit(&in);
    strbuf_deinit(&out);
    return rc;
}

#endif
