/* Options of the stand-in, and the machines that it plays. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rt.h"

#define GB ((uint64_t)1 << 30)

static const rt_chip chips[] = {{"M1", "Apple M1", "applegpu_g13g", 7, 8, 16 * GB},
                                {"M1Max", "Apple M1 Max", "applegpu_g13s", 7, 32, 64 * GB},
                                {"M2", "Apple M2", "applegpu_g14g", 8, 10, 24 * GB},
                                {"M2Max", "Apple M2 Max", "applegpu_g14s", 8, 38, 96 * GB},
                                {"M3", "Apple M3", "applegpu_g15g", 9, 10, 24 * GB},
                                {"M3Ultra", "Apple M3 Ultra", "applegpu_g15d", 9, 80, 256 * GB},
                                {"M4Pro", "Apple M4 Pro", "applegpu_g16s", 9, 20, 48 * GB},
                                {"M5", "Apple M5", "applegpu_g17g", 10, 10, 32 * GB},
                                {"M5Max", "Apple M5 Max", "applegpu_g17s", 10, 40, 128 * GB},
                                {NULL, NULL, NULL, 0, 0, 0}};

static bool number(const char **p, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(*p, &end, 10);
    if (end == *p || errno != 0) return false;
    if (*end == 'k') *out <<= 10;
    if (*end == 'm') *out <<= 20;
    if (*end == 'g') *out <<= 30;
    *p = end + (*end == 'k' || *end == 'm' || *end == 'g');
    return true;
}

static bool parse_chip(rt_options *o, const char *v)
{
    for (const rt_chip *c = chips; c->name != NULL; c++)
        if (strcmp(c->name, v) == 0) {
            o->chip = c;
            return true;
        }
    return false;
}

static bool parse_os(rt_options *o, const char *v)
{
    uint64_t major, minor = 0;
    if (!number(&v, &major)) return false;
    if (*v == '.') {
        v++;
        if (!number(&v, &minor)) return false;
    }
    o->os = (uint32_t)(major * 100 + minor);
    return *v == '\0';
}

static bool parse_mode(rt_options *o, const char *v)
{
    o->mode = strcmp(v, "msl") == 0 ? MODE_MSL : strcmp(v, "none") == 0 ? MODE_NONE : MODE_CHECK;
    return o->mode != MODE_CHECK || strcmp(v, "check") == 0;
}

static bool parse_fail(rt_options *o, const char *v)
{
    const char *at = strchr(v, '@');
    if (at == NULL || (size_t)(at - v) >= sizeof o->fail.sel) return false;
    (void)snprintf(o->fail.sel, sizeof o->fail.sel, "%.*s", (int)(at - v), v);
    at++;
    return number(&at, &o->fail.at) && *at == '\0';
}

static bool parse_error(rt_options *o, const char *v)
{
    (void)snprintf(o->error, sizeof o->error, "%s", v);
    o->error_nil = *v == '\0';
    return true;
}

static bool parse_cb_error(rt_options *o, const char *v)
{
    uint64_t code;
    if (!number(&v, &code) || *v++ != '@' || !number(&v, &o->cb_error_at)) return false;
    o->cb_error = (long)code;
    o->cb_error_sticky = *v == '+';
    return true;
}

/* N:A:B or N:A */
static bool parse_mutation(rt_options *o, enum mutation kind, const char *v)
{
    uint64_t a;
    o->mutation = kind;
    if (!number(&v, &o->mutated) || *v++ != ':' || !number(&v, &a)) return false;
    o->mutate_a = (uint32_t)a;
    if (kind == MUTATE_STALE) return *v == '\0';
    return *v++ == ':' && number(&v, &o->mutate_b) && *v == '\0';
}

static bool parse_one(rt_options *o, const char *name, const char *v)
{
    const struct {
        const char *name;
        uint64_t *to;
    } numbers[] = {{"memory", &o->memory},
                   {"working-set", &o->working_set},
                   {"max-buffer", &o->max_buffer},
                   {"page", &o->page},
                   {"seed", &o->seed},
                   {"delay", &o->delay_us},
                   {"cb-hang", &o->cb_hang_at},
                   {"max-threads", &o->max_threads},
                   {"drop-barrier", &o->drop_barrier},
                   {"thermal", &o->thermal},
                   {"low-power", &o->low_power}};
    uint64_t n;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0) return number(&v, numbers[i].to) && *v == '\0';
    if (strcmp(name, "chip") == 0) return parse_chip(o, v);
    if (strcmp(name, "os") == 0) return parse_os(o, v);
    if (strcmp(name, "mode") == 0) return parse_mode(o, v);
    if (strcmp(name, "fail") == 0) return parse_fail(o, v);
    if (strcmp(name, "error") == 0) return parse_error(o, v);
    if (strcmp(name, "cb-error") == 0) return parse_cb_error(o, v);
    if (strcmp(name, "swap") == 0) return parse_mutation(o, MUTATE_SWAP, v);
    if (strcmp(name, "shift") == 0) return parse_mutation(o, MUTATE_SHIFT, v);
    if (strcmp(name, "stale") == 0) return parse_mutation(o, MUTATE_STALE, v);
    if (!number(&v, &n)) return false;
    if (strcmp(name, "record") == 0)
        o->record = n != 0;
    else if (strcmp(name, "no-tensor") == 0)
        o->no_tensor = n != 0;
    else if (strcmp(name, "wrong") == 0)
        o->wrong_rung = (int)n;
    else
        return false;
    return true;
}

const char *rt_options_parse(rt_options *o, const char *text)
{
    static char bad[256];
    *o = (rt_options){.chip = &chips[7], .os = 2604, .wrong_rung = -1, .max_threads = 1024};
    o->page = (uint64_t)sysconf(_SC_PAGESIZE);
    (void)snprintf(o->error, sizeof o->error, "the stand-in was asked to fail");
    while (*text != '\0') {
        char item[256];
        const size_t n = strcspn(text, ",");
        (void)snprintf(item, sizeof item, "%.*s", (int)n, text);
        text += n + (text[n] == ',');
        char *v = strchr(item, '=');
        if (v != NULL) *v++ = '\0';
        if (v == NULL || !parse_one(o, item, v)) {
            (void)snprintf(bad, sizeof bad, "option \"%s\" with value \"%s\" is not known", item,
                           v != NULL ? v : "");
            return bad;
        }
    }
    if (o->memory == 0) o->memory = o->chip->memory;
    if (o->working_set == 0) o->working_set = o->memory / 4 * 3;
    if (o->max_buffer == 0) o->max_buffer = o->memory / 16 * 9;
    return NULL;
}
