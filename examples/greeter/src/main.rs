//! `petrel-greeter` serves at 127.0.0.1:31850: `petrel call 127.0.0.1 greeter.Greeter/Hello --data '{"name": "petrel"}'`.

use petrel::Server;
use petrel_greeter::Polite;
use petrel_greeter::greeter::GreeterServer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:31850".to_owned());
    let server = Server::bind(&*address);
    server.serve(|_| (), |endpoint| endpoint.serve(GreeterServer::new(Polite))).run()?;
    Ok(())
}
