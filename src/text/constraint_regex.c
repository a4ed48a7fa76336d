/* Patterns: the part of ECMAScript's regular expressions that is regular. What is not supported
 * (look-around, back references, \b, \p, flags) is refused by name. \d, \w mean ASCII, as there;
 * \s leaves out what other dialects do not count, and so does "." with line ends. */
#include <string.h>

#include "text/constraint_build.h"
#include "text/utf8.h"

#define NEST_MAX   32u
#define REPEAT_MAX 4096u
#define TREE_MAX   4096u

typedef enum tree_kind {
    TREE_EMPTY,
    TREE_CLASS,
    TREE_CAT,
    TREE_ALT,
    TREE_REPEAT,
    TREE_BEGIN,
    TREE_END
} tree_kind;

typedef struct tree {
    tree_kind kind;
    char_class *on;            /* CLASS */
    uint32_t min, max;         /* REPEAT; max BUILD_NONE: no limit */
    struct tree *first, *next; /* first part; next part of the whole */
} tree;

typedef struct parser {
    builder *b;
    const char *s;
    size_t n, i;
    unsigned depth;
    uint32_t n_trees;
} parser;

/* ---- Reading ---- */

static void *refuse(parser *p, const char *what)
{
    build_fail(p->b, CALLA_ERR_UNSUPPORTED,
               "the \"pattern\" of the schema at \"#%s\" has %s, which cannot be enforced",
               p->b->path.data == NULL ? "" : p->b->path.data, what);
    return NULL;
}

static tree *make(parser *p, tree t)
{
    if (++p->n_trees > TREE_MAX) return refuse(p, "too many parts");
    tree *made = arena_alloc(&p->b->mem, sizeof *made);
    if (made == NULL) {
        build_fail(p->b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return NULL;
    }
    *made = t;
    return made;
}

static bool at(const parser *p, const char *s)
{
    const size_t n = strlen(s);
    return n <= p->n - p->i && memcmp(p->s + p->i, s, n) == 0;
}

static bool eat(parser *p, const char *s)
{
    if (!at(p, s)) return false;
    p->i += strlen(s);
    return true;
}

/* One character; false: the end, or not a character. */
static bool read_char(parser *p, uint32_t *cp)
{
    utf8_kind kind = UTF8_BAD;
    if (p->i == p->n) return false;
    p->i += utf8_read(p->s + p->i, p->n - p->i, cp, &kind);
    return kind == UTF8_CHAR;
}

/* ---- Sets ---- */

static const cp_range digits[] = {{'0', '9'}};
static const cp_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const cp_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
/* All that any dialect counts; the ones they agree on come first. */
static const cp_range spaces[] = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},
                                  {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                  {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                  {0x1c, 0x1f},     {0x85, 0x85},     {0xfeff, 0xfeff}};
#define N_SPACES_AGREED 9

typedef struct set {
    cp_range r[256];
    size_t n;
} set;

static bool add(parser *p, set *s, const cp_range *r, size_t n)
{
    if (n > 256 - s->n) {
        refuse(p, "a set of more than 256 parts");
        return false;
    }
    memcpy(s->r + s->n, r, n * sizeof *r);
    s->n += n;
    return true;
}

static bool add_class(parser *p, set *s, const char_class *c)
{
    return c != NULL && add(p, s, c->ranges, c->n);
}

/* \d and its kin, after the backslash; false: it is none. */
static bool add_shorthand(parser *p, set *s, uint32_t cp)
{
    builder *b = p->b;
    switch (cp) {
    case 'd':
        return add(p, s, digits, 1);
    case 'D':
        return add_class(p, s, chars_class(b, digits, 1, true));
    case 'w':
        return add(p, s, words, 4);
    case 'W':
        return add_class(p, s, chars_class(b, words, 4, true));
    case 's':
        return add(p, s, spaces, N_SPACES_AGREED);
    case 'S':
        return add_class(p, s, chars_class(b, spaces, sizeof spaces / sizeof *spaces, true));
    default:
        return false;
    }
}

static bool read_hex(parser *p, unsigned n, uint32_t *cp)
{
    *cp = 0;
    for (unsigned i = 0; i < n; i++) {
        const char *hex = "0123456789abcdefABCDEF";
        const char *d = p->i < p->n && p->s[p->i] != '\0' ? strchr(hex, p->s[p->i]) : NULL;
        if (d == NULL) {
            refuse(p, "a broken escape");
            return false;
        }
        const uint32_t x = (uint32_t)(d - hex);
        *cp = *cp << 4 | (x < 16 ? x : x - 6);
        p->i++;
    }
    return true;
}

/* The character that an escape means, after the backslash and cp. */
static bool read_escape(parser *p, uint32_t *cp)
{
    static const char from[] = "tnrfv", to[] = "\t\n\r\f\v";
    const char *c = *cp < 0x80 && *cp != 0 ? strchr(from, (int)*cp) : NULL;
    if (c != NULL) {
        *cp = (uint8_t)to[c - from];
        return true;
    }
    if (*cp == 'x') return read_hex(p, 2, cp);
    if (*cp == 'u') {
        if (!read_hex(p, 4, cp)) return false;
        if (*cp < 0xd800 || *cp > 0xdfff) return true;
        uint32_t low = 0;
        const uint32_t high = *cp;
        if (high > 0xdbff || !eat(p, "\\u") || !read_hex(p, 4, &low) || low < 0xdc00 ||
            low > 0xdfff)
            return refuse(p, "a lone surrogate") != NULL;
        *cp = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
        return true;
    }
    const bool letter = (*cp >= '0' && *cp <= '9') || (*cp >= 'A' && *cp <= 'Z') ||
                        (*cp >= 'a' && *cp <= 'z') || *cp >= 0x80;
    if (!letter) return true;
    const char name[] = {'\\', *cp < 0x80 ? (char)*cp : '?', '\0'};
    return refuse(p, name) != NULL;
}

static tree *parse_set(parser *p)
{
    set s;
    s.n = 0;
    const bool negate = eat(p, "^");
    while (!eat(p, "]")) {
        uint32_t lo, hi;
        if (!read_char(p, &lo)) return refuse(p, "a set without end");
        if (lo == '\\') {
            if (!read_char(p, &lo)) return refuse(p, "a broken escape");
            if (add_shorthand(p, &s, lo)) continue;
            if (lo == 'b')
                lo = '\b';
            else if (p->b->status != CALLA_OK || !read_escape(p, &lo))
                return NULL;
        }
        hi = lo;
        if (at(p, "-") && p->i + 1 < p->n && p->s[p->i + 1] != ']') {
            p->i++;
            if (!read_char(p, &hi)) return refuse(p, "a set without end");
            if (hi == '\\' && (!read_char(p, &hi) || !read_escape(p, &hi)))
                return refuse(p, "a range that ends in a set");
            if (hi < lo) return refuse(p, "a range that is upside down");
        }
        if (!add(p, &s, &(cp_range){lo, hi}, 1)) return NULL;
    }
    return make(p, (tree){.kind = TREE_CLASS, .on = chars_class(p->b, s.r, s.n, negate)});
}

/* ---- The tree ---- */

static tree *parse_alternatives(parser *p);

static tree *parse_group(parser *p)
{
    if (at(p, "?") && !eat(p, "?:")) {
        /* (?<name>...) and (?P<name>...) only name the group. */
        const bool named = (eat(p, "?P<") || eat(p, "?<")) && !at(p, "=") && !at(p, "!");
        if (!named) return refuse(p, "look-around or flags \"(?\"");
        while (p->i < p->n && p->s[p->i] != '>')
            p->i++;
        if (!eat(p, ">")) return refuse(p, "a group without end");
    }
    if (++p->depth > NEST_MAX) return refuse(p, "groups nested too deep");
    tree *t = parse_alternatives(p);
    p->depth--;
    if (t != NULL && !eat(p, ")")) return refuse(p, "a group without end");
    return t;
}

static tree *parse_atom(parser *p)
{
    set s;
    s.n = 0;
    if (eat(p, "(")) return parse_group(p);
    if (eat(p, "[")) return parse_set(p);
    if (eat(p, "^")) return make(p, (tree){.kind = TREE_BEGIN});
    if (eat(p, "$")) return make(p, (tree){.kind = TREE_END});
    if (eat(p, "."))
        return make(p, (tree){.kind = TREE_CLASS, .on = chars_class(p->b, line_ends, 3, true)});
    uint32_t cp;
    if (!read_char(p, &cp)) return refuse(p, "bytes that are not UTF-8");
    if (cp == '*' || cp == '+' || cp == '?') return refuse(p, "a repetition of nothing");
    if (cp == '\\') {
        if (!read_char(p, &cp)) return refuse(p, "a broken escape");
        if (add_shorthand(p, &s, cp))
            return make(p, (tree){.kind = TREE_CLASS, .on = chars_class(p->b, s.r, s.n, false)});
        if (p->b->status != CALLA_OK || !read_escape(p, &cp)) return NULL;
    }
    const cp_range one = {cp, cp};
    return make(p, (tree){.kind = TREE_CLASS, .on = chars_class(p->b, &one, 1, false)});
}

static bool read_count(parser *p, uint32_t *x)
{
    const size_t i = p->i;
    for (*x = 0; p->i < p->n && p->s[p->i] >= '0' && p->s[p->i] <= '9'; p->i++)
        if (*x <= REPEAT_MAX) *x = *x * 10 + (uint32_t)(p->s[p->i] - '0');
    return p->i != i;
}

/* {m}, {m,}, {m,n}; false, and nothing read: it is text. */
static bool read_braces(parser *p, uint32_t *min, uint32_t *max)
{
    const size_t i = p->i;
    if (eat(p, "{") && read_count(p, min)) {
        *max = *min;
        if (eat(p, ",") && !read_count(p, max)) *max = BUILD_NONE;
        if (eat(p, "}")) return true;
    }
    p->i = i;
    return false;
}

static tree *parse_repeats(parser *p)
{
    tree *t = parse_atom(p);
    while (t != NULL) {
        uint32_t min = 0, max = BUILD_NONE;
        if (eat(p, "+"))
            min = 1;
        else if (eat(p, "?"))
            max = 1;
        else if (!eat(p, "*") && !read_braces(p, &min, &max))
            break;
        if (t->kind == TREE_BEGIN || t->kind == TREE_END) return refuse(p, "a repeated anchor");
        if (eat(p, "+")) return refuse(p, "a possessive repetition");
        (void)eat(p, "?"); /* lazy: the same texts */
        if (min > REPEAT_MAX || (max != BUILD_NONE && max > REPEAT_MAX))
            return refuse(p, "more than 4096 repetitions");
        if (max < min) return refuse(p, "a repetition that is upside down");
        t = make(p, (tree){.kind = TREE_REPEAT, .min = min, .max = max, .first = t});
    }
    return t;
}

static tree *parse_sequence(parser *p)
{
    tree *whole = make(p, (tree){.kind = TREE_CAT});
    tree **end = whole == NULL ? NULL : &whole->first;
    while (whole != NULL && p->i < p->n && !at(p, "|") && !at(p, ")")) {
        *end = parse_repeats(p);
        if (*end == NULL) return NULL;
        end = &(*end)->next;
    }
    return whole;
}

static tree *parse_alternatives(parser *p)
{
    tree *whole = make(p, (tree){.kind = TREE_ALT});
    tree **end = whole == NULL ? NULL : &whole->first;
    while (whole != NULL) {
        *end = parse_sequence(p);
        if (*end == NULL) return NULL;
        end = &(*end)->next;
        if (!eat(p, "|")) break;
    }
    return whole;
}

/* ---- To an NFA ---- */

static uint32_t emit(parser *p, chars_nfa *m, const tree *t, uint32_t from);

static uint32_t emit_repeat(parser *p, chars_nfa *m, const tree *t, uint32_t from)
{
    const uint32_t end = chars_node(p->b, m);
    for (uint32_t i = 0; i < t->min && p->b->status == CALLA_OK; i++)
        from = emit(p, m, t->first, from);
    if (t->max == BUILD_NONE) {
        const uint32_t loop = chars_node(p->b, m);
        chars_link(p->b, m, from, loop, NULL);
        chars_link(p->b, m, emit(p, m, t->first, loop), loop, NULL);
        chars_link(p->b, m, loop, end, NULL);
        return end;
    }
    chars_link(p->b, m, from, end, NULL);
    for (uint32_t i = t->min; i < t->max && p->b->status == CALLA_OK; i++) {
        from = emit(p, m, t->first, from);
        chars_link(p->b, m, from, end, NULL);
    }
    return end;
}

static uint32_t emit(parser *p, chars_nfa *m, const tree *t, uint32_t from)
{
    builder *b = p->b;
    if (b->status != CALLA_OK) return 0;
    uint32_t end = from;
    switch (t->kind) {
    case TREE_CLASS:
        end = chars_node(b, m);
        chars_link(b, m, from, end, t->on);
        break;
    case TREE_CAT:
        for (const tree *part = t->first; part != NULL; part = part->next)
            end = emit(p, m, part, end);
        break;
    case TREE_ALT:
        end = chars_node(b, m);
        for (const tree *part = t->first; part != NULL; part = part->next)
            chars_link(b, m, emit(p, m, part, from), end, NULL);
        break;
    case TREE_REPEAT:
        return emit_repeat(p, m, t, from);
    case TREE_BEGIN:
    case TREE_END:
        refuse(p, "an anchor in its middle");
        break;
    default:
        break;
    }
    return end;
}

/* "^((a|b)$)" and the like: anchors sit at the ends of whole alternatives. */
static void emit_anchored(parser *p, chars_nfa *m, tree *alternatives, uint32_t any_before)
{
    builder *b = p->b;
    for (tree *t = alternatives->first; t != NULL && b->status == CALLA_OK; t = t->next) {
        uint32_t from = any_before;
        bool ends = false;
        if (t->first != NULL && t->first->kind == TREE_BEGIN) {
            from = m->start;
            t->first = t->first->next;
        }
        tree **last = &t->first;
        while (*last != NULL && (*last)->next != NULL)
            last = &(*last)->next;
        if (*last != NULL && (*last)->kind == TREE_END) {
            ends = true;
            *last = NULL;
        }
        /* A loop at `from` would take the text of other alternatives along. */
        const uint32_t own = chars_node(b, m);
        chars_link(b, m, from, own, NULL);
        const uint32_t end = emit(p, m, t, own);
        if (ends) {
            chars_link(b, m, end, m->accept, NULL);
            continue;
        }
        const uint32_t after = chars_node(b, m);
        chars_link(b, m, end, after, NULL);
        chars_link(b, m, after, after, chars_any(b));
        chars_link(b, m, after, m->accept, NULL);
    }
}

void regex_parse(builder *b, chars_nfa *m, const char *pattern, size_t n)
{
    parser p = {.b = b, .s = pattern, .n = n};
    tree *t = parse_alternatives(&p);
    if (t != NULL && p.i < n) refuse(&p, "a \")\" too many");
    if (b->status != CALLA_OK) return;
    m->start = chars_node(b, m);
    m->accept = chars_node(b, m);
    const uint32_t before = chars_node(b, m);
    chars_link(b, m, m->start, before, NULL);
    chars_link(b, m, before, before, chars_any(b));
    emit_anchored(&p, m, t, before);
}

/* ---- Formats ---- */

#define YEAR "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define LEAP "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|"          \
    "02-(0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define HOUR   "([01]\\d|2[0-3])"
#define MINUTE "[0-5]\\d"
#define TIME   HOUR ":" MINUTE ":" MINUTE "(\\.\\d{1,9})?(Z|[+-]" HOUR ":" MINUTE ")"
#define LABEL  "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define OCTET  "(\\d|[1-9]\\d|1\\d\\d|2[0-4]\\d|25[0-5])"
#define H16    "[0-9A-Fa-f]{1,4}"
#define ATOM   "[A-Za-z0-9!#$%&'*+=?^_`{|}~-]+"
#define HHMMSS "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)"

const char *regex_of_format(const char *format)
{
    static const char *const known[][2] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"duration",
         "^P((\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(" HHMMSS ")?|" HHMMSS "|\\d+W)$"},
        {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
        {"email", "^" ATOM "(\\." ATOM ")*@" LABEL "(\\." LABEL ")+$"},
        {"hostname", "^" LABEL "(\\." LABEL ")*$"},
        {"ipv4", "^" OCTET "(\\." OCTET "){3}$"},
        {"ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,7}:|(" H16 ":){1,6}:" H16 "|(" H16
                 ":){1,5}(:" H16 "){2}|(" H16 ":){1,4}(:" H16 "){3}|(" H16 ":){1,3}(:" H16
                 "){4}|(" H16 ":){1,2}(:" H16 "){5}|" H16 ":(:" H16 "){6}|:((:" H16 "){1,7}|:))$"},
        {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+$"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(format, known[i][0]) == 0) return known[i][1];
    return NULL;
}
