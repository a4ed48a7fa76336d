/* store.h - the folder of pulled models.
 *
 * Folder:  $CALLA_MODELS, else $XDG_DATA_HOME/calla/models, else ~/.local/share/calla/models. A
 * model is OWNER/NAME, or OWNER/NAME@REVISION when a revision was asked for; a folder of files with
 *          .calla-pull.json, which says what they are. One that is on the way is in .pull/OWNER/
 * and comes into place by one rename. Errors:  sentences name the model or the folder.
 */
#ifndef CALLA_NET_STORE_H
#define CALLA_NET_STORE_H

#include "net/disk.h"
#include "net/hub.h"

#define STORE_RECORD ".calla-pull.json"

/* *root: mem_free(). */
calla_status store_root(char **root, calla_error *err);

/* Where a model and its parts lie; all mem_free() by store_place_deinit(). */
typedef struct store_place {
    char *id;     /* OWNER/NAME[@REVISION] */
    char *owner;  /* the folder of `dir` */
    char *dir;    /* the model */
    char *stage;  /* what is being pulled */
    char *old;    /* what was in place before, for the moment of the exchange */
    char *lock;   /* held while any of these changes */
    char *parent; /* the folder of stage, old, and lock */
} store_place;
calla_status store_place_init(store_place *p, const char *root, const hub_repo *repo,
                              calla_error *err);
void store_place_deinit(store_place *p);

/* What a folder's record says. */
typedef struct store_record {
    hub_listing listing; /* commit and files */
    char *endpoint;
} store_record;
bool store_record_read(store_record *r, const char *dir); /* false: none, or no good one */
calla_status store_record_write(const char *dir, const char *id, const char *endpoint,
                                const hub_listing *l, calla_error *err);
void store_record_deinit(store_record *r);

/* The folder of the model called so: OWNER/NAME[@REVISION], or NAME alone when only one owner has
 * it. *dir NULL without an error: no model is called so. *dir: mem_free(). */
calla_status store_find(const char *root, const char *name, char **dir, calla_error *err);

typedef struct store_model {
    char *id, *dir;
    char commit[41];
    uint64_t bytes, bytes_done; /* bytes_done < bytes: a pull was interrupted */
    int64_t time;               /* of the last change, seconds since 1970 */
    bool partial;
} store_model;
/* All models, by name; partial ones too. A root that is not there has none. */
calla_status store_list(const char *root, store_model **models, size_t *n, calla_error *err);
void store_list_free(store_model *models, size_t n);

/* Removes a model and what was pulled of it; of a link to a model, only the link. *bytes: of its
 * files. CALLA_ERR_ARGUMENT: there is none; CALLA_ERR_FULL: it is being pulled; CALLA_ERR_IO, too,
 * when the owner's folder is a link. */
calla_status store_remove(const store_place *p, uint64_t *bytes, calla_error *err);

/* Takes the lock of a place (making its folders), and puts right what an exchange left that was cut
 * off in the middle. disk_lock_drop(), then store_tidy(). */
calla_status store_lock(const store_place *p, disk_lock *lock, calla_error *err);
/* Removes folders that are empty. */
void store_tidy(const store_place *p);
/* The stage becomes the model. */
calla_status store_exchange(const store_place *p, calla_error *err);

#endif
