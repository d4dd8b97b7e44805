//! A till that counts a payment twice, and the simulator that finds it.
//!
//! The till's client repeats a payment if its answer does not come. The first till adds whatever comes; the second keeps the numbers of
//! payments, and adds each once. `cargo run -p petrel-sim --example payments`

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use petrel::service::{Ctx, Postcard};
use petrel::{Error, Status};
use petrel_sim::service::{self, Host, Setup};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Payment {
    /// Chosen by the client, and the same in each repetition.
    number: u64,
    cents: u64,
}

#[petrel::service(codec = Postcard)]
trait Till {
    async fn pay(&self, cx: &Ctx, payment: Payment) -> Result<(), Error>;
}

/// What a till has on its disk.
#[derive(Default)]
struct Disk {
    cents: Cell<u64>,
    numbers: RefCell<BTreeSet<u64>>,
}

/// A till, which crashes now and then. Its disk stays.
struct OnDisk {
    disk: Rc<Disk>,
    knows_numbers: bool,
}

impl Till for OnDisk {
    async fn pay(&self, _: &Ctx, payment: Payment) -> Result<(), Error> {
        if payment.cents == 0 {
            return Err(Error::new(Status::InvalidArgument, "nothing is paid"));
        }
        let is_new = self.disk.numbers.borrow_mut().insert(payment.number);
        if is_new || !self.knows_numbers {
            self.disk.cents.set(self.disk.cents.get() + payment.cents);
        }
        Ok(())
    }
}

/// Pays until the till has confirmed it.
async fn pay_for_certain(till: &TillClient, payment: &Payment) {
    while till.pay(payment).idempotent().wait_for_ready().await.is_err() {}
}

async fn customer(host: Host, customer: u64, paid: Rc<Cell<u64>>) {
    let till = TillClient::new(host.client("till"));
    for number in 0..5 {
        let cents = host.rng().between(1, 100);
        pay_for_certain(&till, &Payment { number: customer * 100 + number, cents }).await;
        paid.set(paid.get() + cents);
    }
}

/// Two customers at a till. In the end the till has the money that was paid.
fn shop(setup: &mut Setup, knows_numbers: bool) {
    let (disk, paid) = (Rc::new(Disk::default()), Rc::new(Cell::new(0)));
    let of_till = Rc::clone(&disk);
    setup.server("till", move |_, endpoint| {
        endpoint.serve(TillServer::new(OnDisk { disk: Rc::clone(&of_till), knows_numbers }));
    });
    for number in 0..2 {
        let paid = Rc::clone(&paid);
        setup.client(format!("customer {number}"), async move |host| {
            customer(host, number, paid).await
        });
    }
    setup.at_end(move || match (paid.get(), disk.cents.get()) {
        (paid, cents) if paid == cents => Ok(()),
        (paid, cents) => Err(format!("{paid} cents were paid, and the till has {cents}")),
    });
}

fn main() {
    let found = service::find(0..2_000, |setup| shop(setup, false));
    let found = found.expect("some packet with an answer is lost");
    println!("the first till: {found}");
    assert_eq!(service::run(found.seed, |setup| shop(setup, false)), Err(found));
    service::check(0..300, |setup| shop(setup, true));
    println!("the second till: 300 seeds are right");
}
