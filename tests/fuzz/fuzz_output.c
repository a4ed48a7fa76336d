/* fuzz_output.c - any bytes as model output: cutting changes nothing, arguments are JSON.
 *
 * First byte: bit 0 starts in reasoning, bit 1 without tools, bit 2 truncated; the others seed the
 * cuts.
 */
#include <stdio.h>
#include <stdlib.h>
#include "output_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_doc tools;
    if (size == 0) return 0;
    if (tools.root == NULL &&
        json_parse(&tools, CHECK_TOOLS, sizeof CHECK_TOOLS - 1, NULL, NULL) != CALLA_OK)
        abort();
    const check_input in = {.bytes = (const char *)data + 1,
                            .n = size - 1,
                            .reasoning = (data[0] & 1) != 0,
                            .tools = (data[0] & 2) != 0 ? NULL : tools.root,
                            .truncated = (data[0] & 4) != 0};
    const size_t max_cuts[] = {1, 3, 20, 500};
    const char *fault = check_output(&in, max_cuts[data[0] >> 3 & 3], data[0]);
    if (fault != NULL) {
        fprintf(stderr, "fuzz_output: %s\n", fault);
        abort();
    }
    return 0;
}
