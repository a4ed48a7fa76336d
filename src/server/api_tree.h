/* api_tree.h - building JSON trees in an arena.
 *
 * Owns:    nothing: nodes and texts live in the arena or wherever the caller's pointers do.
 * Errors:  NULL when memory ran out; every function accepts NULL nodes and passes them on, so that
 *          only the last result need be checked. tree.failed remembers.
 * Threads: one a tree.
 */
#ifndef CALLA_SERVER_API_TREE_H
#define CALLA_SERVER_API_TREE_H

#include "base/json.h"

typedef struct tree {
    arena mem;
    bool failed;
} tree;

void tree_deinit(tree *t); /* zeroed struct is fine */

json_value *tree_new(tree *t, json_type type);
json_value *tree_string(tree *t, const char *s, size_t n); /* copied */
json_value *tree_literal(tree *t, const char *s);          /* borrowed, NUL-terminated */
/* A node of its own with the same value: children and texts are shared. */
json_value *tree_copy(tree *t, const json_value *v);

/* An array, or an object, that is being built. */
typedef struct tree_list {
    json_value *node, *last;
} tree_list;

tree_list tree_begin(tree *t, json_type type);
void tree_append(tree *t, tree_list *l, json_value *item);
void tree_set(tree *t, tree_list *l, const char *key, json_value *item); /* key: a constant */

/* All of it, children and texts too. */
json_value *tree_clone(tree *t, const json_value *v);
/* Parses n bytes into the arena. */
calla_status tree_parse(tree *t, const char *data, size_t n, const json_limits *limits,
                        json_value **out, calla_error *err);

#endif
