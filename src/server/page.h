/* page.h - the chat page, src/server/page/index.html, as bytes (the build makes page.c). */
#ifndef CALLA_SERVER_PAGE_H
#define CALLA_SERVER_PAGE_H

#include <stddef.h>

extern const unsigned char server_page[];
extern const size_t server_page_bytes; /* 0: this build has none */

#endif
