#include "bench/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#include "exec/cpu/cpu.h"

bool machine_is_gpu(const calla_engine *e)
{
    const char *name = e->ex->ops->name;
    return strcmp(name, "cuda") == 0 || strcmp(name, "metal") == 0 || strcmp(name, "simt") == 0;
}

const char *machine_precision(const calla_engine *e)
{
    switch (((const cpu_exec *)(const void *)e->ex)->precision) {
    case CALLA_PRECISION_EXACT:
        return "exact";
    case CALLA_PRECISION_INT8:
        return "int8";
    case CALLA_PRECISION_DEFAULT:
    case CALLA_PRECISION_INT16:
        break;
    }
    return "int16";
}

void machine_system(char *buf, size_t n)
{
    struct utsname u;
    buf[0] = '\0';
    if (uname(&u) == 0) (void)snprintf(buf, n, "%s %s %s", u.sysname, u.release, u.machine);
}

#if defined(__APPLE__)

void machine_name(char *buf, size_t n)
{
    buf[0] = '\0';
    (void)sysctlbyname("machdep.cpu.brand_string", buf, &n, NULL, 0);
}

uint64_t machine_bytes(void)
{
    uint64_t bytes = 0;
    size_t n = sizeof bytes;
    return sysctlbyname("hw.memsize", &bytes, &n, NULL, 0) == 0 ? bytes : 0;
}

void machine_memory(bench_memory *m)
{
    task_vm_info_data_t info;
    mach_msg_type_number_t n = TASK_VM_INFO_COUNT;
    *m = (bench_memory){0};
    if (task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&info, &n) != KERN_SUCCESS) return;
    m->anonymous = info.internal;
    m->mapped = info.external;
}

int machine_large_pages(void)
{
    return -1;
}

#else

/* The value of the first line "KEY: value" of a file of the system, without its newline. */
static bool line_of(const char *path, const char *key, char *buf, size_t n)
{
    char line[512];
    bool found = false;
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    while (!found && fgets(line, sizeof line, f) != NULL) {
        const size_t n_key = strlen(key);
        if (strncmp(line, key, n_key) != 0) continue;
        const char *at = line + n_key + strspn(line + n_key, " \t");
        if (*at != ':') continue;
        at += 1 + strspn(at + 1, " \t");
        (void)snprintf(buf, n, "%.*s", (int)strcspn(at, "\n"), at);
        found = true;
    }
    (void)fclose(f);
    return found;
}

static uint64_t kilobytes(const char *path, const char *key)
{
    char text[64];
    return line_of(path, key, text, sizeof text) ? strtoull(text, NULL, 10) * 1024 : 0;
}

void machine_name(char *buf, size_t n)
{
    buf[0] = '\0';
    if (!line_of("/proc/cpuinfo", "model name", buf, n))
        (void)line_of("/proc/cpuinfo", "Model", buf, n);
}

uint64_t machine_bytes(void)
{
    return kilobytes("/proc/meminfo", "MemTotal");
}

void machine_memory(bench_memory *m)
{
    *m = (bench_memory){.anonymous = kilobytes("/proc/self/status", "RssAnon"),
                        .mapped = kilobytes("/proc/self/status", "RssFile")};
}

int machine_large_pages(void)
{
    const char *path = "/proc/self/smaps_rollup";
    char text[64];
    if (!line_of(path, "FilePmdMapped", text, sizeof text)) return -1;
    const uint64_t mapped = kilobytes("/proc/self/status", "RssFile");
    return mapped != 0 && strtoull(text, NULL, 10) * 1024 > mapped / 2;
}

#endif

double machine_load(void)
{
    double load;
    return getloadavg(&load, 1) == 1 ? load : -1.0;
}
