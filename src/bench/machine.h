/* machine.h - what the system says about the machine and this process; nothing is timed. */
#ifndef CALLA_BENCH_MACHINE_H
#define CALLA_BENCH_MACHINE_H

#include "bench/record.h"

bool machine_is_gpu(const calla_engine *e);
/* Of a CPU engine: "exact", "int16", "int8". */
const char *machine_precision(const calla_engine *e);
/* "Linux 6.1 x86_64"; the processor's name; bytes of its memory. */
void machine_system(char *buf, size_t n);
void machine_name(char *buf, size_t n);
uint64_t machine_bytes(void);
/* Processes that want to run, on average over the last minute; -1: unknown. */
double machine_load(void);
/* This process, now: anonymous and mapped; device stays 0. */
void machine_memory(bench_memory *m);
/* Are most of the resident file pages of this process mapped as pages of 2 MB? -1: unknown. */
int machine_large_pages(void);

#endif
