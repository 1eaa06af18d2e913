//! Tests connection requests that the program leaves unread, drops together with their event, or
//! never answers.

use rdmsg::{
    cm::{ConnParam, EventChannel},
    status::{CmEventType, RejectReason},
};
use toolbox::DeviceTest;

use crate::common::{
    CLIENT, Queues, SERVER, Server, assert_no_leak, assert_none, connecting, count_resources,
    expect, expect_success,
};

/// Asserts that the peer's connection manager has rejected the request, because the peer has
/// destroyed the request's id.
fn assert_rejected(channel: &EventChannel, context: u64) {
    let event = expect(channel, CmEventType::REJECTED, context);
    assert_eq!(event.reject_reason(), RejectReason::CONSUMER_DEFINED);
    assert!(event.private_data().iter().all(|byte| *byte == 0));
}

/// Dropping a listener rejects its unread requests.
#[test]
fn unread_requests_end_with_their_listener() {
    let lab = DeviceTest::without_credits();
    let before = count_resources(&lab);
    let mut unread = 0;
    for _ in 0..5 {
        let server = Server::new(lab.addr);
        let channel = EventChannel::new().unwrap();
        let _first = connecting(&channel, server.addr, 1, b"");
        let _second = connecting(&EventChannel::new().unwrap(), server.addr, 2, b"");
        // Requests usually arrive in the order of the calls. When the third request arrives, the
        // first two requests have therefore usually arrived.
        let fence = Server::new(lab.addr);
        let _third = connecting(&EventChannel::new().unwrap(), fence.addr, 3, b"");
        let _request = fence.request();
        drop(server.listener);
        let event = expect(&channel, CmEventType::REJECTED, 1);
        match event.reject_reason() {
            RejectReason::CONSUMER_DEFINED => unread += 1,
            // In this round, the listener was destroyed before the request arrived.
            reason => assert_eq!(reason, RejectReason::INVALID_SERVICE_ID),
        }
        assert_none(&server.channel);
    }
    assert!(
        unread > 0,
        "at least one listener must be dropped with an unread request"
    );
    assert_no_leak(&lab, &before);
}

/// A request that the program has taken remains usable after its listener is dropped.
#[test]
fn a_taken_request_outlives_its_listener() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let (_first, queues) = connecting(&channel, server.addr, 1, b"");
    let mut accepted = server.request().take_request().unwrap();
    let _second = connecting(&channel, server.addr, 2, b"");
    let unanswered = server.request().take_request().unwrap();
    let _third = connecting(&channel, server.addr, 3, b"");
    let untaken = server.request();
    drop(server.listener);

    accepted.set_context(SERVER);
    let accepting = Queues::of(&mut accepted);
    accepted.accept(&ConnParam::default()).unwrap();
    expect_success(&channel, CmEventType::ESTABLISHED, 1);
    expect_success(&server.channel, CmEventType::ESTABLISHED, SERVER);
    queues.exchange(&accepting);
    drop(unanswered);
    assert_rejected(&channel, 2);
    drop(untaken);
    assert_rejected(&channel, 3);
    accepting.exchange(&queues);
}

#[test]
fn a_request_dropped_with_its_event_is_rejected() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let _client = connecting(&channel, server.addr, CLIENT, b"");
    drop(server.request());
    assert_rejected(&channel, CLIENT);
    // The listener still accepts requests.
    let _client = connecting(&channel, server.addr, CLIENT, b"");
    drop(server.request().take_request());
    assert_rejected(&channel, CLIENT);
}

/// A dropped request that has a queue pair is rejected only when the queue pair is dropped, too.
/// This test drops the queue pair after the handles of the channel, the listener and the request.
#[test]
fn dropped_request_with_queue_pair_is_rejected() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let _client = connecting(&channel, server.addr, CLIENT, b"");
    let mut request = server.request().take_request().unwrap();
    let Queues { qp, .. } = Queues::of(&mut request);
    drop(server);
    drop(request);
    assert_none(&channel);
    drop(qp);
    assert_rejected(&channel, CLIENT);
}
