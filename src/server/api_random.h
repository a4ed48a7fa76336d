/* api_random.h - random bytes from the system; ids of requests, answers and calls.
 *
 * Threads: any.
 */
#ifndef CALLA_SERVER_API_RANDOM_H
#define CALLA_SERVER_API_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#define RANDOM_ID_MAX 48u

void random_bytes(void *out, size_t n); /* n <= 256 */
uint64_t random_u64(void);
/* prefix (up to 15 characters) + 24 random letters and digits. */
void random_id(char out[RANDOM_ID_MAX], const char *prefix);

#endif
