//! A question to five servers, with the answers that come by a deadline: `cargo run --example scatter`.
//!
//! A server is killed, a second one hangs: the question has the answers of the rest, and the failure of each.

mod processes;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use petrel::client::wait;
use petrel::endpoint::CallOptions;
use petrel::group::{ClientGroup, Late, Need};
use petrel::{Client, Server};
use processes::{Failure, Process, end_with_parent, free_address};
use rustix::process::{Pid, Signal, kill_process};

/// Answers with the number of the server.
const ASK: u16 = 1;

const SERVERS: usize = 5;

/// Time for the answers.
const DEADLINE: Duration = Duration::from_millis(300);

fn main() -> Result<(), Failure> {
    match &std::env::args().collect::<Vec<_>>()[1..] {
        [role, address, number] if role == "serve" => serve(address, number.parse()?),
        _ => ask_all(),
    }
}

fn serve(address: &str, number: u8) -> Result<(), Failure> {
    end_with_parent();
    let set_up = |endpoint: &mut petrel::Endpoint<u8>| {
        endpoint.on(ASK, |number, cx, request| request.reply(cx, &[*number]));
    };
    Ok(Server::bind(address).serve(move |_| number, set_up).run()?)
}

fn ask_all() -> Result<(), Failure> {
    let mut addresses = Vec::new();
    for _ in 0..SERVERS {
        addresses.push(free_address()?);
    }
    let start = |number: usize| {
        Process::start(&["serve", &addresses[number].to_string(), &number.to_string()])
    };
    let mut servers = (0..SERVERS).map(start).collect::<Result<Vec<_>, _>>()?;
    let connect = |address: &SocketAddr| Client::builder().lazy().connect_wait(*address);
    let clients = addresses.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    let group = ClientGroup::new(clients)?;
    until(&group, &[0, 1, 2, 3, 4])?;
    servers[1].kill()?;
    until(&group, &[0, 2, 3, 4])?;
    let hung = Pid::from_raw(servers[3].id().try_into()?).ok_or("a process has an id")?;
    kill_process(hung, Signal::STOP)?;
    until(&group, &[0, 2, 4])?;
    servers[1] = start(1)?;
    kill_process(hung, Signal::CONT)?;
    until(&group, &[0, 1, 2, 3, 4])
}

/// Asks until these servers answer, and no other. No question takes much longer than its deadline.
fn until(group: &ClientGroup, expected: &[u8]) -> Result<(), Failure> {
    let guard = Instant::now();
    loop {
        let options = CallOptions::new().timeout(DEADLINE);
        let members = wait(group.call(ASK, "", Need::Each, options, Late::Cancel))?;
        let answers = members.iter().filter_map(|member| member.outcome.answer());
        let answers: Vec<u8> = answers.map(|answer| answer[0]).collect();
        if answers == expected {
            println!("answers of {answers:?}");
            return Ok(());
        }
        if guard.elapsed() > Duration::from_secs(60) {
            return Err(format!("answers of {answers:?} and not of {expected:?}").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
