use petrel::endpoint::Handled;
use petrel::{Context, Request};

fn forgetful(_cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let _ = request.data().len();
}

fn main() {}
