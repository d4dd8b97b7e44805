//! The handlers of a form's servers.

use std::hint::black_box;
use std::rc::Rc;

use petrel::{Endpoint, Status};
use petrel_cache::wire::{self, got_bytes, put_got};
use petrel_cache::{KeyRange, Lookups, Partition, serve_partition};
use petrel_command::methods;

use super::Form;
use super::accesses::Table;

/// The memory of a server.
pub(super) struct Served {
    pub(super) partition: Partition,
    pub(super) table: Rc<Table>,
}

/// The state of a server's endpoint: the memory, during windows of the server's form.
pub(super) type Slot = Option<Served>;

fn served(slot: &mut Slot) -> &mut Served {
    slot.as_mut().expect("a server has its memory during windows of its form")
}

/// Sets the handlers of a server with a partition.
pub(super) fn register(endpoint: &mut Endpoint<Slot>, form: Form, range: &KeyRange) {
    let Form::Items { lookups, accesses } = form else {
        return endpoint.on(methods::ECHO, |_, cx, request| {
            let len = request.data().len();
            request.reply_with(cx, len, |request, out| {
                out.copy_from_slice(request);
                len
            })
        });
    };
    serve_partition(endpoint, range, lookups, |slot| &mut served(slot).partition);
    match (accesses, lookups) {
        (0, _) => {}
        (_, Lookups::Batched) => get_batched(endpoint, range.clone(), accesses),
        _ => get(endpoint, range.clone(), accesses),
    }
}

/// As the cache's handler, with further accesses.
fn get(endpoint: &mut Endpoint<Slot>, range: KeyRange, accesses: u8) {
    endpoint.on(wire::GET, move |slot, cx, request| {
        let Served { partition, table } = served(slot);
        let Ok(key) = range.key(request.data()) else {
            return request.fail(cx, Status::InvalidArgument, "no key of this partition");
        };
        black_box(table.walk(accesses, key.hash()));
        let Some(item) = partition.get(key) else { return request.reply(cx, &[]) };
        request.reply_with(cx, got_bytes(&item), |_, out| {
            put_got(&item, out);
            out.len()
        })
    });
}

/// As the cache's batched handler, with further accesses.
fn get_batched(endpoint: &mut Endpoint<Slot>, range: KeyRange, accesses: u8) {
    endpoint.on_batch(wire::GET, move |slot, cx, batch| {
        let Served { partition, table } = served(slot);
        let keys = batch.messages().enumerate();
        let keys = keys.filter_map(|(index, message)| Some((index, range.key(message).ok()?)));
        let starts = keys.clone().map(|(_, key)| key.hash());
        table.walk_together(accesses, starts);
        partition.get_batch(keys, |index, item| match item {
            None => batch.reply(cx, index, &[]),
            Some(item) => batch.reply_with(cx, index, got_bytes(&item), |_, out| {
                put_got(&item, out);
                out.len()
            }),
        });
    });
}
