#include "bench/thermal.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bench_thermal thermal_between(const thermal_state *before, const thermal_state *after)
{
    bench_thermal t = {before->celsius, after->celsius, -1};
    if (before->slowed >= 0 && after->slowed >= 0) t.throttled = after->slowed > before->slowed;
    if (before->slow_now >= 0 || after->slow_now >= 0)
        t.throttled = before->slow_now > 0 || after->slow_now > 0 || t.throttled > 0;
    return t;
}

/* ---- NVIDIA ---- */

#define NVML_GPU       0     /* of nvmlDeviceGetTemperature */
#define NVML_SLOW_HEAT 0x60u /* software and hardware thermal slowdown */

typedef struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_index)(unsigned i, void **device);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*reasons)(void *device, unsigned long long *mask);
} nvml;

static bool find(void *lib, const char *name, void *to)
{
    void *p = dlsym(lib, name);
    memcpy(to, &p, sizeof p); /* ISO C has no conversion from void * to a function */
    return p != NULL;
}

/* The device that CUDA calls the first. */
static unsigned first_device(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    return list != NULL && list[0] >= '0' && list[0] <= '9' ? (unsigned)strtoul(list, NULL, 10) : 0;
}

static void read_nvml(thermal_state *out)
{
    nvml n;
    void *device = NULL, *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) return;
    if (find(lib, "nvmlInit_v2", &n.init) && find(lib, "nvmlShutdown", &n.shutdown) &&
        find(lib, "nvmlDeviceGetHandleByIndex_v2", &n.by_index) &&
        find(lib, "nvmlDeviceGetTemperature", &n.temperature) &&
        find(lib, "nvmlDeviceGetCurrentClocksThrottleReasons", &n.reasons) && n.init() == 0) {
        unsigned celsius = 0;
        unsigned long long mask = 0;
        if (n.by_index(first_device(), &device) == 0) {
            if (n.temperature(device, NVML_GPU, &celsius) == 0) out->celsius = celsius;
            if (n.reasons(device, &mask) == 0) out->slow_now = (mask & NVML_SLOW_HEAT) != 0;
        }
        (void)n.shutdown();
    }
    (void)dlclose(lib);
}

/* ---- Processor ---- */

#if defined(__APPLE__)

/* Of libSystem: notify(3). Found by name, since not every set of headers declares them. */
void thermal_read_at(thermal_state *out, const char *sys)
{
    uint32_t (*watch)(const char *name, int *token);
    uint32_t (*state)(int token, uint64_t *value);
    uint32_t (*cancel)(int token);
    int token;
    uint64_t pressure;
    (void)sys;
    *out = (thermal_state){(double)NAN, -1, -1};
    if (!find(RTLD_DEFAULT, "notify_register_check", &watch) ||
        !find(RTLD_DEFAULT, "notify_get_state", &state) ||
        !find(RTLD_DEFAULT, "notify_cancel", &cancel) ||
        watch("com.apple.system.thermalpressurelevel", &token) != 0)
        return;
    if (state(token, &pressure) == 0) out->slow_now = pressure != 0;
    (void)cancel(token);
}

#else

#define ZONES_MAX   64u
#define SENSORS_MAX 32u
#define CPUS_MAX    1024u

static bool read_text(char *buf, size_t n, const char *path)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    const bool ok = fgets(buf, (int)n, f) != NULL;
    (void)fclose(f);
    if (ok) buf[strcspn(buf, "\n")] = '\0';
    return ok;
}

/* Thousandths of a degree; what is no temperature of a running machine is ignored. */
static void take_celsius(thermal_state *out, const char *path)
{
    char text[64];
    if (!read_text(text, sizeof text, path)) return;
    const double c = strtod(text, NULL) / 1000.0;
    if (c > 0.0 && c < 150.0 && !(c <= out->celsius)) out->celsius = c;
}

static bool is_processor(const char *name)
{
    static const char *const words[] = {"x86_pkg_temp", "cpu",     "CPU",   "soc",
                                        "coretemp",     "k10temp", "acpitz"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]) != NULL) return true;
    return false;
}

static void read_sensors(thermal_state *out, const char *sys)
{
    char path[512], name[64];
    for (unsigned i = 0; i < ZONES_MAX; i++) {
        (void)snprintf(path, sizeof path, "%s/class/thermal/thermal_zone%u/type", sys, i);
        if (!read_text(name, sizeof name, path)) break;
        if (!is_processor(name)) continue;
        (void)snprintf(path, sizeof path, "%s/class/thermal/thermal_zone%u/temp", sys, i);
        take_celsius(out, path);
    }
    for (unsigned i = 0; i < SENSORS_MAX; i++) {
        (void)snprintf(path, sizeof path, "%s/class/hwmon/hwmon%u/name", sys, i);
        if (!read_text(name, sizeof name, path)) break;
        if (!is_processor(name)) continue;
        (void)snprintf(path, sizeof path, "%s/class/hwmon/hwmon%u/temp1_input", sys, i);
        take_celsius(out, path);
    }
}

void thermal_read_at(thermal_state *out, const char *sys)
{
    static const char *const counters[] = {"core_throttle_count", "package_throttle_count"};
    char path[512], text[64];
    *out = (thermal_state){(double)NAN, -1, -1};
    read_sensors(out, sys);
    for (unsigned cpu = 0; cpu < CPUS_MAX; cpu++) {
        bool any = false;
        for (size_t i = 0; i < 2; i++) {
            (void)snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%u/thermal_throttle/%s",
                           sys, cpu, counters[i]);
            if (!read_text(text, sizeof text, path)) continue;
            any = true;
            out->slowed = (out->slowed < 0 ? 0 : out->slowed) + strtoll(text, NULL, 10);
        }
        if (!any) break;
    }
}

#endif

void thermal_read(thermal_state *out, bool gpu)
{
    thermal_read_at(out, "/sys");
    if (!gpu) return;
    *out = (thermal_state){(double)NAN, -1, -1};
    read_nvml(out);
}
