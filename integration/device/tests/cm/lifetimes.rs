//! Tests that handles can be dropped in any order.

use std::{any::Any, thread};

use rdmsg::{cm::EventChannel, status::CmEventType};
use toolbox::{DeviceTest, Lab};

use crate::common::{
    CLIENT, Queues, SERVER, Server, Side, assert_no_leak, assert_none, connected, connecting,
    count_resources, expect_success,
};

const COUNT: usize = 13;

/// Creates handles of all kinds, for one established connection and two half-open connections. One
/// half-open connection has an unread acceptance, and the other has an unread request.
fn everything() -> [Box<dyn Any + Send>; COUNT] {
    let (client, accepted, server) = connected(Lab::get().addr);
    client.queues.exchange(&accepted.queues);
    let (third, third_queues) = connecting(&client.channel, server.addr, 3, b"");
    let mut request = server.request().take_request().unwrap();
    let request_queues = Queues::of(&mut request);
    request.accept(&crate::common::param(b"unread")).unwrap();
    let (fourth, fourth_queues) =
        connecting(&EventChannel::new().unwrap(), server.addr, 4, b"unread");
    let Queues {
        qp, cq, region, pd, ..
    } = client.queues;
    [
        Box::new(client.id),
        Box::new(client.channel),
        Box::new(qp),
        Box::new(cq),
        Box::new(region),
        Box::new(pd),
        Box::new((accepted.id, accepted.channel)),
        Box::new(accepted.queues),
        Box::new(server.listener),
        Box::new(server.channel),
        Box::new((third, third_queues)),
        Box::new((request, request_queues)),
        Box::new((fourth_queues, fourth)),
    ]
}

/// There are too many orders to test all of them. The tested orders drop each handle at each
/// position, and each pair of handles in both orders.
#[test]
fn handles_are_dropped_in_any_order() {
    let lab = DeviceTest::without_credits();
    let before = count_resources(&lab);
    for step in [1, 5, 12] {
        for start in 0..COUNT {
            let mut handles = everything().map(Some);
            for place in 0..COUNT {
                drop(handles[(start + place * step) % COUNT].take());
            }
            assert!(handles.iter().all(Option::is_none));
            println!("start {start}, step {step}");
            assert_no_leak(&lab, &before);
        }
    }
}

/// Each handle is dropped by a different thread.
#[test]
fn handles_are_dropped_on_any_thread() {
    let lab = DeviceTest::without_credits();
    let before = count_resources(&lab);
    for _ in 0..10 {
        thread::scope(|scope| {
            for handle in everything() {
                scope.spawn(move || drop(handle));
            }
        });
        assert_no_leak(&lab, &before);
    }
}

/// A queue pair stays connected after the program has dropped the queue pair's id, the channel of
/// this id, and the peer's listener.
#[test]
fn a_queue_pair_outlives_its_handles() {
    let lab = DeviceTest::without_credits();
    let before = count_resources(&lab);
    {
        let (client, accepted, server) = connected(lab.addr);
        let Side {
            id,
            queues,
            channel,
        } = client;
        drop((id, channel));
        queues.exchange(&accepted.queues);
        drop(server);
        accepted.queues.exchange(&queues);
        assert_none(&accepted.channel);
        // The program has dropped its handle of the id, but the queue pair keeps the id alive.
        // Dropping the queue pair destroys the id, which ends the connection.
        drop(queues);
        expect_success(&accepted.channel, CmEventType::DISCONNECTED, SERVER);
    }
    assert_no_leak(&lab, &before);
}

/// Dropping an id discards its unread events, so a channel never returns events of a destroyed id.
#[test]
fn unread_events_end_with_their_id() {
    let lab = DeviceTest::without_credits();
    let (client, accepted, server) = connected(lab.addr);
    let mut peer = client.id;
    peer.disconnect().unwrap();
    // Events arrive in the order of the calls, so DISCONNECTED arrives before the request to
    // `fence`.
    let fence = Server::new(lab.addr);
    let channel = EventChannel::new().unwrap();
    let _third = connecting(&channel, fence.addr, CLIENT, b"");
    drop(fence.request());
    drop((accepted.queues, accepted.id));
    assert_none(&server.channel);
}
