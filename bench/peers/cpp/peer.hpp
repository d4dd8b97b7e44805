// What the C++ peers share: the same command line, payloads, checks and results as the crate
// `common` has for the Rust peers. See there for what each of them is for.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace peer {

constexpr size_t SMALL_BYTES = 32;
constexpr size_t REPLY_BYTES = 32;
constexpr size_t BULK_BYTES = 8u << 20;

// ---- command line ----

struct Args {
  bool is_server = false;
  std::string variant, address, scratch;
  int cpu = 0, priority = 0;
  bool is_bulk = false;
  size_t in_flight = 1;
  uint64_t warmup_ms = 200, window_ms = 800;
};

inline Args parse(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0) {
    throw std::runtime_error("usage: server|client --variant NAME --cpu CPU ...");
  }
  Args args;
  args.is_server = std::string(argv[1]) == "server";
  std::map<std::string, std::string> options;
  for (int index = 2; index + 1 < argc; index += 2) options[argv[index]] = argv[index + 1];
  auto take = [&](const char* name, std::string fallback) {
    auto found = options.find(name);
    return found == options.end() ? fallback : found->second;
  };
  args.variant = take("--variant", "");
  args.address = take("--address", "");
  args.scratch = take("--scratch", "");
  args.cpu = std::stoi(take("--cpu", "0"));
  args.priority = std::stoi(take("--priority", "0"));
  args.is_bulk = take("--workload", "echo") == "bulk";
  args.in_flight = std::stoul(take("--in-flight", "1"));
  args.warmup_ms = std::stoul(take("--warmup-ms", "200"));
  args.window_ms = std::stoul(take("--window-ms", "800"));
  return args;
}

// Stays on a CPU with all threads to come, with a real-time priority if it is not 0, and ends with the process that started this one.
inline void settle(int cpu, int priority) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    throw std::runtime_error("cannot stay on CPU " + std::to_string(cpu));
  }
  sched_param param{};
  param.sched_priority = priority;
  if (priority > 0 && sched_setscheduler(0, SCHED_RR, &param) != 0) {
    throw std::runtime_error("a real-time priority is not allowed");
  }
}

inline void ready(const std::string& address) {
  printf("ready %s\n", address.c_str());
  fflush(stdout);
}

// ---- content: the same bytes as in common/src/content.rs ----

using Reply = uint64_t[4];
static_assert(sizeof(Reply) == REPLY_BYTES && sizeof(Reply) == SMALL_BYTES);

inline uint64_t mix(uint64_t number) {
  uint64_t spread = (number ^ 0x70657472656cull) * 0x9e3779b97f4a7c15ull;
  return spread ^ (spread >> 29);
}

inline void small(uint64_t call, Reply& out) {
  uint64_t mixed = mix(call);
  out[0] = call;
  out[1] = mixed;
  out[2] = mixed << 21 | mixed >> 43;
  out[3] = ~mixed;
}

inline bool is_small(uint64_t call, const void* reply, size_t length) {
  Reply expected;
  small(call, expected);
  return length == SMALL_BYTES && memcmp(reply, expected, SMALL_BYTES) == 0;
}

inline uint64_t call_of(const void* reply) {
  uint64_t call;
  memcpy(&call, reply, sizeof call);
  return call;
}

constexpr size_t STRIDE = 4096, WORD = 8, STAMPS = BULK_BYTES / STRIDE;
constexpr uint64_t FULL_CALLS = 2;

inline uint64_t weighed(size_t index, uint64_t word) { return word * (2 * index + 1); }

inline uint64_t word_at(const uint8_t* bytes, size_t at) {
  uint64_t word;
  memcpy(&word, bytes + at, WORD);
  return word;
}

// The memory of a bulk request, to be used for one call after the other.
class Bulk {
 public:
  explicit Bulk(uint8_t* memory) : memory_(memory) {
    for (size_t index = 0; index < BULK_BYTES / WORD; index++) put(index * WORD, mix(index));
  }

  void stamp(uint64_t call) {
    uint64_t full = calls_++ < FULL_CALLS;
    put(0, call);
    put(WORD, full);
    uint64_t stamps = 0;
    for (size_t stamp = 1; stamp < STAMPS; stamp++) {
      uint64_t word = mix(call << 16 | stamp);
      put(stamp * STRIDE, word);
      stamps += weighed(stamp, word);
    }
    uint64_t all = 0;
    for (size_t index = 0; full && index < BULK_BYTES / WORD; index++) {
      all += weighed(index, word_at(memory_, index * WORD));
    }
    uint64_t words[4] = {call, BULK_BYTES, stamps, all};
    memcpy(expected_, words, sizeof words);
  }

  bool is_reply(const void* reply, size_t length) const {
    return length == REPLY_BYTES && memcmp(reply, expected_, REPLY_BYTES) == 0;
  }

 private:
  void put(size_t at, uint64_t word) { memcpy(memory_ + at, &word, WORD); }

  uint8_t* memory_;
  uint64_t calls_ = 0;
  Reply expected_;
};

// The reply to a bulk request.
inline void sink(const uint8_t* request, size_t length, Reply& reply) {
  uint64_t words[4] = {0, length, 0, 0};
  if (length >= 2 * WORD) words[0] = word_at(request, 0);
  for (size_t at = STRIDE; at + WORD <= length; at += STRIDE) {
    words[2] += weighed(at / STRIDE, word_at(request, at));
  }
  if (length >= 2 * WORD && word_at(request, WORD) == 1) {
    for (size_t at = 0; at + WORD <= length; at += WORD) {
      words[3] += weighed(at / WORD, word_at(request, at));
    }
  }
  memcpy(reply, words, sizeof words);
}

// ---- time and count ----

inline uint64_t now_ns() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return now_ns();
#endif
}

inline double ticks_per_ns() {
  uint64_t started = now_ns(), first = ticks();
  while (now_ns() - started < 20'000'000) {
  }
  return double(ticks() - first) / double(now_ns() - started);
}

// As `Meter` of the crate `common`.
class Meter {
 public:
  explicit Meter(const Args& args)
      : args_(args),
        ticks_per_ns_(ticks_per_ns()),
        clock_every_(!args.is_bulk && args.in_flight > 16 ? 16 : 1) {
    latencies_.reserve(1 << 24);
    now_ = start_ = ticks();
  }

  // The number of the next call, or 0 if the time is over.
  uint64_t begin() { return is_over_ ? 0 : ++begun_; }

  uint64_t in_flight() const { return begun_ - ended_; }

  void end(uint64_t call, bool is_right) {
    if (!is_right) throw std::runtime_error("the reply to call " + std::to_string(call) + " is wrong");
    if (++ended_ % clock_every_ == 0) read_clock();
  }

  void print(const std::string& version) {
    if (last_ended_ <= warm_ended_ || !is_warm_) {
      throw std::runtime_error("no call ended in the window");
    }
    uint64_t calls = last_ended_ - warm_ended_;
    double seconds = double(last_ - warm_) / ticks_per_ns_ / 1e9;
    double rate = double(calls) / seconds;
    size_t bytes = args_.is_bulk ? BULK_BYTES : SMALL_BYTES;
    printf("{\"calls\":%lu,\"checked\":%lu,\"seconds\":%.9f,\"calls_per_second\":%.3f,"
           "\"gbit_per_second\":%.6f,\"p50_ns\":%s,\"p99_ns\":%s,\"p999_ns\":%s,"
           "\"version\":\"%s\"}\n",
           calls, ended_, seconds, rate, rate * double(bytes) * 8 / 1e9, quantile(0.5).c_str(),
           quantile(0.99).c_str(), quantile(0.999).c_str(), version.c_str());
    fflush(stdout);
  }

 private:
  void read_clock() {
    uint64_t before = now_;
    now_ = ticks();
    if (is_over_) return;
    if (!is_warm_) {
      is_warm_ = double(now_ - start_) >= double(args_.warmup_ms) * 1e6 * ticks_per_ns_;
      warm_ = now_;
      warm_ended_ = ended_;
      return;
    }
    if (args_.in_flight == 1 && latencies_.size() < latencies_.capacity()) {
      latencies_.push_back(uint32_t(std::min<uint64_t>(now_ - before, UINT32_MAX)));
    }
    last_ = now_;
    last_ended_ = ended_;
    is_over_ = double(now_ - warm_) >= double(args_.window_ms) * 1e6 * ticks_per_ns_;
  }

  std::string quantile(double part) {
    if (latencies_.empty()) return "null";
    auto place = latencies_.begin() + size_t(part * double(latencies_.size() - 1));
    std::nth_element(latencies_.begin(), place, latencies_.end());
    return std::to_string(uint64_t(double(*place) / ticks_per_ns_));
  }

  Args args_;
  double ticks_per_ns_;
  uint64_t clock_every_, begun_ = 0, ended_ = 0, now_ = 0, start_ = 0;
  uint64_t warm_ = 0, warm_ended_ = 0, last_ = 0, last_ended_ = 0;
  bool is_warm_ = false, is_over_ = false;
  std::vector<uint32_t> latencies_;
};

// The program of a peer.
inline int run(int argc, char** argv, void (*serve)(const Args&), void (*call)(const Args&)) {
  try {
    Args args = parse(argc, argv);
    settle(args.cpu, args.priority);
    (args.is_server ? serve : call)(args);
    return 0;
  } catch (const std::exception& failure) {
    fprintf(stderr, "error: %s\n", failure.what());
    return 1;
  }
}

}  // namespace peer
