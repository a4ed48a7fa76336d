/* Compiled anew when the commit changes, and nothing else is. */
#include "bench/record.h"

#if !defined(CALLA_COMMIT)
#define CALLA_COMMIT ""
#endif
const char bench_commit[] = CALLA_COMMIT;
