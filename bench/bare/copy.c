/* Copies of 8 KiB within the second-level cache, by `rep movsb`, the C library and vector registers, for several
 * alignments of source and target. No Petrel.
 *
 *   cc -O2 bench/bare/copy.c -o copy && ./copy
 *
 * Bytes per nanosecond: the fifth best of 40 turns, so that other work on the machine counts little.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 8192, COPIES = 4, TURNS = 40, KEPT = 4, ROOM = 1 << 16 };

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void by_movsb(char *to, const char *from, size_t len)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len) : : "memory");
}

static void by_library(char *to, const char *from, size_t len)
{
    memcpy(to, from, len);
    __asm__ volatile("" : : "r"(to) : "memory");
}

/* `len` is a multiple of 64. */
static void by_vectors(char *to, const char *from, size_t len)
{
    size_t rounds = len / 64;
    __asm__ volatile("1:\n"
                     "movups (%0), %%xmm0\n movups 16(%0), %%xmm1\n movups 32(%0), %%xmm2\n movups 48(%0), %%xmm3\n"
                     "movups %%xmm0, (%1)\n movups %%xmm1, 16(%1)\n movups %%xmm2, 32(%1)\n movups %%xmm3, 48(%1)\n"
                     "add $64, %0\n add $64, %1\n dec %2\n jnz 1b"
                     : "+r"(from), "+r"(to), "+r"(rounds)
                     :
                     : "xmm0", "xmm1", "xmm2", "xmm3", "memory", "cc");
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(void)
{
    static const int sources[] = {0, 8, 16, 24, 32}, targets[] = {0, 8, 16, 24, 32, 40, 64, 1024};
    static const struct {
        const char *name;
        void (*copy)(char *, const char *, size_t);
    } ways[] = {{"rep movsb", by_movsb}, {"memcpy", by_library}, {"vectors", by_vectors}};
    char *from = aligned_alloc(4096, ROOM), *to = aligned_alloc(4096, ROOM);
    memset(from, 1, ROOM);
    memset(to, 2, ROOM);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        printf("%s, bytes per ns; columns: offset of the target in its page\n%8s", ways[way].name, "source");
        for (size_t t = 0; t < sizeof targets / sizeof *targets; t++)
            printf("%7d", targets[t]);
        printf("\n");
        for (size_t s = 0; s < sizeof sources / sizeof *sources; s++) {
            printf("%8d", sources[s]);
            for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
                double turns[TURNS];
                for (int turn = 0; turn < TURNS; turn++) {
                    double begun = now_ns();
                    for (int copy = 0; copy < COPIES; copy++)
                        ways[way].copy(to + targets[t], from + sources[s], BYTES);
                    turns[turn] = now_ns() - begun;
                }
                if (memcmp(to + targets[t], from + sources[s], BYTES) != 0)
                    return fprintf(stderr, "a copy is wrong\n"), 1;
                qsort(turns, TURNS, sizeof *turns, compare);
                printf("%7.1f", COPIES * (double)BYTES / turns[KEPT]);
            }
            printf("\n");
        }
    }
    return 0;
}
