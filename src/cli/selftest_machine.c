/* What the machine is, for the report of `calla selftest`. */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "base/pool.h"
#include "cli/selftest.h"
#include "engine/sysmem.h"

#if defined(__APPLE__)
static void note_processor(selftest_log *t)
{
    static const char *const names[] = {"machdep.cpu.brand_string", "hw.model",
                                        "kern.osproductversion", "kern.osversion"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[128] = "";
        size_t n = sizeof text - 1;
        if (sysctlbyname(names[i], text, &n, NULL, 0) == 0)
            selftest_note(t, "%s: %s", names[i], text);
    }
}
#else
static void note_processor(selftest_log *t)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "model name", 10) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        const char *name = strchr(line, ':');
        if (name != NULL) selftest_note(t, "processor: %s", name + 1 + strspn(name + 1, " "));
        break;
    }
    if (f != NULL) (void)fclose(f);
}
#endif

void selftest_machine(selftest_log *t)
{
    struct utsname u;
    selftest_note(t, "calla %s", calla_version());
    if (uname(&u) == 0) selftest_note(t, "system: %s %s %s", u.sysname, u.release, u.machine);
    note_processor(t);
    selftest_note(t, "threads: %u, memory available: %.1f GiB", cpu_count(),
                  (double)sysmem_available() / (1024.0 * 1024.0 * 1024.0));
}
