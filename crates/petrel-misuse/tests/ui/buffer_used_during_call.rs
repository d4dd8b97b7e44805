use petrel::endpoint::SessionId;
use petrel::{Context, MsgBuf};

fn too_late(cx: &mut Context<'_>, session: SessionId, mut request: MsgBuf, response: MsgBuf) {
    let _ = cx.call(session, 1, request).into_buffer(response).then(|_, _, _| {});
    request.set_message(b"changed under way");
}

fn main() {}
