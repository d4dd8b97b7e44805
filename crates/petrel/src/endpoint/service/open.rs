//! The begin and the end of services, as their clients request.

use std::rc::Rc;

use petrel_proto::Status;

use super::attempts::Attempts;
use super::keeper::Way;
use super::service::Service;
use super::steps::remove_service;
use super::{Due, Services};
use crate::endpoint::context::{Context, Local};
use crate::inbox_message::{OpenService, ServiceWay};
use crate::local::Handle;
use crate::panics::catch;
use crate::time::as_ns;
use crate::values::client::{ServiceKey, Target};

const CALLBACKS_PANICKED: &str = "the function that sets the client's callbacks has panicked, for example at a method that is set twice";

/// Opens the service of a new client.
pub(crate) fn open_service(cx: &mut Context<'_>, open: OpenService) {
    let OpenService { number, counters, targets, look_up, config, way, opened } = open;
    let Some(counters) = counters.upgrade() else { return };
    let end_ns = cx.local.now_ns.saturating_add(as_ns(config.timeout));
    let way = match way {
        ServiceWay::To => Way::To(None),
        ServiceWay::Back(link) => Way::Back(link),
        ServiceWay::Serving(make) => {
            let handle = Handle::new(Rc::clone(&cx.local.hub));
            let Ok(callbacks) = catch(|| make(&handle)) else {
                return opened.end_unsent(Status::Internal, CALLBACKS_PANICKED);
            };
            let callbacks = callbacks.downcast().expect("the type of all callbacks");
            Way::To(Some(cx.local.add_callbacks(*callbacks)))
        }
    };
    let service = Service::new((counters, look_up), config, way, opened, cx.local.now_ns);
    let Services { list, by_number, timers, .. } = &mut *cx.local.services;
    let (index, key) = (number.index(), list.insert(service));
    timers.insert(end_ns, Due::Opening(key));
    cx.local.hub.ask_at(end_ns);
    if by_number.len() <= index {
        by_number.resize_with(index + 1, || None);
    }
    let before = by_number[index].replace(key);
    assert!(before.is_none(), "the number of a service is used once at a time");
    Attempts::of(cx).change_targets(key, targets);
}

/// Changes the servers of a client.
pub(crate) fn set_targets(cx: &mut Context<'_>, number: ServiceKey, targets: Vec<Target>) {
    if let Some(key) = cx.local.services.find(number) {
        Attempts::of(cx).change_targets(key, targets);
    }
}

/// Handles the drop of a client's last handle: the sessions are closed after the last call.
pub(crate) fn close_service(local: &mut Local, number: ServiceKey) {
    let services = &mut *local.services;
    let Some(key) = services.by_number.get_mut(number.index()).and_then(Option::take) else {
        return;
    };
    let service = services.list.get_mut(key).expect("a number is that of a service");
    if service.close() {
        remove_service(local, key);
    }
}
