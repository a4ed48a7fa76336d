/* plugin.c - for qemu-user: counts the instructions between two getppid of the program and writes
 * them to standard output, with a line's end. What it uses of QEMU's plugin interface (version 1,
 * as in qemu/qemu-plugin.h) is declared here, as Debian has no package with the header. */
#include <stdint.h>
#include <stdio.h>

#define EXPORT        __attribute__((visibility("default")))
#define ARM64_GETPPID 173

typedef uint64_t plugin_id;
struct tb;

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*f)(plugin_id, struct tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct tb *tb, int op, void *counter, uint64_t add);
void qemu_plugin_register_vcpu_syscall_cb(plugin_id id,
                                          void (*f)(plugin_id, unsigned, int64_t, uint64_t,
                                                    uint64_t, uint64_t, uint64_t, uint64_t,
                                                    uint64_t, uint64_t, uint64_t));
size_t qemu_plugin_tb_n_insns(const struct tb *tb);

EXPORT int qemu_plugin_version = 1;
EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv);

static uint64_t counter, at_mark;
static int n_marks;

/* A block without a jump: all of it is executed, or a fault ends the program. */
static void on_block(plugin_id id, struct tb *tb)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &counter, qemu_plugin_tb_n_insns(tb));
}

static void on_syscall(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b,
                       uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
    (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number != ARM64_GETPPID) return;
    if (n_marks++ % 2 == 1) {
        printf("%llu\n", (unsigned long long)(counter - at_mark));
        (void)fflush(stdout);
    }
    at_mark = counter;
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
    return 0;
}
