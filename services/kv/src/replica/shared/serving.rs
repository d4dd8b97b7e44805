//! Handlers of the requests of clients and operators.

use petrel::endpoint::Handled;
use petrel::{Context, Request};

use super::Shared;
use crate::api::{Certainty, Refusal};
use crate::command::Command;
use crate::replica::reads::{self, Read};
use crate::replica::reconfiguration::refuse;
use crate::replica::writes::Write;

impl Shared {
    /// Handles a client's write.
    pub(crate) fn handle_write(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let state = &mut *self.borrow_mut();
        state.reply.clear();
        let refusal = match &state.member {
            None => Some(Refusal::NotLeader { leader: None }),
            Some(member) if !member.leads() => Some(Refusal::NotLeader { leader: member.leader() }),
            Some(member) if member.writes.len() >= state.config.writes_max => {
                let (certainty, reason) = (Certainty::NotApplied, "too many writes wait already");
                Some(Refusal::Unavailable { certainty, reason })
            }
            Some(_) => None,
        };
        if let Some(refusal) = refusal {
            refusal.encode(&mut state.reply);
            return request.reply(cx, &state.reply);
        }
        let refusal = match (Command::decode(request.data()), &state.member) {
            (Err(error), _) => {
                Refusal::Malformed(&error.to_string()).encode(&mut state.reply);
                return request.reply(cx, &state.reply);
            }
            (Ok(Command::Advance { .. }), _) => {
                Refusal::Malformed("only a leader advances the lease clock")
                    .encode(&mut state.reply);
                return request.reply(cx, &state.reply);
            }
            (Ok(command), Some(member)) => member.refuses(&command, &state.config),
            (Ok(_), None) => None,
        };
        if let Some(reason) = refusal {
            Refusal::Full(reason).encode(&mut state.reply);
            return request.reply(cx, &state.reply);
        }
        let command = bytes::Bytes::copy_from_slice(request.data());
        let (responder, handled) = request.defer(cx);
        if let Some(member) = &mut state.member {
            let (at_ns, responder) = (cx.now().as_ns(), Some(responder));
            member.writes.queue(Write { at_ns, command, responder, precomputed: None });
        }
        handled
    }

    /// Handles a client's read.
    pub(crate) fn handle_read(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let state = &mut *self.borrow_mut();
        let (method, reply) = (request.method(), &mut state.reply);
        reply.clear();
        let Some(member) = &mut state.member else {
            Refusal::NotLeader { leader: None }.encode(reply);
            return request.reply(cx, reply);
        };
        member.apply_answered(cx);
        match reads::may_be_stale(method, request.data()) {
            Err(error) => Refusal::Malformed(&error).encode(reply),
            Ok(true) => member.answer_read(cx, method, request.data(), reply),
            Ok(false) if !member.leads() => {
                Refusal::NotLeader { leader: member.leader() }.encode(reply);
            }
            Ok(false) if member.may_read_now(&state.links, cx, &state.config) => {
                member.answer_read(cx, method, request.data(), reply);
            }
            Ok(false) => {
                let data = request.data().to_vec();
                let (responder, handled) = request.defer(cx);
                member.reads.queue(Read { method, request: data, responder });
                return handled;
            }
        }
        request.reply(cx, reply)
    }

    pub(crate) fn handle_status(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        request.reply(cx, &self.borrow().status().to_vec())
    }

    pub(crate) fn handle_member(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        match &mut self.borrow_mut().member {
            Some(member) => member.handle_member(cx, request),
            None => refuse(cx, request, Refusal::NotLeader { leader: None }),
        }
    }

    pub(crate) fn handle_transfer(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        match &mut self.borrow_mut().member {
            Some(member) => member.handle_transfer(cx, request),
            None => refuse(cx, request, Refusal::NotLeader { leader: None }),
        }
    }
}
