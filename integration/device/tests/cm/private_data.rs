//! Tests the private data of requests, acceptances and rejections.

use rdmsg::{
    cm::{EventChannel, PrivateData},
    status::{CmEventType, RejectReason},
};
use toolbox::{DeviceTest, Lab};

use crate::common::{CLIENT, Queues, Server, connecting, expect, expect_success, param, resolved};

/// `EMSGSIZE` of `errno.h`.
const EMSGSIZE: i32 = 90;

/// Asserts that `received` is `sent`, padded with zeros to `len` bytes. `len` is the length of the
/// private data field in the connection manager's message.
fn assert_padded(received: &[u8], sent: &[u8], len: usize) {
    assert_eq!(received.len(), len);
    assert_eq!(received[..sent.len()], *sent);
    assert!(
        received[sent.len()..].iter().all(|byte| *byte == 0),
        "{received:?}"
    );
}

fn both_ways(request: &[u8], answer: &[u8]) {
    let server = Server::new(Lab::get().addr);
    let channel = EventChannel::new().unwrap();
    let (_client, queues) = connecting(&channel, server.addr, CLIENT, request);
    let mut event = server.request();
    assert_padded(event.private_data(), request, PrivateData::CONNECT_MAX);
    let mut id = event.take_request().unwrap();
    let accepting = Queues::of(&mut id);
    id.accept(&param(answer)).unwrap();
    let event = expect_success(&channel, CmEventType::ESTABLISHED, CLIENT);
    assert_padded(event.private_data(), answer, PrivateData::ACCEPT_MAX);
    let event = expect_success(&server.channel, CmEventType::ESTABLISHED, 0);
    assert!(event.private_data().is_empty(), "{event:?}");
    queues.exchange(&accepting);
}

#[test]
fn private_data_arrives_padded() {
    let _test = DeviceTest::without_credits();
    both_ways(b"a request", b"an answer");
}

#[test]
fn private_data_of_maximum_length_arrives() {
    let _test = DeviceTest::without_credits();
    both_ways(
        &[0xa5; PrivateData::CONNECT_MAX],
        &[0x5a; PrivateData::ACCEPT_MAX],
    );
}

#[test]
fn no_private_data_arrives_as_zeros() {
    let _test = DeviceTest::without_credits();
    both_ways(b"", b"");
}

#[test]
fn a_rejection_says_why() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    for reason in [&b"not today"[..], &[7; PrivateData::REJECT_MAX], b""] {
        let (_client, _queues) = connecting(&channel, server.addr, CLIENT, b"");
        let mut id = server.request().take_request().unwrap();
        id.reject(reason).unwrap();
        let event = expect(&channel, CmEventType::REJECTED, CLIENT);
        assert_eq!(event.reject_reason(), RejectReason::CONSUMER_DEFINED);
        assert_padded(event.private_data(), reason, PrivateData::REJECT_MAX);
    }
}

/// A call with too much private data fails before anything is sent, and does not change the id.
#[test]
fn too_much_private_data_is_refused() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let mut client = resolved(&channel, server.addr, CLIENT);
    let _queues = Queues::of(&mut client);
    let error = client
        .connect(&param(&[1; PrivateData::CONNECT_MAX + 1]))
        .unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_connect", EMSGSIZE));
    client.connect(&param(b"fits")).unwrap();
    let mut id = server.request().take_request().unwrap();
    let error = id
        .accept(&param(&[1; PrivateData::ACCEPT_MAX + 1]))
        .unwrap_err();
    assert_eq!((error.call, error.errno), ("rdma_accept", EMSGSIZE));
    for len in [PrivateData::REJECT_MAX + 1, 255] {
        let error = id.reject(&vec![1; len]).unwrap_err();
        assert_eq!((error.call, error.errno), ("rdma_reject", EMSGSIZE));
    }
    for len in [256, 256 + PrivateData::REJECT_MAX, 70_000] {
        assert_eq!(id.reject(&vec![1; len]).unwrap_err().errno, EMSGSIZE);
    }
    id.reject(b"fits").unwrap();
    let event = expect(&channel, CmEventType::REJECTED, CLIENT);
    assert_padded(event.private_data(), b"fits", PrivateData::REJECT_MAX);
}
