#!/usr/bin/env bash
# The cache beside memcached and Redis, over TCP on loopback: bench/peers/cache.sh [ROUNDS] [SECONDS]
#
# Needs memcached, memcaslap (libmemcached-tools), redis-server and redis-benchmark (redis-tools) of Debian, and a release
# build of `petrel`. Each server has one thread on one CPU, the load generators have another. The servers take turns. A
# line of the output is a run: operations per second of the clock, and per second of the server's run time.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3} seconds=${2:-4}
petrel=${PETREL:-${CARGO_TARGET_DIR:-target}/release/petrel}
server_cpu=${SERVER_CPU:-1} client_cpu=${CLIENT_CPU:-0}
memory=1024 size=32 items=1000000
directory=$(mktemp -d)
pids=()
finish() {
    [ "${#pids[@]}" -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    rm -rf "$directory"
}
trap finish EXIT

start() { # NAME COMMAND...: starts a server on its CPU
    local name=$1
    shift
    taskset -c "$server_cpu" "$@" >"$directory/$name.log" 2>&1 &
    pids+=($!)
    declare -g "pid_$name=$!"
}

run_time_ns() { cat /proc/"$1"/task/*/schedstat | awk '{ sum += $1 } END { printf "%.0f", sum }'; }

# Runs a load generator, which prints operations per second last, and prints the rates.
measure() { # SERVER PID LOAD COMMAND...
    local server=$1 pid=$2 load=$3 before after begin end operations
    shift 3
    before=$(run_time_ns "$pid") begin=$(date +%s%N)
    operations=$("$@")
    after=$(run_time_ns "$pid") end=$(date +%s%N)
    awk -v s="$server" -v l="$load" -v n="$operations" -v t=$((end - begin)) -v c=$((after - before)) \
        'BEGIN { printf "%-9s %-42s %10.0f a second %10.0f per core\n", s, l, n / t * 1e9, n / c * 1e9 }'
}

# The number of operations of a run of each generator.
memcaslap_operations() { # PORT KEYS_PER_REQUEST
    taskset -c "$client_cpu" memcaslap -s "127.0.0.1:$1" -T 1 -c 64 -t "${seconds}s" -F "$directory/load" -w 1k -d "$2" |
        sed -n 's/^Run time: .* Ops: \([0-9]*\) .*/\1/p'
}
redis_operations() { # GET or SET, with 16 requests in a pipeline
    taskset -c "$client_cpu" redis-benchmark -p 21557 -t "$1" -P 16 -c 64 -n 2000000 -r "$items" -d "$size" -q >&2
    echo 2000000
}

printf 'key\n16 16 1\nvalue\n%s %s 1\ncmd\n0 0.05\n1 0.95\n' "$size" "$size" >"$directory/load"
start memcached memcached -p 21555 -U 0 -t 1 -m "$memory" -u "$(id -un)"
start cache "$petrel" cache serve --memcached 127.0.0.1:21556 --memory "${memory}MiB" --item-size 72
start redis redis-server --port 21557 --save '' --appendonly no --bind 127.0.0.1 --dir "$directory"
for port in 21555 21556 21557; do
    until (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
done
# Redis gets its items first; the others get theirs from the generators.
redis_operations set 2>/dev/null >&2
for ((round = 0; round < rounds; round++)); do
    for keys in 1 16; do
        load="memcaslap, 95 % GET, $keys keys a request"
        measure memcached "$pid_memcached" "$load" memcaslap_operations 21555 "$keys"
        measure cache "$pid_cache" "$load" memcaslap_operations 21556 "$keys"
    done
    measure redis "$pid_redis" "redis-benchmark, GET, 16 in a pipeline" redis_operations get 2>/dev/null
    measure redis "$pid_redis" "redis-benchmark, SET, 16 in a pipeline" redis_operations set 2>/dev/null
done
# Pipelined requests of one generator to both, each answer checked; beside them Petrel's own transports.
"$petrel" cache bench --memcached 127.0.0.1:21555 --pid "$pid_memcached" --value-size "$size" --items "$items"
"$petrel" cache bench --memcached 127.0.0.1:21556 --pid "$pid_cache" --value-size "$size" --items "$items"
