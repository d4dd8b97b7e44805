//! A write to three replicas that two have to accept: `cargo run --example quorum_write`.
//!
//! A replica is a process. With one replica dead writes go on; with two dead they fail, and report the outcome of every
//! replica.

use std::cell::RefCell;
use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use petrel::endpoint::{CallOptions, EndpointConfig};
use petrel::group::{Group, GroupFailure, Late, Member, Need};
use petrel::task::Handle;
use petrel::{MsgBuf, Nexus, Status};

type Failure = Box<dyn Error>;

/// Adds a record to the log, and answers with the number of records.
const APPEND: u16 = 1;

fn main() -> Result<(), Failure> {
    match env::args().nth(1).as_deref() {
        Some("be-a-replica") => replica(),
        _ => write_all(),
    }
}

fn write_all() -> Result<(), Failure> {
    let mut replicas = [Replica::start()?, Replica::start()?, Replica::start()?];
    let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
    let handle = endpoint.handle();
    endpoint.block_on(async {
        let mut sessions = Vec::new();
        for replica in &replicas {
            sessions.push(handle.connect(replica.address).await?);
        }
        let group = Group::new(sessions.iter().map(|session| session.id()))?;

        let members = append(&handle, &group, "first").await?;
        println!("all there:  {}", describe(&members));

        replicas[1].kill()?;
        let members = append(&handle, &group, "second").await?;
        println!("one dead:   {}", describe(&members));
        let took = members.iter().filter(|member| member.outcome.answer().is_some()).count();
        assert!(took == 2, "two of three are a quorum: {members:?}");

        replicas[2].kill()?;
        let Err(failure) = append(&handle, &group, "third").await else {
            return Err("one of three is no quorum".into());
        };
        println!("two dead:   {failure}");
        let text = failure.to_string();
        let dead = failure.members.iter().filter_map(|member| member.outcome.failure());
        let statuses: Vec<_> = dead.map(|failure| failure.status).collect();
        assert_eq!(statuses, [Status::Unavailable; 2], "{text}");
        assert!(text.contains("UNAVAILABLE"), "{text}");
        Ok(())
    })
}

/// The message is built once, and sent to all from the same memory.
async fn append(
    handle: &Handle,
    group: &Group,
    record: &str,
) -> Result<Vec<Member<MsgBuf>>, GroupFailure<MsgBuf>> {
    let record = handle.share(record.as_bytes()).expect("memory for a record");
    let options = CallOptions::new().timeout(Duration::from_secs(60));
    // Replicas slower than the quorum still get the record.
    group.call_async(handle, APPEND, &record, Need::Quorum(2), options, Late::Finish).await
}

/// Describes the current outcome of every member.
fn describe(members: &[Member<MsgBuf>]) -> String {
    let each =
        members.iter().map(|member| match (member.outcome.answer(), member.outcome.failure()) {
            (Some(count), _) => format!("has {} records", count[0]),
            (_, Some(failure)) => format!("failed with {}", failure.status),
            (None, None) => "has not answered yet".to_owned(),
        });
    each.collect::<Vec<_>>().join(", ")
}

/// A replica's process, with a log until the end of standard input.
fn replica() -> Result<(), Failure> {
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    let mut endpoint = nexus.endpoint(EndpointConfig::default())?;
    let log = RefCell::new(Vec::new());
    endpoint.on(APPEND, move |_, cx, request| {
        let mut log = log.borrow_mut();
        log.push(request.data().to_vec());
        request.reply(cx, &[log.len() as u8])
    });
    println!("{}", nexus.local_addr().ok_or("it listens")?);
    let stop = endpoint.stop_handle();
    let end = stop.clone();
    thread::spawn(move || {
        // An error is an end, too.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        end.stop();
    });
    endpoint.run(&stop);
    Ok(())
}

/// A process of this program.
struct Replica {
    child: Child,
    address: SocketAddr,
}

impl Replica {
    fn start() -> Result<Self, Failure> {
        let mut child = Command::new(env::current_exe()?)
            .arg("be-a-replica")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("it is piped")?;
        let address = BufReader::new(stdout).lines().next().ok_or("the replica has ended")??;
        Ok(Self { child, address: address.parse()? })
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // A replica ends with its input, unless killed before.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
