#include "cli/config.h"
#include <stdlib.h>
#include <string.h>
#include "base/file.h"

void config_close(config_file *c)
{
    mem_free(c->path);
    mem_free(c->text);
    mem_free(c->entries);
    memset(c, 0, sizeof *c);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

static char *skip_space(char *p)
{
    while (is_space(*p))
        p++;
    return p;
}

static bool is_end(const char *p)
{
    return *p == '\0' || *p == '#';
}

/* A word of letters, digits and hyphens at *p; NUL-terminated when what follows is taken. */
static char *take_word(char **p)
{
    char *begin = *p;
    while ((**p >= 'a' && **p <= 'z') || (**p >= '0' && **p <= '9') || **p == '-')
        ++*p;
    return begin;
}

/* "value" with its quotes; *p moves past the closing one. False: there is none. */
static bool take_quoted(char **p, const char **value)
{
    char *to = ++*p;
    *value = to;
    for (; **p && **p != '"'; ++*p) {
        char c = **p;
        if (c == '\\' && ((*p)[1] == '"' || (*p)[1] == '\\' || (*p)[1] == 'n'))
            c = *++*p == 'n' ? '\n' : **p;
        *to++ = c;
    }
    if (!**p) return false;
    ++*p;
    *to = '\0';
    return true;
}

static void take_plain(char **p, const char **value)
{
    char *end = *p;
    *value = *p;
    for (; **p && !(**p == '#' && is_space((*p)[-1])); ++*p)
        if (!is_space(**p)) end = *p + 1;
    char *rest = *p;
    if (**p == '#') rest = *p + strlen(*p);
    *end = '\0';
    *p = rest;
}

static const char *parse_line(char *p, config_entry *e)
{
    p = skip_space(p);
    e->key = take_word(&p);
    char *key_end = p;
    if (p == e->key) return "a key or [section]";
    p = skip_space(p);
    if (*p != '=') return "'=' after the key";
    *key_end = '\0';
    p = skip_space(p + 1);
    if (is_end(p)) return "a value after '='";
    if (*p != '"') {
        take_plain(&p, &e->value);
        return NULL;
    }
    if (!take_quoted(&p, &e->value)) return "a closing quote";
    p = skip_space(p);
    return is_end(p) ? NULL : "nothing after the closing quote";
}

static const char *parse_section(char *p, const char **section)
{
    p = skip_space(p + 1);
    char *name = take_word(&p);
    char *end = p;
    p = skip_space(p);
    if (end == name || *p != ']') return "a section like [serve]";
    p = skip_space(p + 1);
    if (!is_end(p)) return "nothing after the section";
    *end = '\0';
    *section = name;
    return NULL;
}

static calla_status add_entry(config_file *c, const config_entry *e, calla_error *err)
{
    for (size_t i = 0; i < c->n; i++)
        if (!strcmp(c->entries[i].key, e->key) && !strcmp(c->entries[i].section, e->section))
            return err_set(err, CALLA_ERR_FORMAT, "%s:%d: '%s' is on line %d already", c->path,
                           e->line, e->key, c->entries[i].line);
    if (c->n == CONFIG_ENTRIES_MAX)
        return err_set(err, CALLA_ERR_FORMAT, "%s:%d: expected at most %u keys, found more",
                       c->path, e->line, CONFIG_ENTRIES_MAX);
    c->entries[c->n++] = *e;
    return CALLA_OK;
}

calla_status config_parse(config_file *c, char *text, size_t n, calla_error *err)
{
    const char *section = "";
    int line = 0;
    c->text = text;
    c->entries = mem_array(CONFIG_ENTRIES_MAX, sizeof *c->entries);
    if (!c->entries) return err_set(err, CALLA_ERR_MEMORY, "no memory for the configuration");
    if (memchr(text, '\0', n))
        return err_set(err, CALLA_ERR_FORMAT, "%s: expected text, found a NUL byte", c->path);
    for (char *p = text, *next; p; p = next) {
        config_entry e = {.section = section, .line = ++line};
        const char *wanted = NULL;
        next = strchr(p, '\n');
        if (next) *next++ = '\0';
        const size_t len = strlen(p);
        if (len > 0 && p[len - 1] == '\r') p[len - 1] = '\0';
        char *begin = skip_space(p);
        if (is_end(begin)) continue;
        if (*begin == '[')
            wanted = parse_section(begin, &section);
        else
            wanted = parse_line(begin, &e);
        if (wanted)
            return err_set(err, CALLA_ERR_FORMAT, "%s:%d: expected %s", c->path, line, wanted);
        if (*begin == '[') continue;
        const calla_status st = add_entry(c, &e, err);
        if (st != CALLA_OK) return st;
    }
    return CALLA_OK;
}

/* *must: it was asked for. */
static calla_status find_path(const char *given, char **path, bool *must, calla_error *err)
{
    const char *own = getenv("CALLA_CONFIG"), *config = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    if (!given && own && *own) given = own;
    *must = given != NULL;
    if (given)
        *path = mem_strdup(given);
    else if (config && config[0] == '/')
        *path = path_join(config, "calla/config");
    else if (home && home[0] == '/')
        *path = path_join(home, ".config/calla/config");
    else
        *path = mem_strdup("none");
    return *path ? CALLA_OK : err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
}

calla_status config_open(config_file *c, const char *given, calla_error *err)
{
    bool must = false;
    char *text = NULL;
    size_t n = 0;
    memset(c, 0, sizeof *c);
    calla_status st;
    TRY(find_path(given, &c->path, &must, err));
    if (!strcmp(c->path, "none") || (!must && !file_exists(c->path))) return CALLA_OK;
    TRY(file_read(c->path, CONFIG_BYTES_MAX, &text, &n, err));
    c->found = true;
    TRY(config_parse(c, text, n, err));
fail:
    if (st != CALLA_OK) config_close(c);
    return st;
}
