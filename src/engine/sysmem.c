#include "engine/sysmem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#define TEXT_MAX 16384u
#define PATH_LEN 4096u

/* Finds "KEY" at the start of a line, followed by `end`; returns what stands behind it. */
static const char *find_key(const char *text, const char *key, char end)
{
    const size_t n = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, n) == 0 && line[n] == end) return line + n + 1;
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    return NULL;
}

bool sysmem_meminfo(const char *text, const char *key, uint64_t *bytes)
{
    const char *p = find_key(text, key, ':');
    if (p == NULL) return false;
    const uint64_t kb = strtoull(p, NULL, 10);
    *bytes = kb > UINT64_MAX / 1024 ? UINT64_MAX : kb * 1024;
    return true;
}

bool sysmem_stat(const char *text, const char *key, uint64_t *value)
{
    const char *p = find_key(text, key, ' ');
    if (p == NULL) return false;
    *value = strtoull(p, NULL, 10);
    return true;
}

/* Files of /proc and /sys say size 0: read until the end. */
static bool read_text(const char *path, char text[TEXT_MAX])
{
    FILE *f = fopen(path, "r");
    if (f == NULL) return false;
    const size_t n = fread(text, 1, TEXT_MAX - 1, f);
    text[n] = '\0';
    (void)fclose(f);
    return n != 0;
}

static bool read_file_of(const char *dir, const char *name, char text[TEXT_MAX])
{
    char path[PATH_LEN];
    const int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && read_text(path, text);
}

typedef struct cgroup_files {
    const char *limit, *usage, *file_key; /* file_key: page cache in memory.stat */
} cgroup_files;

static const cgroup_files cgroup_v2 = {"memory.max", "memory.current", "file"};
static const cgroup_files cgroup_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                       "total_cache"};

/* What one cgroup leaves: limit - (usage - page cache). */
static uint64_t cgroup_left(const char *dir, const cgroup_files *files)
{
    char text[TEXT_MAX];
    if (!read_file_of(dir, files->limit, text) || strncmp(text, "max", 3) == 0) return UINT64_MAX;
    const uint64_t limit = strtoull(text, NULL, 10);
    if (limit >= (uint64_t)1 << 60) return UINT64_MAX; /* v1 writes a huge number for "none" */
    uint64_t used = 0, cache = 0;
    if (read_file_of(dir, files->usage, text)) used = strtoull(text, NULL, 10);
    if (read_file_of(dir, "memory.stat", text)) (void)sysmem_stat(text, files->file_key, &cache);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* The smallest over the cgroup root/path and its parents. */
static uint64_t cgroup_chain(const char *root, const char *path, const cgroup_files *files)
{
    char dir[PATH_LEN];
    const size_t n_root = strlen(root);
    const int n = snprintf(dir, sizeof dir, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof dir) return UINT64_MAX;
    uint64_t left = UINT64_MAX;
    for (;;) {
        const uint64_t here = cgroup_left(dir, files);
        if (here < left) left = here;
        char *slash = strrchr(dir, '/');
        if (slash == NULL || (size_t)(slash - dir) < n_root) return left;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup: "0::PATH" is v2, "N:memory:PATH" (maybe among others) is v1. */
static uint64_t cgroups_left(const char *proc, const char *cgroup)
{
    char text[TEXT_MAX], v1_root[PATH_LEN];
    if (!read_file_of(proc, "self/cgroup", text)) return UINT64_MAX;
    (void)snprintf(v1_root, sizeof v1_root, "%s/memory", cgroup);
    uint64_t left = UINT64_MAX;
    for (char *line = text; line != NULL && *line != '\0';) {
        char *next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
        if (path != NULL) {
            *path++ = '\0';
            uint64_t here = UINT64_MAX;
            if (names[1] == '\0') here = cgroup_chain(cgroup, path, &cgroup_v2);
            if (strstr(names, "memory") != NULL) here = cgroup_chain(v1_root, path, &cgroup_v1);
            if (here < left) left = here;
        }
        line = next;
    }
    return left;
}

uint64_t sysmem_available_at(const char *proc, const char *cgroup)
{
    char text[TEXT_MAX];
    uint64_t available = UINT64_MAX;
    if (read_file_of(proc, "meminfo", text)) (void)sysmem_meminfo(text, "MemAvailable", &available);
    const uint64_t left = cgroups_left(proc, cgroup);
    return left < available ? left : available;
}

#if defined(__APPLE__)
/* 0 when the system does not say. Files that are mapped or cached are not in it. */
static uint64_t used_bytes(void)
{
    vm_statistics64_data_t vm;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &n) != KERN_SUCCESS)
        return 0;
    const uint64_t own = vm.internal_page_count > vm.purgeable_count
                             ? (uint64_t)vm.internal_page_count - vm.purgeable_count
                             : 0;
    return (own + vm.wire_count + vm.compressor_page_count) * vm_kernel_page_size;
}
#endif

uint64_t sysmem_available(void)
{
#if defined(__APPLE__)
    uint64_t bytes = 0;
    size_t n = sizeof bytes;
    if (sysctlbyname("hw.memsize", &bytes, &n, NULL, 0) != 0) return UINT64_MAX;
    const uint64_t used = used_bytes();
    return used < bytes ? bytes - used : 0;
#else
    return sysmem_available_at("/proc", "/sys/fs/cgroup");
#endif
}
