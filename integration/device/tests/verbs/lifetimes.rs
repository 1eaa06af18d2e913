//! Tests that threads can share handles and drop them in any order, and that no object leaks.

use std::{
    any::Any,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use rdmsg::verbs::{
    AddressHandle, CompletionChannel, CompletionQueue, Inline, ProtectionDomain, QpCap, QpInitAttr,
    QueuePair, RecvWr, RemoteAddr, SendWr, Sge, SharedReceiveQueue, SrqAttr,
};
use toolbox::{DeviceTest, Lab, Stop};

use crate::pair::{Pair, Setup, bytes, completions, connect, open, path, region, success};

/// Creates an object of each kind and uses it. On return, receives are posted, one message has been
/// received, and the completion event of this message is unread.
fn everything() -> Vec<Box<dyn Any>> {
    let context = open();
    let pd = ProtectionDomain::new(&context).unwrap();
    let channel = CompletionChannel::new(&context).unwrap();
    let cq = CompletionQueue::new(&context, 16, Some((&channel, 1))).unwrap();
    let srq = SharedReceiveQueue::new(
        &pd,
        &SrqAttr {
            max_wr: 8,
            ..SrqAttr::default()
        },
        0,
    )
    .unwrap();
    let cap = QpCap {
        max_send_wr: 4,
        max_inline_data: 16,
        ..QpCap::default()
    };
    let attr = QpInitAttr {
        srq: Some(&srq),
        sq_sig_all: true,
        ..QpInitAttr::rc(&cq, cap)
    };
    let qp = QueuePair::new(&pd, &attr).unwrap();
    connect(&qp, &qp, &Setup::default());
    let memory = region(&pd, 4096);
    let handle = AddressHandle::new(&pd, &path(&context)).unwrap();
    srq.post_recv(&[1, 2, 3].map(|id| RecvWr::new(id, Sge::new(&memory, ..))))
        .unwrap();
    cq.req_notify(false).unwrap();
    qp.post_send(&[SendWr::send(4, Inline(b"in use"))]).unwrap();
    assert_eq!(completions(&cq, 2).len(), 2);
    vec![
        Box::new(context),
        Box::new(pd),
        Box::new(channel),
        Box::new(cq),
        Box::new(srq),
        Box::new(qp),
        Box::new(memory),
        Box::new(handle),
    ]
}

/// Eight handles can be dropped in too many orders to test all of them. The test drops each handle
/// at each position of the order, and each pair of handles in both orders.
#[test]
fn handles_are_dropped_in_any_order() {
    let lab = DeviceTest::without_credits();
    let (resources, before) = (lab.resources(), lab.usage());
    for step in [1, 3, 5, 7] {
        for start in 0..8 {
            let mut handles: Vec<_> = everything().into_iter().map(Some).collect();
            for place in 0..8 {
                drop(handles[(start + place * step) % 8].take());
            }
            assert!(handles.iter().all(Option::is_none));
            assert_eq!(
                lab.resources(),
                resources,
                "left after start {start}, step {step}"
            );
        }
    }
    lab.assert_no_leak(&before);
}

/// The program drops all handles of a region while a posted request uses the region. The region
/// stays registered until the request has completed.
#[test]
fn a_posted_region_is_held() {
    let lab = Lab::get();
    let resources = lab.resources();
    {
        let Pair { a, b, pd, .. } = &Pair::new();
        let before = lab.resources();
        let memory = region(pd, 4096);
        assert_ne!(lab.resources(), before);
        b.qp.post_recv(&[RecvWr::new(1, Sge::new(&memory, ..))])
            .unwrap();
        drop(memory);
        assert_ne!(lab.resources(), before);
        a.qp.post_send(&[SendWr::send(2, Inline(b"held"))]).unwrap();
        assert_eq!(success(&b.cq).byte_len, 4);
    }
    assert_eq!(lab.resources(), resources);
}

/// Drops all objects while the device uses them. Tests two orders of dropping. Both begin with the
/// memory, because this is the most dangerous case.
#[test]
fn pending_work_ends_with_its_objects() {
    const LEN: usize = 1 << 20;
    let lab = Lab::get();
    let resources = lab.resources();
    for round in 0..20 {
        let Pair {
            a, b, pd, context, ..
        } = Pair::new();
        let (here, there) = (region(&pd, LEN), region(&pd, LEN));
        let remote = RemoteAddr {
            addr: there.addr(),
            rkey: there.rkey(),
        };
        let reads = [1, 2, 3, 4].map(|id| SendWr::read(id, Sge::new(&here, ..), remote));
        a.qp.post_send(&reads).unwrap();
        a.qp.post_recv(&[RecvWr::new(5, Sge::new(&here, ..))])
            .unwrap();
        drop((here, there));
        if round % 2 == 0 {
            drop((context, pd, b, a));
        } else {
            drop((a, b, pd, context));
        }
    }
    assert_eq!(lab.resources(), resources);
}

/// Four threads post sends on one queue pair, and a fifth thread polls the completions of the
/// sends. Every message must arrive exactly once, with all its bytes.
#[test]
fn threads_share_a_queue_pair() {
    const THREADS: u64 = 4;
    const EACH: u64 = 200;
    let Pair { a, b, .. } = &Pair::new();
    let (sent, credits) = (Mutex::new(0_u64), Mutex::new(8_u64));
    let take = || {
        let mut credits = credits.lock().unwrap();
        let taken = *credits > 0;
        *credits -= u64::from(taken);
        taken
    };
    let recv = |slot: u64| {
        let start = slot as usize * 8;
        b.qp.post_recv(&[RecvWr::new(slot, Sge::new(&b.region, start..start + 8))])
            .unwrap();
    };
    (0..8).for_each(recv);
    let mut arrived = thread::scope(|scope| {
        for thread in 0..THREADS {
            let (take, sent) = (&take, &sent);
            scope.spawn(move || {
                for number in 0..EACH {
                    while !take() {
                        thread::yield_now();
                    }
                    let message = (thread << 32 | number).to_le_bytes();
                    a.qp.post_send(&[SendWr::send(0, Inline(&message)).signaled()])
                        .unwrap();
                    *sent.lock().unwrap() += 1;
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..THREADS * EACH {
                success(&a.cq);
                *credits.lock().unwrap() += 1;
            }
        });
        let mut arrived = Vec::new();
        for _ in 0..THREADS * EACH {
            let slot = success(&b.cq).wr_id;
            let message = bytes(&b.region, slot as usize * 8, 8);
            arrived.push(u64::from_le_bytes(message.try_into().unwrap()));
            recv(slot);
        }
        arrived
    });
    assert_eq!(sent.into_inner().unwrap(), THREADS * EACH);
    // All messages have arrived, and the messages of each thread are in order.
    for thread in 0..THREADS {
        let of_thread: Vec<_> = arrived
            .iter()
            .filter(|message| **message >> 32 == thread)
            .collect();
        assert!(of_thread.is_sorted(), "{of_thread:?}");
    }
    arrived.sort_unstable();
    let expected: Vec<_> = (0..THREADS)
        .flat_map(|thread| (0..EACH).map(move |number| thread << 32 | number))
        .collect();
    assert_eq!(arrived, expected);
}

/// One thread destroys a completion queue while another thread reads the queue's event from the
/// channel.
#[test]
fn queue_is_destroyed_while_its_event_is_read() {
    const ROUNDS: u64 = 100;
    let _test = DeviceTest::without_credits();
    let context = open();
    let pd = ProtectionDomain::new(&context).unwrap();
    let channel = CompletionChannel::new(&context).unwrap();
    let memory = region(&pd, 64);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = Stop(&done);
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Relaxed) {
                if let Some(round) = channel.wait_event(Duration::from_millis(1)).unwrap() {
                    assert!((last..ROUNDS).contains(&round), "{round} after {last}");
                    last = round;
                }
            }
        });
        for round in 0..ROUNDS {
            let cq = CompletionQueue::new(&context, 4, Some((&channel, round))).unwrap();
            let cap = QpCap {
                max_inline_data: 16,
                ..QpCap::default()
            };
            let attr = QpInitAttr::rc(&cq, cap);
            let qp = QueuePair::new(&pd, &attr).unwrap();
            connect(&qp, &qp, &Setup::default());
            cq.req_notify(false).unwrap();
            qp.post_recv(&[RecvWr::new(1, Sge::new(&memory, ..))])
                .unwrap();
            qp.post_send(&[SendWr::send(2, Inline(b"x"))]).unwrap();
            assert_eq!(success(&cq).byte_len, 1);
        }
        drop(stop);
        reader.join().unwrap();
    });
}
