/* tokenizer_data.h - what tokenizer_load.c builds and tokenizer.c reads; nobody else includes it.
 */
#ifndef CALLA_TEXT_TOKENIZER_DATA_H
#define CALLA_TEXT_TOKENIZER_DATA_H

#include "text/bpe.h"

typedef enum token_kind {
    TOKEN_NONE,   /* while loading: this id has no token yet */
    TOKEN_VOCAB,  /* from model.vocab */
    TOKEN_ADDED,  /* added token, ordinary text when decoded */
    TOKEN_SPECIAL /* added token marked special */
} token_kind;

typedef struct token {
    uint32_t off; /* of its bytes in calla_tokenizer.bytes */
    uint16_t len;
    uint8_t kind;
} token;

/* Node of the trie of added tokens' spellings. Node 0 is the root; index 0 as link means none. */
typedef struct trie_node {
    uint32_t child, sibling;
    int32_t id; /* of the added token that ends here, or -1 */
    uint8_t byte;
} trie_node;

struct calla_tokenizer {
    strbuf bytes;      /* all tokens' bytes, end to end */
    token *tokens;     /* [n_tokens] by id */
    uint32_t n_tokens; /* at most TOKENS_MAX */
    trie_node *trie;   /* [n_trie] */
    size_t n_trie;     /* 0: no added tokens */
    bool starts[256];  /* first bytes of added tokens */
    bpe merges;
};

#define TOKENS_MAX (1u << 24)

#endif
