#include "cli/edit.h"

#if defined(CALLA_EDIT_DLOPEN)
#include <dlfcn.h>
#endif
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/attrs.h"
#include "cli/term.h"

/* What is used of libedit, so that it can be linked or opened. */
#define LIBEDIT(F)                                                                                 \
    F(el_init)                                                                                     \
    F(el_end) F(el_set) F(el_gets) F(el_source) F(history) F(history_init) F(history_end)

typedef struct libedit {
#define MEMBER(name) TYPE_OF(name) * name;
    LIBEDIT(MEMBER)
#undef MEMBER
} libedit;

struct editor {
    libedit lib;
    bool plain; /* there is no libedit */
    EditLine *el;
    History *history;
    char *history_path; /* NULL: not kept */
    bool continued, interrupted;
};

static bool libedit_open(libedit *lib)
{
#if defined(CALLA_EDIT_DLOPEN)
    void *file = dlopen(CALLA_EDIT_DLOPEN, RTLD_NOW | RTLD_LOCAL);
    if (!file) return false;
#define FIND(name)                                                                                 \
    void *p_##name = dlsym(file, #name);                                                           \
    if (!p_##name) return false;                                                                   \
    memcpy(&lib->name, &p_##name, sizeof p_##name);
    LIBEDIT(FIND)
#undef FIND
#else
#define TAKE(name) lib->name = name;
    LIBEDIT(TAKE)
#undef TAKE
#endif
    return true;
}

/* ---- The editor --------------------------------------------------------------------------- */

static editor *current; /* libedit's callbacks get nothing but its own object */

static char *prompt_text(EditLine *el ATTR_UNUSED)
{
    static char first[] = "> ", next[] = ". ";
    return current->continued ? next : first;
}

/* The terminal sends no signals while a line is edited: Ctrl-C and Ctrl-Z are keys like others. */
static unsigned char key_interrupt(EditLine *el ATTR_UNUSED, int key ATTR_UNUSED)
{
    current->interrupted = true;
    return CC_NEWLINE;
}

static unsigned char key_suspend(EditLine *el ATTR_UNUSED, int key ATTR_UNUSED)
{
    kill(0, SIGTSTP); /* libedit restores the terminal around it (EL_SIGNAL) */
    return CC_REDISPLAY;
}

/* libedit edits in the characters of the locale: make it UTF-8 whatever LANG says. */
static void set_utf8_locale(void)
{
    static const char *const names[] = {"", "C.UTF-8", "en_US.UTF-8", "UTF-8"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (setlocale(LC_CTYPE, names[i]) && !strcmp(nl_langinfo(CODESET), "UTF-8")) return;
}

/* The file of edit.h; makes its folders. */
static char *find_history_path(void)
{
#if defined(__APPLE__)
    static const char place[] = "%s/Library/Application Support";
#else
    static const char place[] = "%s/.local/state";
#endif
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    strbuf path = {0};
    if (state && state[0] == '/')
        strbuf_puts(&path, state);
    else if (home && home[0] == '/')
        strbuf_printf(&path, place, home);
    else
        return NULL;
    strbuf_puts(&path, "/calla/history");
    for (size_t i = 1; !path.failed && i < path.len; i++) {
        if (path.data[i] != '/') continue;
        path.data[i] = '\0';
        mkdir(path.data, 0700); /* mostly there already; a real failure shows when saving */
        path.data[i] = '/';
    }
    if (!path.failed) return path.data;
    strbuf_deinit(&path);
    return NULL;
}

static bool start(editor *e)
{
    const libedit *lib = &e->lib;
    HistEvent ev;
    e->el = lib->el_init("calla", stdin, stdout, stderr);
    e->history = lib->history_init();
    if (!e->el || !e->history) return false;
    lib->history(e->history, &ev, H_SETSIZE, 1000);
    lib->history(e->history, &ev, H_SETUNIQUE, 1);
    e->history_path = find_history_path();
    if (e->history_path) lib->history(e->history, &ev, H_LOAD, e->history_path);
    lib->el_set(e->el, EL_PROMPT, prompt_text);
    lib->el_set(e->el, EL_EDITOR, "emacs");
    lib->el_set(e->el, EL_HIST, lib->history, e->history);
    lib->el_set(e->el, EL_SIGNAL, 1);
    lib->el_set(e->el, EL_ADDFN, "calla-interrupt", "Drop this line", key_interrupt);
    lib->el_set(e->el, EL_ADDFN, "calla-suspend", "Suspend the program", key_suspend);
    lib->el_set(e->el, EL_SETTY, "-d", "-isig", NULL);
    lib->el_source(e->el, NULL); /* ~/.editrc */
    lib->el_set(e->el, EL_BIND, "^C", "calla-interrupt", NULL);
    lib->el_set(e->el, EL_BIND, "^Z", "calla-suspend", NULL);
    return true;
}

editor *editor_create(void)
{
    editor *e = mem_alloc(sizeof *e);
    if (!e) return NULL;
    *e = (editor){0};
    set_utf8_locale();
    e->plain = !libedit_open(&e->lib);
    if (e->plain || start(e)) return e;
    editor_destroy(e);
    return NULL;
}

void editor_destroy(editor *e)
{
    if (!e) return;
    if (e->el) e->lib.el_end(e->el);
    if (e->history) e->lib.history_end(e->history);
    mem_free(e->history_path);
    mem_free(e);
}

static void remember(editor *e, const char *line)
{
    HistEvent ev;
    e->lib.history(e->history, &ev, H_ENTER, line);
    if (!e->history_path) return;
    const mode_t old = umask(077);
    e->lib.history(e->history, &ev, H_SAVE, e->history_path);
    umask(old);
}

/* ---- Lines -------------------------------------------------------------------------------- */

static line_result read_plain(const editor *e, strbuf *out)
{
    term_restore(); /* the terminal's own editing */
    fputs(e->continued ? ". " : "> ", stdout);
    fflush(stdout);
    int c;
    bool any = false;
    while ((c = getchar()) != EOF && c != '\n') {
        strbuf_putc(out, (char)c);
        any = true;
    }
    term_hold_input();
    if (c != EOF || any) return LINE_OK;
    putchar('\n');
    clearerr(stdin);
    return LINE_END;
}

line_result editor_read(editor *e, bool continued, strbuf *out)
{
    int n = 0;
    e->continued = continued;
    e->interrupted = false;
    if (e->plain) return read_plain(e, out);
    current = e;
    const char *line = e->lib.el_gets(e->el, &n);
    term_hold_input();
    if (e->interrupted || !line || n <= 0) {
        putchar('\n');
        return e->interrupted ? LINE_INTERRUPTED : LINE_END;
    }
    size_t len = (size_t)n;
    if (line[len - 1] == '\n') len--;
    if (len > 0) remember(e, line);
    strbuf_append(out, line, len);
    return LINE_OK;
}
