/* The bandwidth of a bare ring in shared memory, apart from Petrel: to check what `petrel bench bandwidth`
 * calls the bare medium.
 *
 * Two threads on two CPUs. One copies an 8 MiB message into a ring in chunks, the other copies the chunks
 * out into a message of its own, again and again; neither waits for the other between messages. Each message
 * carries its number in the first word of every chunk, and the receiver checks it. The program runs a sweep
 * of ring sizes and of chunks, and prints a line for each: the median of its rounds in Gbit/s.
 *
 *   cc -O2 -pthread bench/bare/ring.c -o ring && ./ring [CPU CPU]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MESSAGE_BYTES = 8 << 20, ROUNDS = 7, ROUND_NS = 100 * 1000 * 1000 };

typedef struct {
  _Alignas(128) _Atomic uint64_t produced;
  _Alignas(128) _Atomic uint64_t consumed;
  _Alignas(128) _Atomic int is_over;
  uint64_t wrong;
  size_t chunk_bytes;
  uint64_t chunks;
  char *ring, *from, *to;
  int cpus[2];
} Stream;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    perror("sched_setaffinity");
    exit(1);
  }
}

static char *memory(size_t bytes) {
  char *at = aligned_alloc(4096, bytes);
  if (!at) {
    perror("aligned_alloc");
    exit(1);
  }
  memset(at, 0x5a, bytes);
  return at;
}

static void *receive(void *argument) {
  Stream *s = argument;
  pin(s->cpus[1]);
  const uint64_t parts = MESSAGE_BYTES / s->chunk_bytes;
  for (uint64_t number = 0;; number++) {
    while (atomic_load_explicit(&s->produced, memory_order_acquire) == number)
      if (atomic_load_explicit(&s->is_over, memory_order_acquire) &&
          atomic_load_explicit(&s->produced, memory_order_acquire) == number)
        return NULL;
    char *to = s->to + number % parts * s->chunk_bytes;
    memcpy(to, s->ring + number % s->chunks * s->chunk_bytes, s->chunk_bytes);
    uint64_t stamp;
    memcpy(&stamp, to, sizeof stamp);
    s->wrong += stamp != number;
    atomic_store_explicit(&s->consumed, number + 1, memory_order_release);
  }
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void measure(size_t ring_bytes, size_t chunk_bytes, const int cpus[2]) {
  Stream *s = aligned_alloc(128, sizeof *s);
  memset(s, 0, sizeof *s);
  s->chunk_bytes = chunk_bytes;
  s->chunks = ring_bytes / chunk_bytes;
  s->ring = memory(ring_bytes), s->from = memory(MESSAGE_BYTES), s->to = memory(MESSAGE_BYTES);
  memcpy(s->cpus, cpus, sizeof s->cpus);
  pthread_t receiver;
  if (pthread_create(&receiver, NULL, receive, s) != 0) {
    perror("pthread_create");
    exit(1);
  }
  pin(cpus[0]);
  const uint64_t parts = MESSAGE_BYTES / chunk_bytes;
  double gbits[ROUNDS];
  uint64_t number = 0, seen = 0;
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t began_ns = now_ns(), first = number, elapsed_ns;
    do {
      for (uint64_t part = 0; part < parts; part++, number++) {
        while (number - seen >= s->chunks)
          seen = atomic_load_explicit(&s->consumed, memory_order_acquire);
        char *from = s->from + part * chunk_bytes;
        memcpy(from, &number, sizeof number);
        memcpy(s->ring + number % s->chunks * chunk_bytes, from, chunk_bytes);
        atomic_store_explicit(&s->produced, number + 1, memory_order_release);
      }
      elapsed_ns = now_ns() - began_ns;
    } while (elapsed_ns < ROUND_NS);
    gbits[round] = (double)(number - first) * (double)chunk_bytes * 8 / (double)elapsed_ns;
  }
  atomic_store_explicit(&s->is_over, 1, memory_order_release);
  pthread_join(receiver, NULL);
  qsort(gbits, ROUNDS, sizeof *gbits, by_value);
  printf("ring %5zu KiB, chunks of %2zu KiB: %6.1f Gbit/s (%.1f to %.1f), %llu wrong\n",
         ring_bytes >> 10, chunk_bytes >> 10, gbits[ROUNDS / 2], gbits[0], gbits[ROUNDS - 1],
         (unsigned long long)s->wrong);
  if (s->wrong) exit(1);
  free(s->ring), free(s->from), free(s->to), free(s);
}

int main(int count, char **arguments) {
  int cpus[2] = {0, 1};
  for (int i = 0; i < 2 && i + 1 < count; i++) cpus[i] = atoi(arguments[i + 1]);
  const size_t chunks[] = {8 << 10, 16 << 10};
  for (size_t ring = 256 << 10; ring <= 4 << 20; ring *= 2)
    for (int i = 0; i < 2; i++) measure(ring, chunks[i], cpus);
  return 0;
}
