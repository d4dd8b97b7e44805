//! Regions that cards access: on the card that `PETREL_VERBS` names, or in an emulated machine that has one.

use std::time::Duration;

use petrel::region::{Access, CardRegion, RegionCard, RegionMemory, Regions, RemoteRegion};
use petrel::server::RunningServer;
use petrel::{Client, Server, Status};
use petrel_skip::{Need, skip};

/// Starts a server of these regions, with the card.
fn serve(regions: &Regions, card: &RegionCard) -> RunningServer {
    let (served, card) = (regions.clone(), card.clone());
    Server::bind("10.77.0.1:0")
        .insecure()
        .serve(
            |_| (),
            move |endpoint| {
                endpoint.serve_regions(&served);
                endpoint.serve_regions_by_card(&served, &card);
            },
        )
        .start()
        .unwrap()
}

fn status<T: std::fmt::Debug>(result: Result<T, petrel::Error>) -> Status {
    result.unwrap_err().status
}

fn connect(server: &RunningServer) -> Client {
    Client::builder().insecure().connect_wait(server.local_addr()).unwrap()
}

#[test]
fn by_card__in_all_respects() {
    let Ok(name) = std::env::var("PETREL_VERBS") else {
        return in_guest();
    };
    let card = RegionCard::open(&name).unwrap();
    let regions = Regions::new();
    let access = Access::READ | Access::WRITE | Access::ATOMIC;
    let region = regions.register(RegionMemory::private(1 << 20).unwrap(), access).unwrap();
    let server = serve(&regions, &card);
    let client = connect(&server);
    let remote = RemoteRegion::new(&client, region.key());
    let mut near = remote.by_card_wait(&name).unwrap();

    accesses_take_nothing_of_the_server(&regions, &region, &mut near);
    bounds_and_versions(&region, &mut near);
    assert_eq!(remote.fetch_add(0, 1).wait().unwrap(), 8, "a call beside the card");

    let reader = region.register_with(Access::READ).unwrap();
    let mut read_only = RemoteRegion::new(&client, reader.key()).by_card_wait(&name).unwrap();
    read_only.read(0, &mut [0; 8]).unwrap();
    assert_eq!(status(read_only.write(0, &[1])), Status::PermissionDenied);
    drop(reader);
    assert_eq!(status(read_only.read(0, &mut [0; 8])), Status::PermissionDenied);
    near.read(0, &mut [0; 8]).unwrap();

    let words = region.register_with(Access::ATOMIC).unwrap();
    let words = RemoteRegion::new(&client, words.key());
    assert_eq!(status(words.by_card_wait(&name)), Status::PermissionDenied);
    assert_eq!(status(remote.by_card_wait("no-card")), Status::Unavailable);

    let others: Vec<_> = (0..).map_while(|_| remote.by_card_wait(&name).ok()).take(20).collect();
    assert_eq!(
        others.len(),
        15,
        "16 lendings of a session; that of the revoked key has left its place"
    );
    drop(others);
    let again = (0..100).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        remote.by_card_wait(&name).ok()
    });
    assert!(again.is_some(), "memory that was given back makes room");
    drop(again);
    refusals(&card, &regions, &region);
    drop(server);
    ends_with_the_endpoint(near);
    let server_without = Server::bind("10.77.0.1:0").insecure().serve(|_| (), |_| ());
    let server_without = server_without.start().unwrap();
    let client = connect(&server_without);
    let remote = RemoteRegion::new(&client, region.key());
    assert_eq!(status(remote.by_card_wait(&name)), Status::Unimplemented);
}

/// A card that may pin less than the region has, and a card in use by another endpoint.
fn refusals(card: &RegionCard, regions: &Regions, region: &petrel::region::Region) {
    let name = std::env::var("PETREL_VERBS").unwrap();
    let small = RegionCard::pinning(&name, region.bytes() - 1).unwrap();
    let server = serve(regions, &small);
    let client = connect(&server);
    let remote = RemoteRegion::new(&client, region.key());
    assert_eq!(status(remote.by_card_wait(&name)), Status::ResourceExhausted);

    // The address of a queue pair that no host has, and a request without an address.
    let server = serve(regions, card);
    let client = connect(&server);
    for bytes in [23, 24, 51, 52] {
        let answer = client.call(65_519, vec![0; bytes]).wait();
        assert_eq!(status(answer), Status::InvalidArgument, "{bytes} bytes");
    }
    let refused = regions.stats().refused;
    let address =
        [&[0; 10][..], &[0xFF; 2], &[10, 77, 0, 9], &[0; 2], &[5, 0, 0, 0], &[0; 4], &[5]];
    let guess = [&[0; 24][..], &address.concat()].concat();
    assert_eq!(status(client.call(65_519, guess).wait()), Status::PermissionDenied);
    assert_eq!(regions.stats().refused, refused + 1, "a guess of a key is counted");
}

fn accesses_take_nothing_of_the_server(
    regions: &Regions,
    region: &petrel::region::Region,
    near: &mut CardRegion,
) {
    let before = regions.stats();
    near.write(100, b"by the card").unwrap();
    let mut seen = [0; 11];
    region.read(100, &mut seen).unwrap();
    assert_eq!(&seen, b"by the card");
    region.write(104, b"some").unwrap();
    near.read(100, &mut seen).unwrap();
    assert_eq!(&seen, b"by tsomeard");
    assert_eq!(near.read_many(&[(103, 2), (100, 3)]).unwrap(), b"tsby ");
    assert_eq!(regions.stats(), before, "no endpoint has executed an operation");
}

fn bounds_and_versions(region: &petrel::region::Region, near: &mut CardRegion) {
    assert_eq!(near.bytes(), 1 << 20);
    assert_eq!(status(near.read((1 << 20) - 3, &mut [0; 4])), Status::OutOfRange);
    assert_eq!(status(near.write(u64::MAX, &[0; 4])), Status::OutOfRange);
    assert_eq!(status(near.read_versioned(4, 8)), Status::InvalidArgument);
    assert_eq!(region.write_versioned(0, b"version").unwrap(), 2);
    let seen = near.read_versioned(0, 7).unwrap();
    assert_eq!((seen.version, &seen.value[..]), (2, &b"version"[..]));
    region.store(0, 3).unwrap();
    assert_eq!(status(near.read_versioned(0, 7)), Status::Aborted);
    region.store(0, 8).unwrap();
}

fn ends_with_the_endpoint(mut near: CardRegion) {
    let refused = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        near.read(0, &mut [0; 8]).err()
    });
    assert_eq!(refused.unwrap().status, Status::Unavailable);
}

fn in_guest() {
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().display();
    let test = "region_by_card::by_card__in_all_respects";
    let script = format!("PETREL_VERBS=rxe0 {name} --exact {test}");
    match petrel_netns::in_guest(&script, &[&program]) {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("test result: ok. 1 passed"), "{text}");
        }
        Err(error) => skip(Need::Card, error),
    }
}
