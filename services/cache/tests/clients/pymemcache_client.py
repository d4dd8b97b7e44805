"""Uses a cache through pymemcache: every command that the library has. The argument is the port."""

import sys
import time

from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError

server = ("127.0.0.1", int(sys.argv[1]))
client = Client(server, timeout=30, default_noreply=False)


def check(actual, expected):
    assert actual == expected, f"{actual!r} in place of {expected!r}"


def refused(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"not refused with {error.__name__}")


check(client.flush_all(), True)
check(client.set("a", b"1"), True)
check(client.get("a"), b"1")
check(client.get("none", b"default"), b"default")
check(client.add("a", b"2"), False)
check(client.add("b", b"2"), True)
check(client.replace("none", b"2"), False)
check(client.replace("b", b"20"), True)
check(client.append("b", b"0"), True)
check(client.prepend("b", b"1"), True)
check(client.get("b"), b"1200")
check(client.incr("b", 5), 1205)
check(client.decr("b", 2000), 0)
check(client.incr("none", 1), None)
value, version = client.gets("a")
check(client.cas("a", b"new", version), True)
check(client.cas("a", b"old", version), False)
check(client.cas("none", b"x", version), None)
check(client.touch("a", 100), True)
check(client.touch("none", 100), False)
# Since version 4.
if hasattr(client, "gat"):
    check(client.gat("a", expire=100), b"new")
    check(client.gats("a", expire=100)[0], b"new")
check(client.set_many({f"key{number}": b"%d" % number for number in range(500)}), [])
found = client.get_many([f"key{number}" for number in range(600)])
check(found, {f"key{number}": b"%d" % number for number in range(500)})
check(len(client.gets_many(["key1", "key2", "none"])), 2)
check(client.delete_many(["key1", "key2"]), True)
check(client.delete("key3"), True)
check(client.delete("key3"), False)
client.set("quiet", b"yes", noreply=True)
check(client.get("quiet"), b"yes")
large = bytes(range(256)) * 4000
check(client.set("large", large), True)
check(client.get("large"), large)
refused(MemcacheServerError, lambda: client.set("larger", b"v" * ((1 << 20) + 1)))
check(client.get("a"), b"new")
refused(MemcacheClientError, lambda: client.incr("a", 1))
client.set("short", b"x", expire=1)
for _ in range(100):
    if client.get("short") is None:
        break
    time.sleep(0.1)
check(client.get("short"), None)
assert client.stats()[b"curr_items"] > 400
assert client.version()
if hasattr(client, "raw_command"):
    check(client.raw_command("mg a v", end_tokens=b"\r\nnew\r\n"), b"VA 3")
pooled = PooledClient(server, max_pool_size=4)
pooled.set("pooled", b"x", noreply=False)
check(pooled.get("pooled"), b"x")
hashed = HashClient([server])
hashed.set("hashed", b"x", noreply=False)
check(hashed.get("hashed"), b"x")
check(client.flush_all(), True)
check(client.get("a"), None)
client.quit()
print("all passed")
