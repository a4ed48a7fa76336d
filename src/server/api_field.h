/* api_field.h - members of a request by table: name, type, range, and the error that names them.
 *
 * Does:    reads the members of a JSON object into a struct; null counts as absent, unknown
 *          members are ignored. Fills api_error with the first fault.
 * Errors:  false; the error has the HTTP status, the code and the member's path.
 * Threads: pure functions.
 */
#ifndef CALLA_SERVER_API_FIELD_H
#define CALLA_SERVER_API_FIELD_H

#include "base/json.h"

#define API_PATH_MAX 128u

typedef struct api_error {
    unsigned status;
    const char *code;         /* a constant, or NULL */
    char param[API_PATH_MAX]; /* "messages[2].content"; "" for none */
    char message[640];
} api_error;

/* Fills e; returns false, so that `return api_fail(...)` reads well. param may be NULL. */
bool api_fail(api_error *e, unsigned status, const char *code, const char *param, const char *fmt,
              ...) ATTR_PRINTF(5, 6);
/* 400 for the member `param`; the sentence begins with its name and ": ". */
bool api_bad(api_error *e, const char *param, const char *fmt, ...) ATTR_PRINTF(3, 4);
bool api_no_memory(api_error *e);
/* From a calla_error of a layer below, by its code. */
bool api_from(api_error *e, const char *param, const calla_error *err);

typedef struct api_path {
    char s[API_PATH_MAX];
} api_path;
api_path path_of(const char *fmt, ...) ATTR_PRINTF(1, 2);

const char *json_type_name(const json_value *v); /* "a string", ... */

typedef enum api_kind { API_BOOL, API_INT, API_REAL, API_STRING, API_ARRAY, API_OBJECT } api_kind;

typedef struct api_bool {
    bool set, value;
} api_bool;
typedef struct api_int {
    bool set;
    int64_t value;
} api_int;
typedef struct api_real {
    bool set;
    double value;
} api_real;
/* API_STRING, API_ARRAY, API_OBJECT are stored as `const json_value *`, NULL when absent. */

typedef struct api_field {
    const char *name;
    api_kind kind;
    size_t offset;   /* of the member of the struct */
    double min, max; /* API_INT, API_REAL: inclusive */
} api_field;

/* where: path of the object for errors, "" for the request itself. */
bool api_read(const json_value *object, const char *where, const api_field *fields, size_t n,
              void *out, api_error *e);

/* v is a member at `path`: NULL and null give "", a string itself; anything else fails. */
bool api_text(const json_value *v, const char *path, const char **text, size_t *n, api_error *e);

#endif
