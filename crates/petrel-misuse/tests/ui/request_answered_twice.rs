use petrel::endpoint::Handled;
use petrel::{Context, Request};

fn twice(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let _ = request.reply(cx, b"one");
    request.reply(cx, b"two")
}

fn main() {}
