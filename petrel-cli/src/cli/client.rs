//! Arguments of the subcommands that talk to a running server: `petrel ping`, `call`, `stats` and `health`.

use std::time::Duration;

use clap::Args;
use petrel::service::Metadata;
use petrel_command::args::ServerAddress;
use petrel_command::args::values::{
    Method, Payload, TransportChoice, parse_at_least, parse_message_max,
};
use petrel_command::load::OWN_ECHO_BYTES_MIN;
use petrel_command::text::from_hex;
use petrel_command::units::parse_duration;

/// The server to call, and how.
#[derive(Args, Debug)]
pub(crate) struct ServerArgs {
    /// The server's control address; without a port it is 31850
    #[arg(value_name = "ADDR")]
    pub(crate) address: ServerAddress,

    /// Transport to use
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    pub(crate) transport: TransportChoice,

    /// Number of the server's endpoint to call
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) endpoint: u16,

    /// How long to wait for the connection, and for every reply
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// Call any Petrel server repeatedly, and print the latency of the replies
///
/// The server's endpoint answers by itself, whatever its methods; with --method a handler of the server answers.
/// Every reply is compared with its request. At the end come the number of calls sent and answered, and
/// the latency's p50, p99, p99.9 and maximum. The exit code is 1 if any call failed or any reply
/// differed. Ctrl-C ends the run early, with the figures so far.
///
/// By naming an address of another host, you allow unprotected calls to that host.
#[derive(Args, Debug)]
#[command(after_long_help = PING_AFTER_HELP)]
pub(crate) struct PingArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// How many calls to make
    #[arg(long, short, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,

    /// Size of request and reply, in bytes or with a unit
    #[arg(long, short, value_name = "SIZE", default_value = "32", value_parser = parse_message_max)]
    pub(crate) size: u32,

    /// Largest message, as request and as reply, up to 1GiB [default: 8MiB, or a larger --size]
    ///
    /// The server has a separate limit: `petrel serve --message-max`.
    #[arg(long, value_name = "SIZE", value_parser = parse_message_max)]
    pub(crate) message_max: Option<u32>,

    /// Call this method, which must echo its requests: a number, or a name of `petrel serve` [default: the
    /// endpoint's own echo]
    #[arg(long, short, value_name = "METHOD")]
    pub(crate) method: Option<Method>,

    /// Uncounted calls to make first, to warm caches and learn round-trip times [default: as many as take 30ms]
    #[arg(long, value_name = "N")]
    pub(crate) warm_up: Option<u64>,

    /// Calls in flight at a time; more than one measures latency under load
    #[arg(long, visible_alias = "window", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,
}

impl PingArgs {
    /// Checks the arguments beside each other.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.method {
            None if self.size < OWN_ECHO_BYTES_MIN => Err(format!(
                "the endpoint's own echo takes {OWN_ECHO_BYTES_MIN} bytes or more: for fewer name a method of the server, \
                 as in --method echo"
            )),
            _ => Ok(()),
        }
    }
}

const PING_AFTER_HELP: &str = "\
Examples:
  petrel ping 127.0.0.1:31850
  petrel ping [::1]:31850 --count 100000 --size 32
  petrel ping 127.0.0.1:31850 --transport shm --size 8MiB --count 100
  petrel ping 10.0.0.7:31850 --in-flight 8 --json";

/// Make one call and print the reply
///
/// The reply's bytes go to standard output unchanged; with --json as text if they are UTF-8, else as
/// hexadecimal digits. Metadata of the reply and details of an error go to standard error. Each message of a
/// stream is a line, and with --json the last line has the end; --timeout is then for the begin of the stream,
/// which goes on until its end. The exit code is 1 if the call fails; the message then says whether the server
/// may have executed the call. `petrel serve --help` lists the methods.
#[derive(Args, Debug)]
#[command(after_long_help = CALL_AFTER_HELP)]
pub(crate) struct CallArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Method of a typed service, as `petrel list` prints it; --data is then JSON if its messages are of protobuf
    #[arg(value_name = "SERVICE/METHOD", conflicts_with = "method")]
    pub(crate) name: Option<String>,

    /// Method to call, by name or by number
    #[arg(long, short, value_name = "NAME|NUMBER", default_value = "echo")]
    pub(crate) method: Method,

    /// Bytes to send: the text itself, @PATH for a file's contents, - for standard input. Each line is a message if the client streams
    #[arg(long, short, value_name = "TEXT|@PATH|-", default_value = "", hide_default_value = true)]
    pub(crate) data: Payload,

    /// Entry of metadata beside the request of a typed method; may be repeated. The value of a key that ends in -bin is
    /// hexadecimal digits
    #[arg(long, value_name = "KEY=VALUE", requires = "name", conflicts_with = "method")]
    #[arg(value_parser = parse_entry)]
    pub(crate) metadata: Vec<(String, Vec<u8>)>,
}

/// Parses an entry of metadata.
fn parse_entry(text: &str) -> Result<(String, Vec<u8>), String> {
    let (key, value) = text.split_once('=').ok_or("an entry is KEY=VALUE, such as tenant=a")?;
    let value = match key.ends_with("-bin") {
        true => from_hex(value).ok_or("bytes are pairs of hexadecimal digits, such as 07ff")?,
        false => value.as_bytes().to_vec(),
    };
    Metadata::new().insert(key, &value).map_err(|error| error.message.clone())?;
    Ok((key.to_owned(), value))
}

const CALL_AFTER_HELP: &str = "\
Examples:
  petrel call 127.0.0.1:31850 --method echo --data hello
  petrel call 127.0.0.1:31850 greeter.Greeter/Hello --data '{\"name\":\"petrel\"}'
  petrel call 127.0.0.1:31850 greeter.Greeter/Hello --data '{\"name\":\"petrel\"}' --metadata tenant=a
  petrel call 127.0.0.1:31850 birds.Birds/Count --data @birds.jsonl
  petrel call 127.0.0.1:31850 --method 2 --data @request.bin > reply.bin
  date | petrel call [::1]:31850 --data -";

/// List the methods of a server's typed services
///
/// The server names its services with their versions, and each method with its number and its codec. With --json every
/// method is a record, with the fingerprint of its messages.
#[derive(Args, Debug)]
#[command(after_long_help = LIST_AFTER_HELP)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

const LIST_AFTER_HELP: &str = "\
Examples:
  petrel list 127.0.0.1:31850
  petrel list 127.0.0.1:31850 --json";

/// Print the counters of a running process, from outside
///
/// Asks the control port for the counters of all endpoints of the process: calls, packets,
/// retransmissions, and every reason for which a packet or a call was dropped or refused. The server's
/// calls continue undisturbed.
#[derive(Args, Debug)]
#[command(after_long_help = STATS_AFTER_HELP)]
pub(crate) struct StatsArgs {
    /// The process's control address; without a port it is 31850
    #[arg(value_name = "ADDR", required = true, num_args = 1..=2)]
    words: Vec<String>,

    /// Print repeatedly, with the change per second, until interrupted [every: 1s]
    #[arg(long, value_name = "EVERY", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1s", value_parser = parse_watch)]
    watch: Option<Duration>,

    /// How long to wait for an answer
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// The shortest interval of `--watch`: a server answers within milliseconds.
const WATCH_MIN: Duration = Duration::from_millis(10);

fn parse_watch(text: &str) -> Result<Duration, String> {
    parse_at_least(text, WATCH_MIN)
}

impl StatsArgs {
    /// Returns the address, and the interval of `--watch`. The interval may also stand behind the flag as a word of its
    /// own, `--watch 1s`, where the parser takes it for a second address.
    ///
    /// # Errors
    /// Why a word is neither of the two.
    pub(crate) fn target(&self) -> Result<(ServerAddress, Option<Duration>), String> {
        match (self.words.as_slice(), self.watch) {
            ([address], watch) => Ok((address.parse()?, watch)),
            ([first, second], Some(_)) => match (parse_watch(first), parse_watch(second)) {
                (_, Ok(every)) => Ok((first.parse()?, Some(every))),
                (Ok(every), _) => Ok((second.parse()?, Some(every))),
                (_, Err(reason)) => Err(reason),
            },
            (words, _) => Err(format!("one address is expected, and not '{}'", words.join(" "))),
        }
    }
}

const STATS_AFTER_HELP: &str = "\
Examples:
  petrel stats 127.0.0.1:31850
  petrel stats 127.0.0.1:31850 --watch
  petrel stats 127.0.0.1:31850 --watch 250ms --json";

/// Ask a server whether it can serve: the exit code is 0 if so
///
/// The endpoint answers from its event loop, whatever its methods. The exit code is 1 if the server
/// drains, lacks the method, or does not answer in time.
#[derive(Args, Debug)]
#[command(after_long_help = HEALTH_AFTER_HELP)]
pub(crate) struct HealthArgs {
    /// The server's control address; without a port it is 31850
    #[arg(value_name = "ADDR")]
    pub(crate) address: ServerAddress,

    /// Ask for one method: a number, or a name of `petrel serve`
    #[arg(long, short, value_name = "METHOD")]
    pub(crate) method: Option<Method>,

    /// Number of the server's endpoint to ask
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) endpoint: u16,

    /// How long to wait for the connection, and for the answer
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

const HEALTH_AFTER_HELP: &str = "\
Examples:
  petrel health 127.0.0.1:31850
  petrel health kv-0.example.com --timeout 500ms
  petrel health 127.0.0.1:31850 --method echo --json";
