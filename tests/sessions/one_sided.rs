//! Tests of one-sided operations in sessions: when a connection is lost, its regions become stale.

use std::thread;

use rdmsg::{Completion, Endpoint, Error, Region, RemoteAccess, RemoteRegion};

use super::{TIME_LIMIT, pair};

/// Returns a region of `owner`, and its descriptor as received by `user`.
fn region(owner: &Endpoint, user: &Endpoint) -> (Region, RemoteRegion) {
    let region = owner.one_sided().region(16, RemoteAccess::ALL).unwrap();
    owner.send(&region.remote().to_bytes()).unwrap();
    loop {
        // Skip the completions that precede the message: they report the loss and the resumption.
        if let Completion::Received(message) = next(user) {
            return (region, RemoteRegion::try_from(&message[..]).unwrap());
        }
    }
}

fn next(endpoint: &Endpoint) -> Completion {
    endpoint.next_completion_timeout(TIME_LIMIT).unwrap()
}

/// Writes eight bytes to offset 8 of the remote region `remote`, and waits for the completion. The
/// source of the WRITE is the local region `local`.
fn write(endpoint: &Endpoint, local: &Region, remote: &RemoteRegion, bytes: &[u8; 8]) {
    local.copy_in(0, bytes);
    let operations = endpoint.one_sided();
    operations.write(local, 0..8, remote, 8, 5).unwrap();
    assert!(matches!(next(endpoint), Completion::Written(5)));
}

fn read(region: &Region, offset: usize) -> [u8; 8] {
    let mut bytes = [0; 8];
    region.copy_out(offset, &mut bytes);
    bytes
}

#[test]
fn regions_of_a_lost_connection_are_stale() {
    let (client, server, proxy, _listener) = pair();
    let (server_region, remote) = region(&server, &client);
    let local = client.one_sided().region(8, RemoteAccess::NONE).unwrap();
    write(&client, &local, &remote, b"a write.");
    assert_eq!(read(&server_region, 8), *b"a write.");
    proxy.cut();
    for side in [&client, &server] {
        while side.statistics().resumes == 0 {
            thread::yield_now();
        }
    }
    let (new_region, new_remote) = region(&server, &client);
    let new_local = client.one_sided().region(8, RemoteAccess::NONE).unwrap();
    for (local, remote) in [(&local, &new_remote), (&new_local, &remote)] {
        let stale = client.one_sided().write(local, 0..8, remote, 8, 6);
        assert!(matches!(stale, Err(Error::StaleRegion)), "{stale:?}");
    }
    write(&client, &new_local, &new_remote, b"another.");
    assert_eq!(
        (read(&server_region, 8), read(&new_region, 8)),
        (*b"a write.", *b"another.")
    );
    assert_eq!(
        read(&local, 0),
        *b"a write.",
        "the local region must stay readable"
    );
    client.close().unwrap();
}

#[test]
fn lost_writes_and_atomics_have_an_unknown_outcome() {
    let (client, server, proxy, _listener) = pair();
    let (server_region, remote) = region(&server, &client);
    let local = client.one_sided().region(24, RemoteAccess::NONE).unwrap();
    proxy.discard(true);
    let operations = client.one_sided();
    operations.write(&local, 0..8, &remote, 0, 1).unwrap();
    operations.read(&local, 8..16, &remote, 0, 2).unwrap();
    operations.fetch_add(&local, 16, &remote, 0, 1, 3).unwrap();
    // The proxy may not have read all bytes of the operations yet. End the connection before the
    // proxy stops discarding, so that the proxy does not forward these bytes.
    proxy.close();
    proxy.discard(false);
    proxy.open();
    let mut unknown = Vec::new();
    loop {
        match next(&client) {
            Completion::OutcomeUnknown { id, reason } => {
                assert!(reason.is_loss(), "{reason}");
                unknown.push(id);
            }
            Completion::Failed { id, reason } => {
                assert!(reason.is_loss(), "{reason}");
                assert_eq!(
                    id, 2,
                    "only the READ may complete as failed, because it changes nothing at the peer"
                );
            }
            Completion::Suspended { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(unknown, [1, 3]);
    assert!(matches!(next(&client), Completion::Resumed { .. }));
    assert_eq!(
        read(&server_region, 0),
        [0; 8],
        "no operation may be repeated"
    );
    client.send(b"goes on").unwrap();
    assert_eq!(server.recv_timeout(TIME_LIMIT).unwrap(), b"goes on");
    client.close().unwrap();
}

#[test]
fn writes_with_immediate_data_are_refused() {
    let (client, server, _proxy, _listener) = pair();
    let (_server_region, remote) = region(&server, &client);
    let local = client.one_sided().region(8, RemoteAccess::NONE).unwrap();
    let tried = client
        .one_sided()
        .write_with_imm(&local, 0..8, &remote, 0, 1, 1);
    match tried {
        Err(Error::NotSupported { operation, .. }) => assert_eq!(operation, "write_with_imm"),
        other => panic!("{other:?}"),
    }
    client.close().unwrap();
}
