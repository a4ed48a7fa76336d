#include "cli/term.h"
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include "base/pool.h"

#define PROGRESS_DELAY    0.3
#define PROGRESS_INTERVAL 0.1

int term_width(FILE *f)
{
    struct winsize ws;
    memset(&ws, 0, sizeof ws);
    if (ioctl(fileno(f), TIOCGWINSZ, &ws) != 0 || ws.ws_col == 0) return 80;
    return ws.ws_col < 40 ? 40 : (int)ws.ws_col;
}

bool term_is_tty(FILE *f)
{
    return isatty(fileno(f)) == 1;
}

bool term_colors(FILE *f)
{
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return term_is_tty(f) && !(no_color && *no_color) && !(term && !strcmp(term, "dumb"));
}

static struct termios original;
static volatile sig_atomic_t original_known;

void term_hold_input(void)
{
    struct termios t;
    if (tcgetattr(STDIN_FILENO, &t) != 0) return;
    if (!original_known) {
        original = t;
        original_known = 1;
    }
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    t.c_lflag |= ISIG;
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
}

void term_restore(void)
{
    if (original_known) tcsetattr(STDIN_FILENO, TCSADRAIN, &original);
}

bool term_write(FILE *f, const char *text, size_t n, bool safe)
{
    if (!safe) return fwrite(text, 1, n, f) == n;
    size_t begin = 0; /* of what is not yet written */
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool c0 = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
        const bool c1 = c == 0xc2 && i + 1 < n && (unsigned char)text[i + 1] < 0xa0;
        if (!c0 && !c1) continue;
        fwrite(text + begin, 1, i - begin, f);
        if (c0) {
            fputc('^', f);
            fputc(c ^ 0x40, f);
        } else {
            fputs("\xef\xbf\xbd", f);
            i++;
        }
        begin = i + 1;
    }
    fwrite(text + begin, 1, n - begin, f);
    return !ferror(f);
}

void term_progress_begin(term_progress *p, const char *label, const char *unit)
{
    *p = (term_progress){
        .label = label, .unit = unit, .started = time_now(), .on = term_is_tty(stderr)};
}

/* 950, 12.3k, 4.5M */
static void format_count(char *buf, size_t n, double v)
{
    if (v < 10000)
        snprintf(buf, n, "%.0f", v);
    else if (v < 1e6)
        snprintf(buf, n, "%.1fk", v / 1e3);
    else if (v < 1e9)
        snprintf(buf, n, "%.1fM", v / 1e6);
    else
        snprintf(buf, n, "%.1fG", v / 1e9);
}

/* 950 B, 12.3 kB, 4.57 GB */
static void format_bytes(char *buf, size_t n, double v)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    size_t i = 0;
    for (; v >= 1000 && i < 4; i++)
        v /= 1000;
    snprintf(buf, n, i == 0 ? "%.0f %s" : i < 3 ? "%.1f %s" : "%.2f %s", v, units[i]);
}

static void format_left(char *buf, size_t n, double seconds)
{
    const unsigned long s = seconds < 1e6 ? (unsigned long)seconds : 1000000;
    if (s < 100)
        snprintf(buf, n, ", %lu s left", s);
    else if (s < 3600)
        snprintf(buf, n, ", %lu:%02lu left", s / 60, s % 60);
    else
        snprintf(buf, n, ", %lu:%02lu:%02lu left", s / 3600, s / 60 % 60, s % 60);
}

static void describe_bytes(term_progress *p, double now, double done, double total, char *tail,
                           size_t size)
{
    char s_done[32], s_total[32], s_rate[32], left[64] = "";
    const double since = now - (p->drawn > 0 ? p->drawn : p->started);
    const double latest = (done - p->last) / since;
    /* Averages over some five seconds, from the beginning on. */
    const double age = now - p->started;
    p->rate += (latest - p->rate) * (age < 5 ? since / age : since / (since + 5));
    p->last = done;
    format_bytes(s_done, sizeof s_done, done);
    format_bytes(s_total, sizeof s_total, total);
    format_bytes(s_rate, sizeof s_rate, p->rate > 0 ? p->rate : 0);
    if (p->rate > 1) format_left(left, sizeof left, (total - done) / p->rate);
    snprintf(tail, size, " %s of %s, %s/s%s", s_done, s_total, s_rate, left);
}

static void describe(const term_progress *p, double now, double done, double total, char *tail,
                     size_t size)
{
    char s_done[32], s_total[32], s_rate[32];
    const double rate = done / (now - p->started);
    format_count(s_done, sizeof s_done, done);
    format_count(s_total, sizeof s_total, total);
    format_count(s_rate, sizeof s_rate, rate);
    const int n =
        snprintf(tail, size, " %s/%s %s, %s %s/s", s_done, s_total, p->unit, s_rate, p->unit);
    if (rate > 0 && n > 0 && (size_t)n < size)
        snprintf(tail + n, size - (size_t)n, ", %.0f s left", (total - done) / rate);
}

void term_progress_update(term_progress *p, double done, double total)
{
    if (!p->begun) p->last = done;
    p->begun = true;
    if (!p->on || total <= 0 || done >= total) return;
    const double now = time_now(), elapsed = now - p->started;
    if (elapsed < PROGRESS_DELAY || (p->drawn > 0 && now - p->drawn < PROGRESS_INTERVAL)) return;

    char tail[192], line[512];
    if (!strcmp(p->unit, TERM_BYTES))
        describe_bytes(p, now, done, total, tail, sizeof tail);
    else if (!strcmp(p->unit, TERM_ESTIMATE))
        format_left(tail, sizeof tail, total - done);
    else
        describe(p, now, done, total, tail, sizeof tail);
    p->drawn = now;
    const int columns = term_width(stderr) - 1;
    int bar = columns - (int)strlen(p->label) - (int)strlen(tail) - 10;
    if (bar > 30) bar = 30;
    char cells[32] = "";
    const double part = done / total;
    for (int i = 0; i < bar; i++)
        cells[i] = i < (int)(part * bar) ? '#' : '.';
    const int n = snprintf(line, sizeof line, "%s %3.0f %% %s%s%s%s", p->label, part * 100,
                           bar > 3 ? "[" : "", bar > 3 ? cells : "", bar > 3 ? "]" : "", tail);
    if (n > columns) line[columns] = '\0'; /* never wraps: only one line can be cleared */
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
}

void term_progress_clear(term_progress *p)
{
    if (p->on && p->drawn > 0) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

void term_progress_end(term_progress *p)
{
    term_progress_clear(p);
    p->on = false;
}
