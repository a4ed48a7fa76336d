/* SHA-256 and SHA-1: published vectors, pieces of any size, both variants alike. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/sha.h"

static void digest(sha_kind kind, const void *p, size_t n, char hex[SHA_HEX_MAX])
{
    sha s;
    sha_init(&s, kind);
    sha_update(&s, p, n);
    sha_final(&s, hex);
}

/* FIPS 180-2, appendices A and B; the empty string; a million times "a". */
static void vectors(void **state)
{
    (void)state;
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static char million[1000000];
    static const struct {
        sha_kind kind;
        const char *text, *hex;
    } cases[] = {
        {SHA_256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {SHA_256, two, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {SHA_256, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {SHA_256, NULL, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
        {SHA_1, "abc", "a9993e364706816aba3e25717850c26c9cd0d89d"},
        {SHA_1, two, "84983e441c3bd26ebaae4aa1f95129e5e54670f1"},
        {SHA_1, "", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
        {SHA_1, NULL, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"},
    };
    memset(million, 'a', sizeof million);
    for (int plain = 0; plain < 2; plain++) {
        sha_force_plain(plain);
        print_message("variant: %s\n", sha_variant());
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            char hex[SHA_HEX_MAX];
            const char *text = cases[i].text;
            digest(cases[i].kind, text ? text : million, text ? strlen(text) : sizeof million, hex);
            assert_string_equal(hex, cases[i].hex);
        }
    }
    sha_force_plain(0);
}

static void pieces(void **state)
{
    (void)state;
    unsigned char data[700];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 131 + i / 7);
    for (size_t n = 0; n <= sizeof data; n++) {
        char whole[SHA_HEX_MAX], cut[SHA_HEX_MAX], plain[SHA_HEX_MAX];
        digest(SHA_256, data, n, whole);
        sha_force_plain(1);
        digest(SHA_256, data, n, plain);
        sha_force_plain(0);
        assert_string_equal(whole, plain);
        sha s;
        sha_init(&s, SHA_256);
        for (size_t at = 0, k = n % 67 + 1; at < n; at += k)
            sha_update(&s, data + at, n - at < k ? n - at : k);
        sha_final(&s, cut);
        assert_string_equal(whole, cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(vectors), cmocka_unit_test(pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
