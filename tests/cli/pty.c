/* pty SCRIPT COMMAND ARG...: runs a command on a terminal of its own and talks with it.
 *
 * Each line of SCRIPT is one step; empty lines and lines with # are skipped:
 *   send TEXT     types TEXT and Return
 *   keys TEXT     types TEXT only; ^X means a control character, \e escape
 *   expect TEXT   waits until TEXT appears behind what earlier steps expected
 *   absent TEXT   TEXT does not appear anywhere up to now
 *   exit N        waits for the end of the program and its exit code
 * Prints "N passed, N failed": expect, absent and exit count. The first failure ends the run and
 * shows the screen. PTY_TIMEOUT: seconds for each step (120).
 */
#define _XOPEN_SOURCE 600 /* posix_openpt */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static char screen[1 << 20]; /* all output so far */
static size_t n_screen, at;  /* at: where the next expect begins */
static int master = -1;
static pid_t child;
static double timeout_s = 120;

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Reads what has come within 0.05 s; false at the end. */
static bool pump(void)
{
    struct pollfd p = {.fd = master, .events = POLLIN};
    if (poll(&p, 1, 50) <= 0) return true;
    if (n_screen + 1 >= sizeof screen) return false;
    const ssize_t n = read(master, screen + n_screen, sizeof screen - 1 - n_screen);
    if (n <= 0) return false;
    n_screen += (size_t)n;
    return true;
}

static bool start(char **argv)
{
    const struct winsize size = {.ws_row = 24, .ws_col = 80};
    master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return false;
    const char *name = ptsname(master);
    if (!name) return false;
    child = fork();
    if (child != 0) return child > 0;
    setsid();
    const int slave = open(name, O_RDWR);
    if (slave < 0) _exit(126);
    ioctl(slave, TIOCSCTTY, 0);
    ioctl(slave, TIOCSWINSZ, &size);
    dup2(slave, 0);
    dup2(slave, 1);
    dup2(slave, 2);
    close(master);
    setenv("TERM", "xterm", 1);
    execvp(argv[0], argv);
    _exit(127);
}

static void type(const char *text)
{
    const size_t n = strlen(text);
    if (write(master, text, n) != (ssize_t)n) perror("pty: write");
}

/* Replaces \e, and with `keys` also ^X, in place. */
static char *unescape(char *text, bool keys)
{
    char *out = text;
    for (const char *in = text; *in; in++) {
        if (in[0] == '\\' && in[1] == 'e') {
            *out++ = '\033';
            in++;
        } else if (keys && in[0] == '^' && in[1]) {
            *out++ = (char)(*++in & 0x1f);
        } else {
            *out++ = *in;
        }
    }
    *out = '\0';
    return text;
}

/* NUL bytes do not occur: the program writes text. */
static bool expect(const char *text)
{
    const double end = now() + timeout_s;
    bool open = true;
    for (;;) {
        screen[n_screen] = '\0';
        const char *found = strstr(screen + at, text);
        if (found) {
            at = (size_t)(found - screen) + strlen(text);
            return true;
        }
        if (!open || now() > end) return false;
        open = pump();
    }
}

static bool expect_exit(int code)
{
    const double end = now() + timeout_s;
    int status = 0;
    pid_t got;
    while ((got = waitpid(child, &status, WNOHANG)) == 0 && now() < end)
        pump();
    if (got != child) return false;
    child = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == code) return true;
    printf("ended with status 0x%x\n", (unsigned)status);
    return false;
}

/* -1: nothing to count; else whether the step holds. */
static int step(char *line)
{
    line[strcspn(line, "\n")] = '\0';
    if (!*line || *line == '#') return -1;
    char *arg = strchr(line, ' ');
    if (arg) *arg++ = '\0';
    if (!arg) arg = line + strlen(line);
    if (!strcmp(line, "send")) return type(arg), type("\r"), -1;
    if (!strcmp(line, "keys")) return type(unescape(arg, true)), -1;
    if (!strcmp(line, "expect")) return expect(unescape(arg, false));
    if (!strcmp(line, "absent"))
        return screen[n_screen] = '\0', !strstr(screen, unescape(arg, false));
    if (!strcmp(line, "exit")) return expect_exit((int)strtol(arg, NULL, 10));
    return false;
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    const char *limit = getenv("PTY_TIMEOUT");
    if (limit) timeout_s = strtod(limit, NULL);
    FILE *script = fopen(argv[1], "r");
    if (!script || !start(argv + 2)) {
        printf("%s: %s\n0 passed, 1 failed\n", argv[1], strerror(errno));
        return 1;
    }
    char line[1024];
    int passed = 0, failed = 0, number = 0;
    while (!failed && fgets(line, sizeof line, script)) {
        char copy[1024];
        number++;
        memcpy(copy, line, sizeof copy);
        const int held = step(line);
        passed += held == 1;
        if (held == 0) {
            failed++;
            screen[n_screen] = '\0';
            printf("%s:%d: %s--- screen\n%s\n---\n", argv[1], number, copy, screen);
        }
    }
    if (child > 0) kill(child, SIGKILL);
    fclose(script);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
