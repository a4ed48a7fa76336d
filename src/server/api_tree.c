#include "server/api_tree.h"

#include <string.h>

void tree_deinit(tree *t)
{
    arena_deinit(&t->mem);
    memset(t, 0, sizeof *t);
}

json_value *tree_new(tree *t, json_type type)
{
    json_value *v = arena_alloc(&t->mem, sizeof *v);
    if (v == NULL) {
        t->failed = true;
        return NULL;
    }
    v->type = type;
    return v;
}

json_value *tree_string(tree *t, const char *s, size_t n)
{
    json_value *v = tree_new(t, JSON_STRING);
    if (v == NULL) return NULL;
    v->text = arena_memdup(&t->mem, n != 0 ? s : "", n);
    v->n_text = n;
    if (v->text == NULL) t->failed = true;
    return v->text != NULL ? v : NULL;
}

json_value *tree_literal(tree *t, const char *s)
{
    json_value *v = tree_new(t, JSON_STRING);
    if (v == NULL) return NULL;
    v->text = s;
    v->n_text = strlen(s);
    return v;
}

json_value *tree_copy(tree *t, const json_value *v)
{
    json_value *copy = v != NULL ? tree_new(t, v->type) : NULL;
    if (copy == NULL) return NULL;
    *copy = *v;
    copy->next = NULL;
    copy->key = NULL;
    copy->n_key = 0;
    return copy;
}

tree_list tree_begin(tree *t, json_type type)
{
    return (tree_list){.node = tree_new(t, type)};
}

void tree_append(tree *t, tree_list *l, json_value *item)
{
    if (l->node == NULL || item == NULL) {
        t->failed = true;
        return;
    }
    if (l->last == NULL)
        l->node->first = item;
    else
        l->last->next = item;
    l->last = item;
    l->node->n_items++;
}

void tree_set(tree *t, tree_list *l, const char *key, json_value *item)
{
    if (item != NULL) {
        item->key = key;
        item->n_key = strlen(key);
    }
    tree_append(t, l, item);
}

/* The recursion is as deep as the parser let the value be. */
json_value *tree_clone(tree *t, const json_value *v)
{
    json_value *copy = tree_new(t, v->type);
    if (copy == NULL) return NULL;
    if (v->text != NULL) {
        copy->text = arena_memdup(&t->mem, v->text, v->n_text);
        copy->n_text = v->n_text;
        if (copy->text == NULL) t->failed = true;
    }
    tree_list list = {.node = copy};
    for (const json_value *m = v->first; m != NULL && !t->failed; m = m->next) {
        json_value *item = tree_clone(t, m);
        if (item != NULL && m->key != NULL) {
            item->key = arena_memdup(&t->mem, m->key, m->n_key);
            item->n_key = m->n_key;
            if (item->key == NULL) t->failed = true;
        }
        tree_append(t, &list, item);
    }
    return t->failed ? NULL : copy;
}

calla_status tree_parse(tree *t, const char *data, size_t n, const json_limits *limits,
                        json_value **out, calla_error *err)
{
    json_doc doc = {0};
    const calla_status st = json_parse(&doc, data, n, limits, err);
    *out = st == CALLA_OK ? tree_clone(t, doc.root) : NULL;
    json_free(&doc);
    if (st == CALLA_OK && *out == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a JSON tree");
    return st;
}
