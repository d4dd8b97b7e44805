//! A cache for memcached's clients within another program: address, threads and MiB of memory are its
//! arguments. `cargo run -p petrel-cache --example serve -- 127.0.0.1:11211 2 1024`

use std::error::Error;
use std::io::Read;

use petrel_cache::{CacheConfig, CacheServer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:11211".to_owned());
    let threads = arguments.next().map_or(Ok(1), |count| count.parse())?;
    let mebibytes = arguments.next().map_or(Ok(1024), |count| count.parse::<u64>())?;
    let memory_bytes = mebibytes << 20;
    let config = CacheConfig { memory_bytes, threads, ..CacheConfig::at(address.parse()?) };
    let server = CacheServer::start(&config)?;
    println!("{server:?}; the end of the input ends it");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    for (name, value) in server.stop()?.counters {
        println!("{name} {value}");
    }
    Ok(())
}
