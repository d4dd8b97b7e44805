// The device side of the comparison with a GPU (G-Opt, sections 2.4 to 2.6): look-ups of the same tables as the CPU's,
// and the ways to hand a batch of inputs to a GPU and to get its results.
//
// Every function returns null, or a description of a CUDA error.

#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>

// The arrays of a table, and the number of steps where a look-up has a parameter of this kind.
struct Table {
    const void *arrays[2];
    uint64_t lengths[2];
    uint32_t steps;
};

namespace {

constexpr unsigned THREADS = 256;
constexpr unsigned STOP = 0xffffffffu;
constexpr uint32_t ABSENT = 0xffffffffu;
// As in ipv4.rs and ipv6.rs: the entry names a further table.
constexpr uint32_t HAS_MORE = 1u << 31;

char error_text[256];

const char *describe(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return nullptr;
    snprintf(error_text, sizeof error_text, "%s: %s", call, cudaGetErrorString(error));
    return error_text;
}

#define TRY(call)                                                                  \
    do {                                                                           \
        if (const char *failure = describe((call), #call)) return failure;         \
    } while (0)

// SplitMix64, as in random.rs.
__device__ uint64_t number(uint64_t index) {
    uint64_t value = (index + 1) * 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

struct Increment {
    using Key = uint32_t;
    __device__ static uint32_t find(const Table &, Key key) { return key + 1; }
};

struct Chain {
    using Key = uint32_t;
    __device__ static uint32_t find(const Table &table, Key key) {
        auto links = static_cast<const uint32_t *>(table.arrays[0]);
        for (uint32_t step = 0; step < table.steps; ++step) key = links[key];
        return key;
    }
};

// SipHash-2-4 of the eight bytes of a number, under a key of zeros, again and again (Aumasson and Bernstein 2012).
struct Sip {
    using Key = uint64_t;

    __device__ static uint64_t rotated(uint64_t value, int bits) {
        return value << bits | value >> (64 - bits);
    }

    __device__ static void mix(uint64_t (&v)[4], int rounds) {
        for (int round = 0; round < rounds; ++round) {
            v[0] += v[1], v[2] += v[3];
            v[1] = rotated(v[1], 13) ^ v[0], v[3] = rotated(v[3], 16) ^ v[2];
            v[0] = rotated(v[0], 32);
            v[2] += v[1], v[0] += v[3];
            v[1] = rotated(v[1], 17) ^ v[2], v[3] = rotated(v[3], 21) ^ v[0];
            v[2] = rotated(v[2], 32);
        }
    }

    __device__ static uint64_t hash(uint64_t message) {
        uint64_t v[4] = {0x736f6d6570736575ull, 0x646f72616e646f6dull, 0x6c7967656e657261ull,
                         0x7465646279746573ull};
        // The last block has the message's length in its highest byte.
        const uint64_t blocks[2] = {message, 8ull << 56};
        for (uint64_t block : blocks) {
            v[3] ^= block;
            mix(v, 2);
            v[0] ^= block;
        }
        v[2] ^= 0xff;
        mix(v, 4);
        return v[0] ^ v[1] ^ v[2] ^ v[3];
    }

    __device__ static uint32_t find(const Table &table, Key key) {
        for (uint32_t step = 0; step < table.steps; ++step) key = hash(key);
        return static_cast<uint32_t>(key);
    }
};

struct Ipv4 {
    using Key = uint32_t;
    __device__ static uint32_t find(const Table &table, Key address) {
        uint32_t entry = static_cast<const uint32_t *>(table.arrays[0])[address >> 8];
        if (!(entry & HAS_MORE)) return entry;
        uint64_t group = entry & ~HAS_MORE;
        return static_cast<const uint32_t *>(table.arrays[1])[group << 8 | (address & 0xff)];
    }
};

struct Ipv6 {
    using Key = unsigned __int128;
    __device__ static uint32_t find(const Table &table, Key address) {
        uint32_t entry = static_cast<const uint32_t *>(table.arrays[0])[address >> 104];
        for (int depth = 24; entry & HAS_MORE; depth += 8) {
            uint64_t group = entry & ~HAS_MORE;
            uint64_t place = group << 8 | (static_cast<uint64_t>(address >> (120 - depth)) & 0xff);
            entry = static_cast<const uint32_t *>(table.arrays[1])[place];
        }
        return entry;
    }
};

struct Switch {
    using Key = uint64_t;

    struct alignas(64) Bucket {
        uint64_t entries[8];
    };

    // The entry has the port above the 48 bits of the address.
    __device__ static bool port(const Bucket &bucket, Key address, uint32_t &port) {
        for (uint64_t entry : bucket.entries) {
            if ((entry & ((1ull << 48) - 1)) == address) {
                port = static_cast<uint32_t>(entry >> 48);
                return true;
            }
        }
        return false;
    }

    __device__ static uint32_t find(const Table &table, Key address) {
        auto buckets = static_cast<const Bucket *>(table.arrays[0]);
        uint64_t mask = table.lengths[0] / sizeof(Bucket) - 1, hash = number(address);
        uint32_t found = ABSENT;
        if (!port(buckets[hash & mask], address, found)) port(buckets[hash >> 32 & mask], address, found);
        return found;
    }
};

struct Names {
    struct alignas(32) Key {
        uint64_t components[4];
    };

    struct alignas(64) Bucket {
        uint32_t keys[8], values[8];
    };

    __device__ static bool is_same(const Key &one, const Key &other) {
        bool same = true;
        for (int index = 0; index < 4; ++index) same &= one.components[index] == other.components[index];
        return same;
    }

    __device__ static uint32_t find(const Table &table, const Key &name) {
        auto buckets = static_cast<const Bucket *>(table.arrays[0]);
        auto names = static_cast<const Key *>(table.arrays[1]);
        uint64_t mask = table.lengths[0] / sizeof(Bucket) - 1;
        for (int components = 4; components >= 1; --components) {
            Key wanted = {};
            uint64_t text = 0;
            for (int index = 0; index < 4; ++index) {
                wanted.components[index] = index < components ? name.components[index] : 0;
                text = number(text ^ wanted.components[index]);
            }
            uint32_t key = static_cast<uint32_t>(text >> 32) | 1;
            uint64_t hash = number(key);
            for (uint64_t place : {hash & mask, hash >> 32 & mask}) {
                const Bucket &bucket = buckets[place];
                for (int index = 0; index < 8; ++index) {
                    if (bucket.keys[index] != key) continue;
                    if (is_same(names[bucket.values[index]], wanted)) return bucket.values[index];
                    break;
                }
            }
        }
        return ABSENT;
    }
};

template <class Lookup>
__global__ void look_up(Table table, const typename Lookup::Key *keys, uint32_t *results, unsigned count) {
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) results[index] = Lookup::find(table, keys[index]);
}

template <class Lookup>
void launch(const Table &table, const void *keys, uint32_t *results, unsigned count, cudaStream_t stream) {
    look_up<Lookup><<<(count + THREADS - 1) / THREADS, THREADS, 0, stream>>>(
        table, static_cast<const typename Lookup::Key *>(keys), results, count);
}

// Answers rounds of inputs in the host's memory until `flag` is STOP. A new value of `flag` begins a round. A thread of
// each block polls, so that a round has fewer accesses over PCIe than one per input. All blocks have to be resident.
__global__ void poll(const volatile unsigned *flag, const volatile uint32_t *keys, volatile uint32_t *results,
                     unsigned count, unsigned *arrived, volatile unsigned *done) {
    __shared__ unsigned round;
    unsigned former = 0, index = blockIdx.x * blockDim.x + threadIdx.x;
    for (;;) {
        if (threadIdx.x == 0) {
            unsigned now = *flag;
            while (now == former) now = *flag;
            round = now;
        }
        __syncthreads();
        former = round;
        if (former == STOP) return;
        if (index < count) results[index] = keys[index] + 1;
        __threadfence_system();
        __syncthreads();
        // The last block to arrive ends the round.
        if (threadIdx.x == 0 && atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1) *done = former;
    }
}

}  // namespace

// A stream with buffers for a batch, on the host (visible to the device) and on the device.
struct Lane {
    cudaStream_t stream;
    void *host_keys, *host_results, *device_keys;
    uint32_t *device_results;
    // Words of the host's memory for polling: `flag`, and `done` in a line of its own.
    unsigned *words;
    unsigned *arrived;
};

extern "C" {

const char *gpu_open(char *name, int length) {
    cudaDeviceProp properties;
    int driver = 0;
    TRY(cudaGetDeviceProperties(&properties, 0));
    TRY(cudaDriverGetVersion(&driver));
    snprintf(name, length, "%s, %d multiprocessors, %d MiB of L2, CUDA %d.%d", properties.name,
             properties.multiProcessorCount, properties.l2CacheSize >> 20, driver / 1000, driver % 1000 / 10);
    return nullptr;
}

const char *gpu_upload(const void *bytes, size_t length, void **copy) {
    TRY(cudaMalloc(copy, length));
    TRY(cudaMemcpy(*copy, bytes, length, cudaMemcpyHostToDevice));
    return nullptr;
}

const char *gpu_free(void *copy) {
    TRY(cudaFree(copy));
    return nullptr;
}

const char *lane_open(size_t key_bytes, size_t result_bytes, Lane **opened) {
    Lane *lane = new Lane();
    TRY(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking));
    TRY(cudaHostAlloc(&lane->host_keys, key_bytes, cudaHostAllocMapped));
    TRY(cudaHostAlloc(&lane->host_results, result_bytes, cudaHostAllocMapped));
    TRY(cudaHostAlloc(reinterpret_cast<void **>(&lane->words), 256, cudaHostAllocMapped));
    TRY(cudaMalloc(&lane->device_keys, key_bytes));
    TRY(cudaMalloc(reinterpret_cast<void **>(&lane->device_results), result_bytes));
    TRY(cudaMalloc(reinterpret_cast<void **>(&lane->arrived), sizeof(unsigned)));
    *opened = lane;
    return nullptr;
}

const char *lane_close(Lane *lane) {
    TRY(cudaStreamSynchronize(lane->stream));
    TRY(cudaFreeHost(lane->host_keys));
    TRY(cudaFreeHost(lane->host_results));
    TRY(cudaFreeHost(lane->words));
    TRY(cudaFree(lane->device_keys));
    TRY(cudaFree(lane->device_results));
    TRY(cudaFree(lane->arrived));
    TRY(cudaStreamDestroy(lane->stream));
    delete lane;
    return nullptr;
}

void *lane_keys(Lane *lane) { return lane->host_keys; }
uint32_t *lane_results(Lane *lane) { return static_cast<uint32_t *>(lane->host_results); }
unsigned *lane_words(Lane *lane) { return lane->words; }

const char *lane_copy_in(Lane *lane, size_t bytes) {
    TRY(cudaMemcpyAsync(lane->device_keys, lane->host_keys, bytes, cudaMemcpyHostToDevice, lane->stream));
    return nullptr;
}

// Starts a look-up of `count` keys: in the device's memory, or in the host's where `is_mapped`.
const char *lane_launch(Lane *lane, int lookup, const Table *table, unsigned count, bool is_mapped) {
    const void *keys = is_mapped ? lane->host_keys : lane->device_keys;
    uint32_t *results = is_mapped ? lane_results(lane) : lane->device_results;
    switch (lookup) {
        case 0: launch<Increment>(*table, keys, results, count, lane->stream); break;
        case 1: launch<Chain>(*table, keys, results, count, lane->stream); break;
        case 2: launch<Sip>(*table, keys, results, count, lane->stream); break;
        case 3: launch<Ipv4>(*table, keys, results, count, lane->stream); break;
        case 4: launch<Ipv6>(*table, keys, results, count, lane->stream); break;
        case 5: launch<Switch>(*table, keys, results, count, lane->stream); break;
        case 6: launch<Names>(*table, keys, results, count, lane->stream); break;
        default: return "no look-up has this number";
    }
    TRY(cudaGetLastError());
    return nullptr;
}

const char *lane_copy_out(Lane *lane, size_t bytes) {
    TRY(cudaMemcpyAsync(lane->host_results, lane->device_results, bytes, cudaMemcpyDeviceToHost, lane->stream));
    return nullptr;
}

const char *lane_wait(Lane *lane) {
    TRY(cudaStreamSynchronize(lane->stream));
    return nullptr;
}

// Starts the polling kernel. The host stores a round's number in the first word, and finds it in the word at 32 when the
// results are there.
const char *lane_poll(Lane *lane, unsigned count) {
    TRY(cudaMemset(lane->arrived, 0, sizeof(unsigned)));
    TRY(cudaDeviceSynchronize());
    auto keys = static_cast<const volatile uint32_t *>(lane->host_keys);
    poll<<<(count + THREADS - 1) / THREADS, THREADS, 0, lane->stream>>>(
        lane->words, keys, lane_results(lane), count, lane->arrived, lane->words + 32);
    TRY(cudaGetLastError());
    return nullptr;
}
}
