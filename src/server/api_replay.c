#include "server/api_replay.h"

#include <pthread.h>
#include <string.h>

#include "server/api_random.h"
#include "text/pystr.h"

#define BUCKETS 4096u /* power of two */

typedef struct entry entry;
struct entry {
    replay_key key;
    uint64_t reasoning; /* hash, trimmed */
    entry *chain;       /* next in the bucket */
    entry *newer, *older;
    size_t n_ids;
    bool thinking;
    int32_t ids[];
};

struct replay {
    uint64_t secret[4];
    uint64_t max_bytes;
    pthread_mutex_t lock; /* guards what follows */
    uint64_t bytes;
    entry *newest, *oldest;
    entry *buckets[BUCKETS];
};

/* ---- SipHash-2-4 ---- */

static uint64_t rotl(uint64_t x, unsigned b)
{
    return x << b | x >> (64 - b);
}

static void sip_round(uint64_t *v)
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

static void sip_word(uint64_t *v, uint64_t m)
{
    v[3] ^= m;
    sip_round(v);
    sip_round(v);
    v[0] ^= m;
}

static uint64_t siphash(const uint64_t *key, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                     key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
    uint64_t last = (uint64_t)n << 56;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t m = 0;
        for (unsigned i = 0; i < 8; i++)
            m |= (uint64_t)p[i] << 8 * i;
        sip_word(v, m);
    }
    for (unsigned i = 0; i < n; i++)
        last |= (uint64_t)p[i] << 8 * i;
    sip_word(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- Keys ---- */

static replay_key hash_bytes(const replay *r, const void *p, size_t n)
{
    return (replay_key){{siphash(r->secret, p, n), siphash(r->secret + 2, p, n)}};
}

/* A hash of several: each has a tag that says what it is. */
static replay_key join(const replay *r, uint64_t tag, replay_key a, replay_key b)
{
    const uint64_t all[5] = {tag, a.half[0], a.half[1], b.half[0], b.half[1]};
    return hash_bytes(r, all, sizeof all);
}

static replay_key hash_json(const replay *r, const json_value *v)
{
    static const replay_key none = {{0, 0}};
    double d;
    replay_key k = none;
    if (v->type == JSON_NUMBER && json_double(v, &d)) {
        if (d == 0) d = 0; /* -0 */
        return join(r, JSON_NUMBER, hash_bytes(r, &d, sizeof d), none);
    }
    if (v->text != NULL) return join(r, v->type, hash_bytes(r, v->text, v->n_text), none);
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        if (v->type == JSON_ARRAY) {
            k = join(r, 100, k, hash_json(r, m));
        } else { /* a sum: in any order */
            const replay_key one = join(r, 101, hash_bytes(r, m->key, m->n_key), hash_json(r, m));
            k.half[0] += one.half[0];
            k.half[1] += one.half[1];
        }
    }
    return join(r, v->type, k, none);
}

static replay_key hash_trimmed(const replay *r, const json_value *v)
{
    size_t begin = 0, end = v != NULL && v->type == JSON_STRING ? v->n_text : 0;
    if (end == 0) return hash_bytes(r, "", 0);
    pystr_strip(v->text, &begin, &end);
    return hash_bytes(r, v->text + begin, end - begin);
}

replay_key replay_begin(const replay *r, const json_value *tools)
{
    static const replay_key none = {{0, 0}};
    return join(r, 200, tools != NULL ? hash_json(r, tools) : none, none);
}

replay_key replay_next(const replay *r, replay_key before, const json_value *message)
{
    replay_key k = before;
    const json_value *calls = json_get(message, "tool_calls");
    k = join(r, 201, k, hash_trimmed(r, json_get(message, "role")));
    k = join(r, 202, k, hash_trimmed(r, json_get(message, "content")));
    for (const json_value *c = calls != NULL ? calls->first : NULL; c != NULL; c = c->next) {
        const json_value *args = json_get(c, "arguments");
        k = join(r, 203, k, hash_trimmed(r, json_get(c, "name")));
        if (args != NULL) k = join(r, 204, k, hash_json(r, args));
    }
    return k;
}

/* ---- The map ---- */

calla_status replay_create(replay **out, uint64_t max_bytes, calla_error *err)
{
    replay *r = mem_alloc(sizeof *r);
    *out = NULL;
    if (r == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for remembered answers");
    random_bytes(r->secret, sizeof r->secret);
    r->max_bytes = max_bytes;
    if (pthread_mutex_init(&r->lock, NULL) != 0) {
        mem_free(r);
        return err_set(err, CALLA_ERR_INTERNAL, "no mutex for remembered answers");
    }
    *out = r;
    return CALLA_OK;
}

void replay_destroy(replay *r)
{
    if (r == NULL) return;
    for (entry *e = r->newest, *older; e != NULL; e = older) {
        older = e->older;
        mem_free(e);
    }
    (void)pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static uint64_t entry_bytes(size_t n_ids)
{
    return sizeof(entry) + (uint64_t)n_ids * sizeof(int32_t);
}

static entry **bucket_of(replay *r, replay_key key)
{
    return &r->buckets[key.half[0] & (BUCKETS - 1)];
}

static entry *find(replay *r, replay_key key)
{
    entry *e = *bucket_of(r, key);
    while (e != NULL && (e->key.half[0] != key.half[0] || e->key.half[1] != key.half[1]))
        e = e->chain;
    return e;
}

static void unlink_age(replay *r, entry *e)
{
    if (e->newer != NULL)
        e->newer->older = e->older;
    else
        r->newest = e->older;
    if (e->older != NULL)
        e->older->newer = e->newer;
    else
        r->oldest = e->newer;
}

static void link_newest(replay *r, entry *e)
{
    e->newer = NULL;
    e->older = r->newest;
    if (r->newest != NULL)
        r->newest->newer = e;
    else
        r->oldest = e;
    r->newest = e;
}

static void drop(replay *r, entry *e)
{
    entry **p = bucket_of(r, e->key);
    while (*p != e)
        p = &(*p)->chain;
    *p = e->chain;
    unlink_age(r, e);
    r->bytes -= entry_bytes(e->n_ids);
    mem_free(e);
}

void replay_put(replay *r, replay_key key, const char *reasoning, size_t n_reasoning,
                const int32_t *ids, size_t n_ids, bool thinking)
{
    const json_value text = {.type = JSON_STRING, .text = reasoning, .n_text = n_reasoning};
    const uint64_t bytes = entry_bytes(n_ids);
    if (n_ids == 0 || bytes > r->max_bytes) return;
    entry *e = mem_alloc((size_t)bytes);
    if (e == NULL) return;
    e->key = key;
    e->reasoning = hash_trimmed(r, &text).half[0];
    e->n_ids = n_ids;
    e->thinking = thinking;
    memcpy(e->ids, ids, n_ids * sizeof *ids);
    (void)pthread_mutex_lock(&r->lock);
    entry *same = find(r, key);
    if (same != NULL) drop(r, same);
    while (r->oldest != NULL && bytes > r->max_bytes - r->bytes)
        drop(r, r->oldest);
    entry **bucket = bucket_of(r, key);
    e->chain = *bucket;
    *bucket = e;
    link_newest(r, e);
    r->bytes += bytes;
    (void)pthread_mutex_unlock(&r->lock);
}

bool replay_get(replay *r, replay_key key, const json_value *message, id_list *out, bool *thinking)
{
    const json_value *reasoning = json_get(message, "reasoning_content");
    bool found = false;
    (void)pthread_mutex_lock(&r->lock);
    entry *e = find(r, key);
    const bool given = reasoning != NULL && reasoning->n_text != 0;
    if (e != NULL && (!given || hash_trimmed(r, reasoning).half[0] == e->reasoning)) {
        unlink_age(r, e);
        link_newest(r, e);
        found = true;
        for (size_t i = 0; i < e->n_ids && found; i++)
            found = id_list_push(out, e->ids[i]);
        *thinking = e->thinking;
    }
    (void)pthread_mutex_unlock(&r->lock);
    return found;
}
