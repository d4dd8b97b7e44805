use petrel::endpoint::SessionId;
use petrel::Context;

struct Mine;

struct Other;

fn mixed(cx: &mut Context<'_, Mine>, session: SessionId) {
    let _ = cx.call(session, 1, "").then(|_state: &mut Other, _cx, _reply| {});
}

fn main() {}
