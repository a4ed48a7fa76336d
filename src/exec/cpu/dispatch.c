/* dispatch.c - which kernels this CPU runs. */
#include "exec/cpu/registry.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "base/error.h"

static const char *const variant_names[N_VARIANTS] = VARIANT_NAMES;

#if defined(__x86_64__)
/* Not every compiler's CPU_SUPPORTS knows it. */
static bool has_avxvnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 4) != 0;
}
#elif defined(__APPLE__)
static bool has_i8mm(void)
{
    int has = 0;
    size_t n = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &n, NULL, 0) == 0 && has != 0;
}
#elif defined(__aarch64__) && defined(__linux__)
static bool has_i8mm(void)
{
    return (getauxval(AT_HWCAP2) & (1ul << 13)) != 0; /* HWCAP2_I8MM */
}
#endif

uint32_t cpu_features(void)
{
    uint32_t f = 0;
#if defined(__x86_64__)
    if (CPU_SUPPORTS("avx2") && CPU_SUPPORTS("fma")) f |= CPU_AVX2;
    if (f != 0 && CPU_SUPPORTS("avx512f") && CPU_SUPPORTS("avx512bw") && CPU_SUPPORTS("avx512dq") &&
        CPU_SUPPORTS("avx512vl"))
        f |= CPU_AVX512;
    if ((f & CPU_AVX512) != 0 && CPU_SUPPORTS("avx512vnni")) f |= CPU_VNNI;
    if ((f & CPU_AVX2) != 0 && has_avxvnni()) f |= CPU_AVXVNNI;
#elif defined(__aarch64__)
    f |= CPU_NEON;    /* part of the architecture */
#if defined(__APPLE__)
    f |= CPU_DOTPROD; /* all of them */
    if (has_i8mm()) f |= CPU_I8MM;
#elif defined(__linux__)
    if ((getauxval(AT_HWCAP) & (1ul << 20)) != 0) f |= CPU_DOTPROD; /* HWCAP_ASIMDDP */
    if ((f & CPU_DOTPROD) != 0 && has_i8mm()) f |= CPU_I8MM;
#endif
#endif
    return f;
}

/* Has this build a kernel of the variant that this CPU can run? */
static bool variant_available(int variant)
{
    static const struct {
        int variant;
        uint32_t needs;
    } rows[] = {
#define KERNEL(name, variant, needs) {VARIANT_##variant, needs},
#include "exec/cpu/registry.inc"
#undef KERNEL
    };
    const uint32_t have = cpu_features();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].variant == variant && (rows[i].needs & ~have) == 0) return true;
    return false;
}

static calla_status refuse(const char *limit, calla_error *err)
{
    char list[64] = "";
    size_t len = 0;
    for (int v = 0; v < N_VARIANTS; v++)
        if (variant_available(v) && len < sizeof list)
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", v > 0 ? ", " : "",
                                    variant_names[v]);
    return err_set(err, CALLA_ERR_ARGUMENT,
                   "CPU kernels \"%s\" are not available; this CPU and build have %s", limit, list);
}

calla_status cpu_kernels_select(cpu_kernels *out, const char *limit, calla_error *err)
{
    int top = -1;
    for (int v = 0; v < N_VARIANTS; v++)
        if (variant_available(v) && (limit == NULL || strcmp(limit, variant_names[v]) == 0))
            top = v;
    if (top < 0) return refuse(limit, err);

    const uint32_t have = cpu_features();
    *out = (cpu_kernels){.name = variant_names[top]};
#define KERNEL(kernel, variant, needs)                                                             \
    if (VARIANT_##variant <= top && ((needs) & ~have) == 0) out->kernel = variant##_##kernel;
#include "exec/cpu/registry.inc"
#undef KERNEL
    return CALLA_OK;
}
