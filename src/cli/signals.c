#include "cli/signals.h"
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "base/attrs.h"
#include "cli/cli.h"
#include "cli/term.h"

static _Atomic(calla_session *) target;
static volatile sig_atomic_t received;
static volatile sig_atomic_t colored; /* stderr may be in the middle of dim text */
static volatile sig_atomic_t stderr_is_tty;
static struct sigaction old_int, old_term;

static void on_signal(int sig)
{
    if (received) {
        term_restore();
        if (colored && write(STDERR_FILENO, TERM_RESET "\n", sizeof TERM_RESET) < 0) {
            /* nothing left to do about it */
        }
        _exit(128 + sig);
    }
    received = sig;
    calla_session *session = atomic_load(&target);
    if (session) calla_session_cancel(session);
}

/* Interrupted calls go on; SIGINT and SIGTERM wait for the handler's end. */
static void handle(int sig, void (*handler)(int), struct sigaction *old)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = handler;
    sigemptyset(&sa.sa_mask);
    sigaddset(&sa.sa_mask, SIGINT);
    sigaddset(&sa.sa_mask, SIGTERM);
    sa.sa_flags = SA_RESTART;
    sigaction(sig, &sa, old);
}

/* Only async-signal-safe calls; atomic_flag is lock-free. */
static void on_bus(int sig, siginfo_t *info, void *context ATTR_UNUSED)
{
    static const char sentence[] = "\ncalla: a file of the model can no longer be read: it was cut "
                                   "short while in use, or its disk failed\n";
    if (info->si_code != BUS_ADRERR) { /* no file explains it: die of it */
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    /* Every thread of the pool may get here; the first one ends the process for all. */
    static atomic_flag first = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&first))
        (void)pause();
    term_restore();
    const size_t skip = stderr_is_tty ? 0 : 1; /* the line break ends what is half written there */
    if (write(STDERR_FILENO, sentence + skip, sizeof sentence - 1 - skip) < 0) {
        /* nothing left to do about it */
    }
    _exit(CLI_FAILED);
}

void signals_explain_bus(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_bus;
    sigemptyset(&sa.sa_mask);
    sa.sa_flags = SA_SIGINFO;
    stderr_is_tty = term_is_tty(stderr);
    sigaction(SIGBUS, &sa, NULL);
}

static void on_nothing(int sig ATTR_UNUSED)
{
}

void signals_ignore_interrupt(void)
{
    handle(SIGINT, on_nothing, NULL);
}

void signals_begin(calla_session *session)
{
    received = 0;
    colored = term_colors(stderr);
    atomic_store(&target, session);
    handle(SIGINT, on_signal, &old_int);
    handle(SIGTERM, on_signal, &old_term);
}

int signals_received(void)
{
    return received;
}

void signals_end(void)
{
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    atomic_store(&target, NULL);
}

static volatile sig_atomic_t stop_signal;

static void on_stop(int number)
{
    stop_signal = number;
}

void signals_catch_stop(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_stop;
    (void)sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        (void)sigaction(numbers[i], &sa, NULL);
}

int signals_stop(void)
{
    return (int)stop_signal;
}
