/* lint.c - what a C++ compiler does not know about Metal Shading Language: msl-lint TEXT EXPANDED.
 *
 * TEXT: a text as it ships (tools/metal-flatten.sh). EXPANDED: the same after the preprocessor,
 * with its line markers. Every name, attribute, pragma and header must be on a list; address-space
 * words must stand at every pointer and reference; what Metal does not have is refused. Messages
 * name the line of TEXT. Exit status 1: something was found. With --kernels as the third argument,
 * prints "NAME THREADS BUFFERS BYTES" for each kernel instead (threadgroup memory). */
#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/attrs.h"
#include "lint_names.h"

typedef enum kind { T_END, T_NAME, T_NUMBER, T_STRING, T_SIGN } kind;

typedef struct token {
    const char *text; /* interned: equal texts are equal pointers */
    uint32_t line;
    kind kind;
} token;

#define TOKENS_MAX    (1u << 18)
#define FUNCTIONS_MAX 1024u
#define TEXT_MAX      (8u << 20)

/* A function at file scope; tokens [first, end): from its type or attributes to its last brace. */
typedef struct function {
    const char *name;
    uint32_t first, params, body, end; /* params: of '('; body: of '{' */
    bool kernel, visiting, visited;
} function;

static token tok[TOKENS_MAX];
static uint32_t n_tok;
static function fn[FUNCTIONS_MAX];
static uint32_t n_fn;
static const char *path;
static unsigned n_found;

ATTR_PRINTF(2, 3) static void found(uint32_t line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("%s:%u: ", path, line);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    n_found++;
}

/* ---- Reading ---- */

static char *read_file(const char *name)
{
    static char space[2][TEXT_MAX];
    static unsigned n_read;
    char *text = space[n_read++ % 2];
    FILE *f = fopen(name, "rb");
    const size_t n = f == NULL ? 0 : fread(text, 1, TEXT_MAX - 1, f);
    if (n == 0 || n == TEXT_MAX - 1) {
        fprintf(stderr, "msl-lint: cannot read %s\n", name);
        exit(2);
    }
    (void)fclose(f);
    text[n] = '\0';
    return text;
}

static const char *intern(const char *s, size_t n)
{
    static char space[1u << 20];
    static const char *table[1u << 14];
    static size_t used;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)s[i]) * 16777619u;
    for (uint32_t i = h;; i++) {
        const char **at = &table[i & ((1u << 14) - 1)];
        if (*at != NULL && strlen(*at) == n && memcmp(*at, s, n) == 0) return *at;
        if (*at != NULL) continue;
        if (used + n + 1 > sizeof space) exit(2);
        memcpy(space + used, s, n);
        space[used + n] = '\0';
        *at = space + used;
        used += n + 1;
        return *at;
    }
}

static bool in_list(const char *const *list, const char *name)
{
    for (; *list != NULL; list++)
        if (strcmp(*list, name) == 0) return true;
    return false;
}

static bool is(uint32_t i, const char *text)
{
    return i < n_tok && strcmp(tok[i].text, text) == 0;
}

static size_t sign_length(const char *p)
{
    static const char *const signs[] = {
        "<<=", ">>=", "...", "::", "->", "&&", "||", "==", "!=", "<=", ">=", "+=",
        "-=",  "*=",  "/=",  "%=", "|=", "&=", "^=", "++", "--", "<<", NULL};
    for (uint32_t i = 0; signs[i] != NULL; i++)
        if (strncmp(p, signs[i], strlen(signs[i])) == 0) return strlen(signs[i]);
    return 1;
}

static size_t token_length(const char *p, kind *k)
{
    size_t n = 0;
    if (isalpha((unsigned char)*p) || *p == '_') {
        *k = T_NAME;
        while (isalnum((unsigned char)p[n]) || p[n] == '_')
            n++;
    } else if (isdigit((unsigned char)*p) || (*p == '.' && isdigit((unsigned char)p[1]))) {
        *k = T_NUMBER;
        while (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == '.' || p[n] == '\'' ||
               ((p[n] == '+' || p[n] == '-') && strchr("eEpP", p[n - 1]) != NULL))
            n++;
    } else if (*p == '"') {
        *k = T_STRING;
        for (n = 1; p[n] != '"' && p[n] != '\0'; n++)
            n += p[n] == '\\';
        n++;
    } else {
        *k = T_SIGN;
        n = sign_length(p);
    }
    return n;
}

static void check_pragma(const char *p, size_t n, uint32_t line)
{
    char text[128];
    size_t at = 0;
    for (size_t i = 0; i < n && at + 1 < sizeof text; i++) { /* spaces are worth one */
        const bool space = isspace((unsigned char)p[i]) != 0;
        if (!space || (at > 0 && text[at - 1] != ' ')) text[at++] = space ? ' ' : p[i];
    }
    while (at > 0 && text[at - 1] == ' ')
        at--;
    text[at] = '\0';
    if (!in_list(lint_pragmas, text)) found(line, "a pragma that is not known: %s", text);
}

/* The preprocessor's output to tokens; lines that are the text's alone. */
static void tokenize(const char *p)
{
    uint32_t line = 0;
    bool ours = true;
    while (*p != '\0') {
        if (*p == '\n') line++;
        if (isspace((unsigned char)*p)) {
            p++;
            continue;
        }
        if (*p == '#') {
            const size_t n = strcspn(p, "\n");
            if (strncmp(p, "#pragma", 7) == 0) {
                if (ours) check_pragma(p + 7, n - 7, line);
            } else if (p[1] == ' ') {
                line = (uint32_t)strtoul(p + 2, NULL, 10) - 1;
                char marker[256];
                (void)snprintf(marker, sizeof marker, "%.*s", (int)n, p);
                ours = strstr(marker, ".metal\"") != NULL;
            }
            p += n;
            continue;
        }
        kind k;
        const size_t n = token_length(p, &k);
        if (n_tok == TOKENS_MAX) exit(2);
        if (ours) tok[n_tok++] = (token){intern(p, n), line, k};
        p += n;
    }
    tok[n_tok] = (token){"", line, T_END};
}

/* ---- The text as it ships ---- */

static void check_directive(const char *p, uint32_t line)
{
    char word[16] = "";
    p += 1 + strspn(p + 1, " \t");
    (void)snprintf(word, sizeof word, "%.*s", (int)strspn(p, "abcdefghijklmnopqrstuvwxyz"), p);
    const char *rest = p + strlen(word);
    rest += strspn(rest, " \t");
    if (!in_list(lint_directives, word)) found(line, "the directive #%s", word);
    if (strcmp(word, "pragma") == 0) check_pragma(rest, strcspn(rest, "\n"), line);
    if (strcmp(word, "include") == 0) {
        char name[128];
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(rest, "\n"), rest);
        if (!in_list(lint_headers, name)) found(line, "a header that is not Apple's: %s", name);
    }
}

static void check_text(const char *p)
{
    uint32_t line = 1;
    bool begins = true, continued = false;
    for (; *p != '\0'; p++) {
        if ((unsigned char)*p > 126 || (*p < 32 && *p != '\n'))
            found(line, "the byte 0x%02x", (unsigned)(unsigned char)*p);
        if (begins && !continued && *p == '#') check_directive(p, line);
        if (*p == '\n') {
            continued = p[-1] == '\\';
            begins = true;
            line++;
        } else if (*p != ' ') {
            begins = false;
        }
    }
}

/* ---- Functions ---- */

/* The partner of the bracket at i, forward; n_tok when there is none. */
static uint32_t closing(uint32_t i)
{
    const char *open = tok[i].text;
    const char *close = is(i, "(") ? ")" : is(i, "[") ? "]" : is(i, "<") ? ">" : "}";
    uint32_t depth = 0;
    for (; i < n_tok; i++) {
        if (strcmp(tok[i].text, open) == 0) depth++;
        if (strcmp(tok[i].text, close) == 0 && --depth == 0) return i;
    }
    return n_tok;
}

/* At file scope, what begins at i: a function is noted. Returns where the next thing begins. */
static uint32_t file_scope(uint32_t i)
{
    function f = {.first = i};
    while (i < n_tok) {
        if (is(i, "[") && is(i + 1, "[")) {
            f.kernel |= is(i + 2, "kernel");
            i = closing(i) + 1;
        } else if (is(i, "template")) {
            if (!is(i + 1, "<")) found(tok[i].line, "an explicit instantiation");
            i = closing(i + 1) + 1;
        } else if (is(i, ";")) {
            return i + 1;
        } else if (is(i, "{")) { /* of a struct or enum, or of a function */
            const uint32_t end = closing(i);
            if (f.name == NULL) {
                i = end + 1;
                continue;
            }
            f.body = i;
            f.end = end + 1;
            if (n_fn == FUNCTIONS_MAX) exit(2);
            fn[n_fn++] = f;
            return f.end;
        } else if (is(i, "(")) {
            if (f.name == NULL && i > 0 && tok[i - 1].kind == T_NAME) {
                f.name = tok[i - 1].text;
                f.params = i;
            }
            i = closing(i) + 1;
        } else if (is(i, "threadgroup") && f.name == NULL && !is(i + 2, "*")) {
            found(tok[i].line, "threadgroup memory outside a kernel");
            i++;
        } else {
            i++;
        }
    }
    return n_tok;
}

static const function *function_at(uint32_t i)
{
    for (uint32_t f = 0; f < n_fn; f++)
        if (i >= fn[f].body && i < fn[f].end && fn[f].body != 0) return &fn[f];
    return NULL;
}

/* ---- Types ---- */

static const char *types[1024];
static uint32_t n_types;

static void add_type(const char *name)
{
    for (uint32_t i = 0; i < n_types; i++)
        if (types[i] == name) return;
    if (n_types < 1023) types[n_types++] = name;
}

static void collect_types(void)
{
    for (uint32_t i = 0; i + 1 < n_tok; i++) {
        const bool declares = is(i, "struct") || is(i, "typename") || is(i, "enum");
        if (declares && tok[i + 1].kind == T_NAME) add_type(tok[i + 1].text);
        if (is(i, "typedef")) {
            uint32_t j = i;
            for (uint32_t depth = 0; j < n_tok && (depth > 0 || !is(j, ";")); j++)
                depth = is(j, "{") ? depth + 1 : is(j, "}") ? depth - 1 : depth;
            if (tok[j - 1].kind == T_NAME) add_type(tok[j - 1].text);
        }
    }
}

static bool is_type(uint32_t i)
{
    if (tok[i].kind != T_NAME) return false;
    for (uint32_t t = 0; t < n_types; t++)
        if (types[t] == tok[i].text) return true;
    return in_list(lint_types, tok[i].text);
}

/* Of '>' at i, where the template's name is; UINT32_MAX: it is no type. */
static uint32_t template_name(uint32_t i)
{
    uint32_t depth = 0;
    for (; i > 0; i--) {
        if (is(i, ">")) depth++;
        if (is(i, "<") && --depth == 0) return is_type(i - 1) ? i - 1 : UINT32_MAX;
        if (is(i, ";") || is(i, "{") || is(i, "}")) break;
    }
    return UINT32_MAX;
}

/* Is the '*' or '&' at i part of a declaration, a cast or a type? */
static bool declares(uint32_t i)
{
    uint32_t before = i - 1;
    if (is(before, "(") && (is(i + 2, ")") && is(i + 3, "["))) before--; /* (&name)[n] */
    if (is(before, "const")) return true;
    if (is(before, ">")) return template_name(before) != UINT32_MAX;
    return is_type(before) || is(before, "auto");
}

static bool has_space(uint32_t i)
{
    uint32_t j = i - 1;
    if (is(j, "(") && is(i + 2, ")")) j--;
    for (; j > 0; j--) {
        if (in_list(lint_spaces, tok[j].text)) return true;
        if (is(j, ">") && template_name(j) != UINT32_MAX) j = template_name(j);
        if (is(j, "(") || is(j, ",") || is(j, ";") || is(j, "{") || is(j, "}") || is(j, "<") ||
            is(j, "=") || is(j, ")") || is(j, "return"))
            return false;
    }
    return false;
}

/* ---- Tokens ---- */

static void check_number(const token *t)
{
    const char *s = t->text;
    const bool hex = s[0] == '0' && (s[1] == 'x' || s[1] == 'X');
    const char last = s[strlen(s) - 1];
    if (hex && strpbrk(s, "pP.") != NULL)
        found(t->line, "a hexadecimal float, %s, is C++17", s);
    else if (!hex && strpbrk(s, ".eE") != NULL && strchr("fFhH", last) == NULL)
        found(t->line, "%s is a double: it needs an f", s);
    if (strchr(s, '\'') != NULL || strpbrk(hex ? "" : s, "lL") != NULL)
        found(t->line, "the number %s", s);
}

/* A name and what is written before it with ::. Returns how many tokens that is. */
static uint32_t check_name(uint32_t i)
{
    const char *name = tok[i].text;
    if (i > 0 && (is(i - 1, ".") || is(i - 1, "->"))) return 1;
    if (i > 0 && in_list(lint_types, name) && in_list(lint_types, tok[i - 1].text))
        found(tok[i].line, "`%s` is a type", name);
    if (!is(i + 1, "::")) {
        if (in_list(lint_banned, name))
            found(tok[i].line, "Metal has no `%s`, or it is not for kernels", name);
        else if (in_list(lint_taken, name))
            found(tok[i].line, "`%s` is a name of Metal's", name);
        return 1;
    }
    char full[160] = "";
    uint32_t n = 0;
    for (;; n += 2) {
        const size_t at = strlen(full);
        (void)snprintf(full + at, sizeof full - at, "%s%s", n > 0 ? "::" : "", tok[i + n].text);
        if (!is(i + n + 1, "::")) break;
        if (is(i + n + 2, "template")) n++;
    }
    if (is_type(i) && !is(i, "metal")) return n + 1; /* a type of ours or of a parameter */
    if (!in_list(lint_metal, full)) found(tok[i].line, "%s is not on the list", full);
    return n + 1;
}

static uint32_t check_attribute(uint32_t i)
{
    const uint32_t end = closing(i);
    for (uint32_t j = i + 2; j + 1 < end; j += 2) { /* behind the comma */
        if (tok[j].kind != T_NAME || !in_list(lint_attributes, tok[j].text))
            found(tok[j].line, "the attribute %s", tok[j].text);
        if (is(j + 1, "(")) j = closing(j + 1);
    }
    return end;
}

/* A declaration with `threadgroup` at i, in a function's body. */
static void check_threadgroup(uint32_t i, const function *f)
{
    uint32_t j = i + 1;
    while (is(j, "const") || is_type(j) || is(j, "metal") || is(j, "::"))
        j++;
    if (is(j, "<")) j = closing(j) + 1;
    if (is(j, "*") || is(j, "&") || is(j, "(")) return;
    uint32_t depth = 0;
    for (uint32_t k = f->body; k < i; k++)
        depth = is(k, "{") ? depth + 1 : is(k, "}") ? depth - 1 : depth;
    if (!f->kernel || depth != 1)
        found(tok[i].line, "threadgroup memory in %s, not at the top of a kernel", f->name);
    while (j < n_tok && !is(j, ";") && !is(j, "="))
        j++;
    if (is(j, "=")) found(tok[i].line, "threadgroup memory cannot be initialised");
}

static void check_sign(uint32_t i)
{
    const uint32_t line = tok[i].line;
    if ((is(i, "*") || is(i, "&")) && i > 0 && declares(i) && !has_space(i))
        found(line, "no address space at `%s %s %s`", tok[i - 1].text, tok[i].text,
              tok[i + 1].text);
    if (is(i, "&&") && i > 0 && (is_type(i - 1) || is(i - 1, "auto")))
        found(line, "a reference to an rvalue");
    if (is(i, "(") && is(i + 1, "*") && tok[i + 2].kind == T_NAME && is(i + 3, ")") &&
        is(i + 4, "(") && i > 0 && is_type(i - 1))
        found(line, "a pointer to a function");
    if (is(i, "...")) found(line, "a parameter pack or variable arguments");
    if (is(i, "[") && i > 0 && !is(i + 1, "[") && tok[i - 1].kind == T_SIGN && !is(i - 1, "]") &&
        !is(i - 1, ")") && !is(i - 1, ">"))
        found(line, "a lambda");
}

static void check_tokens(void)
{
    for (uint32_t i = 0; i < n_tok; i++) {
        const function *f = function_at(i);
        if (tok[i].kind == T_NUMBER) check_number(&tok[i]);
        if (is(i, "[") && is(i + 1, "[")) {
            i = check_attribute(i);
            continue;
        }
        if (tok[i].kind == T_SIGN) check_sign(i);
        if (tok[i].kind != T_NAME) continue;
        if (f != NULL && is(i, "threadgroup")) check_threadgroup(i, f);
        if (f != NULL && is(i, "static")) found(tok[i].line, "`static` in %s", f->name);
        if (f == NULL && is(i, "static") && !is(i + 1, "inline"))
            found(tok[i].line, "`static` without `inline`");
        if (f != NULL && f->kernel && is(i, "return")) found(tok[i].line, "return in a kernel");
        i += check_name(i) - 1;
    }
}

/* ---- Functions among themselves ---- */

static void check_calls(function *f)
{
    if (f->visited) return;
    f->visiting = true;
    for (uint32_t i = f->body; i < f->end; i++) {
        if (tok[i].kind != T_NAME || is(i - 1, ".") || (!is(i + 1, "(") && !is(i + 1, "<")))
            continue;
        for (uint32_t g = 0; g < n_fn; g++) {
            if (fn[g].name != tok[i].text || is(i - 1, "::")) continue;
            if (fn[g].kernel) found(tok[i].line, "%s calls the kernel %s", f->name, fn[g].name);
            if (fn[g].visiting)
                found(tok[i].line, "recursion: %s calls %s", f->name, fn[g].name);
            else
                check_calls(&fn[g]);
        }
    }
    f->visiting = false;
    f->visited = true;
}

/* The parameters' next token from i that is no address-space word. */
static uint32_t next_plain(uint32_t i)
{
    while (in_list(lint_spaces, tok[i].text))
        i++;
    return i;
}

static void check_overloads(const function *f, const function *g)
{
    if (f->name != g->name) return;
    if (f->kernel || g->kernel) {
        found(tok[g->params].line, "two functions with a kernel's name, %s", g->name);
        return;
    }
    uint32_t i = f->params, j = g->params;
    while (tok[i].text == tok[j].text && i < f->body && j < g->body) {
        i = next_plain(i + 1);
        j = next_plain(j + 1);
    }
    if (i >= f->body && j >= g->body)
        found(tok[g->params].line, "two %s that differ in address spaces alone", g->name);
}

/* ---- Kernels ---- */

typedef struct value {
    uint32_t at;
    uint64_t v;
    bool ok;
} value;

static value sum(value e);

static value factor(value e)
{
    if (is(e.at, "(")) {
        e.at++;
        e = sum(e);
        e.ok &= is(e.at, ")");
        e.at++;
    } else if (is(e.at, "sizeof") && is(e.at + 1, "(") && is(e.at + 3, ")")) {
        static const char *const names[] = {"float", "uint", "ushort", "uint4", "int", NULL};
        static const uint64_t sizes[] = {4, 4, 2, 16, 4};
        e.ok = false;
        for (uint32_t i = 0; names[i] != NULL; i++)
            if (is(e.at + 2, names[i])) {
                e.v = sizes[i];
                e.ok = true;
            }
        e.at += 4;
    } else {
        char *end;
        e.v = strtoull(tok[e.at].text, &end, 0);
        e.ok &= tok[e.at].kind == T_NUMBER && (*end == '\0' || strcmp(end, "u") == 0);
        e.at++;
    }
    return e;
}

static value product(value e)
{
    e = factor(e);
    while (e.ok && (is(e.at, "*") || is(e.at, "/"))) {
        const bool by = is(e.at, "*");
        value r = {e.at + 1, 0, true};
        r = factor(r);
        r.ok &= r.v != 0;
        r.v = !r.ok ? 0 : by ? e.v * r.v : e.v / r.v;
        e = r;
    }
    return e;
}

static value sum(value e)
{
    e = product(e);
    while (e.ok && (is(e.at, "+") || is(e.at, "-"))) {
        const bool plus = is(e.at, "+");
        value r = {e.at + 1, 0, true};
        r = product(r);
        r.v = plus ? e.v + r.v : e.v - r.v;
        e = r;
    }
    return e;
}

static uint64_t number_at(uint32_t i, const char *what)
{
    const value v = sum((value){i, 0, true});
    if (!v.ok) found(tok[i].line, "%s is not a number that can be worked out", what);
    return v.v;
}

static void check_kernel(const function *f, bool list)
{
    uint64_t threads = 0, bytes = 0;
    uint32_t n_buffers = 0;
    for (uint32_t i = f->first; i < f->params; i++)
        if (is(i, "max_total_threads_per_threadgroup")) threads = number_at(i + 2, "threads");
    for (uint32_t i = f->params; i < f->body; i++) {
        if (!is(i, "buffer")) continue;
        if (number_at(i + 2, "a buffer") != n_buffers)
            found(tok[i].line, "%s: buffers are not 0, 1, 2 ..", f->name);
        n_buffers++;
    }
    for (uint32_t i = f->body; i < f->end; i++)
        if (is(i, "threadgroup") && is(i + 1, "uint4") && is(i + 3, "["))
            bytes += 16 * number_at(i + 4, "a size");
    const uint32_t line = tok[f->params].line;
    if (threads == 0 || threads % 32 != 0 || threads > 1024)
        found(line, "%s: %llu threads", f->name, (unsigned long long)threads);
    if (bytes > 32768)
        found(line, "%s: %llu bytes of threadgroup memory", f->name, (unsigned long long)bytes);
    if (n_buffers == 0 || n_buffers > 31) found(line, "%s: %u buffers", f->name, n_buffers);
    if (list)
        printf("%s %llu %u %llu\n", f->name, (unsigned long long)threads, n_buffers - 1,
               (unsigned long long)bytes);
}

int main(int argc, char **argv)
{
    const bool list = argc == 4 && strcmp(argv[3], "--kernels") == 0;
    if (argc != 3 && !list) {
        fputs("usage: msl-lint TEXT EXPANDED [--kernels]\n", stderr);
        return 2;
    }
    path = argv[1];
    check_text(read_file(argv[1]));
    tokenize(read_file(argv[2]));
    for (uint32_t i = 0; i < n_tok;)
        i = file_scope(i);
    collect_types();
    check_tokens();
    for (uint32_t f = 0; f < n_fn; f++) {
        check_calls(&fn[f]);
        for (uint32_t g = f + 1; g < n_fn; g++)
            check_overloads(&fn[f], &fn[g]);
        if (fn[f].kernel) check_kernel(&fn[f], list);
    }
    return n_found > 0;
}
