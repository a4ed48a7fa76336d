// One text of the Metal kernels for the emulator, at one rung: MSL_TEXT the file, MSL_NAME its name,
// KX_FAMILY its number, MSL_RUNG the rung (CALLA_RUNG is defined as the driver does).
#include "msl.h"
#include "shim_run.h"

#define MSL_JOIN3(a, b, c, d) a##b##c##d
#define MSL_JOIN(a, b, c, d)  MSL_JOIN3(a, b, c, d)
#define MSL_SPACE             MSL_JOIN(msl_, MSL_NAME, _, MSL_RUNG)

namespace MSL_SPACE {
#include MSL_TEXT

#define K(name, threads, n_bindings)                                                               \
    static_assert(msl_entry<name>::N_BINDINGS == (n_bindings), "bindings of " #name);
#include "kernels/kernels.inc"
#undef K

static const simt_kernel rows[] = {
#define K(name, threads, n_bindings)                                                               \
    {#name, threads, n_bindings, msl_entry<name>::ARGS_BYTES, msl_entry<name>::run, ""},
#include "kernels/kernels.inc"
#undef K
    {nullptr, 0, 0, 0, nullptr, nullptr}};

static const unsigned char text[] = {
#include MSL_BYTES
};
} // namespace MSL_SPACE

extern "C" {
extern const msl_library MSL_JOIN(msl_library_, MSL_NAME, _, MSL_RUNG);
const msl_library MSL_JOIN(msl_library_, MSL_NAME, _,
                           MSL_RUNG) = {MSL_SPACE::rows, MSL_SPACE::text, sizeof MSL_SPACE::text};
}
