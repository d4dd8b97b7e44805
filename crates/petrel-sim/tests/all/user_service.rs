//! Services of applications in the simulator: equal seeds, every kind of fault, and rules that break.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use petrel::service::{Ctx, Raw};
use petrel::workers::WorkerRequest;
use petrel::{Client, Context, Error};
use petrel_sim::Trace;
use petrel_sim::service::{Faults, Report, Setup, check, find, run, run_traced};

#[petrel::service(name = "test.Book", codec = Raw)]
trait Book {
    /// Writes a line, after a while.
    async fn write(&self, cx: &Ctx, line: String) -> Result<(), Error>;
    #[dispatch]
    #[idempotent]
    fn count(&self, cx: &mut Context<'_>, _: ()) -> Result<String, Error>;
    #[worker]
    #[idempotent]
    fn capitals(&self, cx: &WorkerRequest, text: String) -> Result<String, Error>;
}

/// The lines of a server's life.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Book for Lines {
    async fn write(&self, cx: &Ctx, line: String) -> Result<(), Error> {
        cx.handle().sleep(Duration::from_micros(30)).await;
        self.0.lock().unwrap().push(line);
        Ok(())
    }

    fn count(&self, _: &mut Context<'_>, (): ()) -> Result<String, Error> {
        Ok(self.0.lock().unwrap().len().to_string())
    }

    fn capitals(&self, _: &WorkerRequest, text: String) -> Result<String, Error> {
        Ok(text.to_uppercase())
    }
}

/// The outcomes of a run: calls that succeeded, and the begins of servers.
#[derive(Clone, Default)]
struct Outcome {
    succeeded: Rc<Cell<u64>>,
    begins: Rc<Cell<u64>>,
}

impl Outcome {
    fn add(count: &Cell<u64>) {
        count.set(count.get() + 1);
    }
}

/// Two servers, and three clients that call both.
fn two_books(setup: &mut Setup, outcome: &Outcome) {
    for name in ["book 0", "book 1"] {
        let begins = Rc::clone(&outcome.begins);
        setup.server(name, move |host, endpoint| {
            assert_eq!(host.name(), name);
            Outcome::add(&begins);
            let book = Arc::new(Lines::default());
            endpoint.serve(BookServer::shared(book, host.workers()));
        });
    }
    for number in 0..3_u64 {
        let succeeded = Rc::clone(&outcome.succeeded);
        setup.client(format!("reader {number}"), async move |host| {
            let at = |server| BookClient::new(host.client(server));
            let books = [at("book 0"), at("book 1")];
            for call in 0..20 {
                let book = &books[host.rng().below(2) as usize];
                let outcome = match call % 3 {
                    0 => book.write(format!("{number} writes {call}")).wait_for_ready().await,
                    1 => book.count(()).await.map(drop),
                    _ => book.capitals("tern".to_owned()).wait_for_ready().await.map(|text| {
                        assert_eq!(text, "TERN");
                    }),
                };
                if outcome.is_ok() {
                    Outcome::add(&succeeded);
                }
                let pause = host.rng().below(200);
                host.sleep(Duration::from_micros(pause)).await;
            }
        });
    }
}

/// Runs a seed, and returns its report, its record and its outcome.
fn traced(seed: u64) -> (Report, Vec<String>, u64) {
    let (lines, outcome) = (Rc::<RefCell<Vec<String>>>::default(), Outcome::default());
    let sink = Rc::clone(&lines);
    let trace = Trace::off().with_sink(move |line| sink.borrow_mut().push(line.to_owned()));
    let report = run_traced(seed, trace, |setup| two_books(setup, &outcome)).unwrap();
    (report, lines.take(), outcome.succeeded.get())
}

#[test]
fn run__of_a_seed_is_the_same_each_time() {
    for seed in 0..20 {
        let first = traced(seed);
        assert!(first.1.len() > 100 && first == traced(seed), "seed {seed}");
    }
    assert_ne!(traced(1).1, traced(2).1);
}

#[test]
fn seeds__have_every_fault_and_most_calls_succeed() {
    let (mut succeeded, mut crashes, mut lost, mut failed) = (0, 0, 0, 0);
    for seed in 0..100 {
        let outcome = Outcome::default();
        let report = run(seed, |setup| two_books(setup, &outcome)).unwrap();
        // A host may be down still when the clients have ended.
        let again = outcome.begins.get() - 2;
        assert!(again <= report.crashes && again + 2 >= report.crashes, "seed {seed}: {again}");
        succeeded += outcome.succeeded.get();
        crashes += report.crashes;
        lost += report.packets_lost;
        failed += u64::from(outcome.succeeded.get() < 60);
    }
    assert!(succeeded > 100 * 60 * 3 / 4, "{succeeded} calls");
    assert!(crashes > 30 && lost > 100 && failed > 5, "{crashes}, {lost}, {failed}");
}

#[test]
fn faults__can_be_chosen() {
    for (faults, loses) in [(Faults::NONE, false), (Faults::PACKETS, true)] {
        let mut lost = 0;
        for seed in 0..20 {
            let outcome = Outcome::default();
            let chosen = |setup: &mut Setup| {
                setup.faults(faults);
                two_books(setup, &outcome);
            };
            let report = run(seed, chosen).unwrap();
            assert_eq!(report.crashes, 0);
            assert_eq!(outcome.succeeded.get(), 60, "seed {seed}, {faults:?}");
            lost += report.packets_lost;
        }
        assert_eq!(lost > 0, loses, "{faults:?}");
    }
}

/// A server may be the client of another, whose name comes later.
#[test]
fn servers__call_each_other() {
    let nested = |setup: &mut Setup| {
        setup.server("front", |host, endpoint| {
            let back = endpoint.client([host.address("back")], Default::default());
            endpoint.on_async(1, move |_, request| {
                let back: Client = back.clone();
                async move { back.call(1, request.data().to_vec()).wait_for_ready().await }
            });
        });
        setup.server("back", |_, endpoint| {
            endpoint.on(1, |_, cx, request| request.reply(cx, b"from the back"));
        });
        setup.client("client", async |host| {
            let reply = host.client("front").call(1, "").wait_for_ready().idempotent().await;
            assert!(reply.is_err() || reply.is_ok_and(|reply| reply == b"from the back"));
        });
    };
    check(0..50, nested);
}

fn one(setup: &mut Setup, client: impl AsyncFnOnce(petrel_sim::service::Host) + 'static) {
    setup.faults(Faults::NONE);
    setup.server("server", |_, endpoint| endpoint.on(1, |_, cx, request| request.reply(cx, b"")));
    setup.client("client", client);
}

#[test]
fn failure__of_every_kind_names_its_seed() {
    let violation = |set_up: &(dyn Fn(&mut Setup) + Sync)| {
        let failure = find(3..5, set_up).expect("a failure");
        assert!((3..5).contains(&failure.seed));
        let hint = format!("PETREL_SIM_SEED={}", failure.seed);
        assert!(failure.to_string().ends_with(&hint), "{failure}");
        failure.violation
    };
    let of_client = violation(&|setup| one(setup, async |_| panic!("the client's own")));
    assert_eq!(of_client, "panic: the client's own");
    let at_end = violation(&|setup| {
        one(setup, async |host| drop(host.client("server").call(1, "").wait_for_ready().await));
        setup.at_end(|| Err("the rule of the end".to_owned()));
    });
    assert_eq!(at_end, "the rule of the end");
    let always = violation(&|setup| {
        let calls = Rc::new(Cell::new(0));
        let of_rule = Rc::clone(&calls);
        one(setup, async move |host| {
            for _ in 0..5 {
                let reply = host.client("server").call(1, "").wait_for_ready().await;
                calls.set(calls.get() + u64::from(reply.is_ok()));
            }
        });
        setup.always(move || if of_rule.get() < 3 { Ok(()) } else { Err("three".to_owned()) });
    });
    assert_eq!(always, "three");
    let endless = violation(&|setup| one(setup, async |_| std::future::pending().await));
    assert_eq!(endless, "client: no end 300 s after the last fault");
    let unknown = violation(&|setup| one(setup, async |host| drop(host.client("nobody"))));
    assert_eq!(unknown, "panic: no server has the name \"nobody\"");
    let twice = violation(&|setup| {
        one(setup, async |_| ());
        setup.server("server", |_, _| ());
    });
    assert_eq!(twice, "two servers have the same name");
}

#[test]
#[should_panic(expected = "to repeat the run, with its packets: PETREL_SIM_SEED=0")]
fn check__panics_with_the_seed() {
    check(0..1, |setup| setup.at_end(|| Err("never right".to_owned())));
}
