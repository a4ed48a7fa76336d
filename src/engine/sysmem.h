/* sysmem.h - how much memory this process may plan with.
 *
 * Does:    Linux: MemAvailable, lowered by every cgroup (v2 or v1) above this process, where page
 *          cache counts as free. macOS: the machine's memory less what Activity Monitor calls used
 *          (wired, compressed, and the programs' own).
 * Threads: pure, but for asking the system.
 */
#ifndef CALLA_ENGINE_SYSMEM_H
#define CALLA_ENGINE_SYSMEM_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes; UINT64_MAX when the system does not say. */
uint64_t sysmem_available(void);

/* The parts, for tests: value in bytes of "KEY   N kB" in a text like /proc/meminfo, of "KEY N" in
 * a text like memory.stat. False when the key is not there. */
bool sysmem_meminfo(const char *text, const char *key, uint64_t *bytes);
bool sysmem_stat(const char *text, const char *key, uint64_t *value);

/* As sysmem_available, with "/proc" and "/sys/fs/cgroup" replaced (tests). Linux only. */
uint64_t sysmem_available_at(const char *proc, const char *cgroup);

#endif
