use petrel::Endpoint;

fn move_away(mut endpoint: Endpoint) {
    std::thread::spawn(move || endpoint.run_once());
}

fn main() {}
