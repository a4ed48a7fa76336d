/* replay.c - runs a fuzz target once for each file of the given folders, without a fuzzer.
 *
 * Each input ends where an unreadable page begins, so that reading past it faults in any build.
 * A fault ends the program: the name printed last is the input that did it.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool read_all(int fd, uint8_t *to, size_t n)
{
    while (n > 0) {
        const ssize_t got = read(fd, to, n);
        if (got <= 0) return false;
        to += got;
        n -= (size_t)got;
    }
    return true;
}

static bool replay(const char *path)
{
    struct stat info;
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &info) != 0) return false;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t size = (size_t)info.st_size;
    const size_t body = (size + page - 1) / page * page;
    uint8_t *map =
        mmap(NULL, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        close(fd);
        return false;
    }
    uint8_t *data = map + (body - size);
    const bool ok = read_all(fd, data, size) && mprotect(map + body, page, PROT_NONE) == 0;
    close(fd);
    if (ok) LLVMFuzzerTestOneInput(data, size);
    munmap(map, body + page);
    return ok;
}

int main(int argc, char **argv)
{
    int n_passed = 0, n_failed = 0;
    for (int i = 1; i < argc; i++) {
        struct dirent **names = NULL;
        const int n = scandir(argv[i], &names, NULL, alphasort);
        if (n < 0) {
            fprintf(stderr, "%s: no such folder\n", argv[i]);
            n_failed++;
        }
        for (int k = 0; k < n; k++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], names[k]->d_name);
            if (names[k]->d_name[0] != '.') {
                printf("%s\n", path);
                fflush(stdout);
                if (replay(path))
                    n_passed++;
                else
                    n_failed++;
            }
            free(names[k]);
        }
        free(names);
    }
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0 || n_passed == 0;
}
