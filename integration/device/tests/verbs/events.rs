//! Tests completion channels and asynchronous events.

use std::{thread, time::Duration};

use rdmsg::verbs::{
    AsyncElement, AsyncEventType, CompletionChannel, CompletionQueue, Context, Inline,
    ProtectionDomain, QpAttr, QpInitAttr, QpState, QueuePair, RecvWr, SendWr, Sge,
    SharedReceiveQueue, SrqAttr,
};
use toolbox::Watchdog;

use crate::pair::{Pair, Setup, TIME_LIMIT, assert_none, completions, connect, open, success};

/// Returns a [`Pair`], and another queue pair that is connected to itself. Also returns the
/// completion queue of this other queue pair, and the channel for events of this completion queue.
/// The events have the cookie 4711.
fn announced() -> (Pair, QueuePair, CompletionQueue, CompletionChannel) {
    let pair = Pair::new();
    let channel = CompletionChannel::new(&pair.context).unwrap();
    let cq = CompletionQueue::new(&pair.context, 16, Some((&channel, 4711))).unwrap();
    assert!(cq.cqe() >= 16);
    let cap = pair.b.qp.cap();
    let attr = QpInitAttr {
        sq_sig_all: true,
        ..QpInitAttr::new(pair.b.qp.qp_type(), &cq, cap)
    };
    let qp = QueuePair::new(&pair.pd, &attr).unwrap();
    connect(&qp, &qp, &Setup::default());
    (pair, qp, cq, channel)
}

#[test]
fn one_event_for_each_request() {
    let (pair, qp, cq, channel) = announced();
    let region = &pair.a.region;
    assert_eq!(channel.get_event(), Ok(None));
    cq.req_notify(false).unwrap();
    assert_eq!(channel.wait_event(Duration::from_millis(20)), Ok(None));

    qp.post_recv(&[1, 2].map(|id| RecvWr::new(id, Sge::new(region, ..8))))
        .unwrap();
    qp.post_send(&[SendWr::send(3, Inline(b"a")), SendWr::send(4, Inline(b"b"))])
        .unwrap();
    assert_eq!(channel.wait_event(TIME_LIMIT), Ok(Some(4711)));
    assert_eq!(completions(&cq, 4).len(), 4);
    assert_eq!(channel.get_event(), Ok(None));

    // The completion queue is not armed, so completions cause no event.
    qp.post_recv(&[RecvWr::new(5, Sge::new(region, ..8))])
        .unwrap();
    qp.post_send(&[SendWr::send(6, Inline(b"c"))]).unwrap();
    assert_eq!(completions(&cq, 2).len(), 2);
    assert_eq!(channel.get_event(), Ok(None));
}

#[test]
fn a_sleeper_is_woken() {
    let (pair, qp, cq, channel) = announced();
    cq.req_notify(false).unwrap();
    qp.post_recv(&[RecvWr::new(1, Sge::new(&pair.a.region, ..8))])
        .unwrap();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| channel.wait_event(TIME_LIMIT));
        qp.post_send(&[SendWr::send(2, Inline(b"wake"))]).unwrap();
        assert_eq!(sleeper.join().unwrap(), Ok(Some(4711)));
    });
    assert_eq!(completions(&cq, 2).len(), 2);
}

#[test]
fn only_solicited_completions_wake_when_asked_so() {
    let Pair { a, pd, context, .. } = &Pair::new();
    let channel = CompletionChannel::new(context).unwrap();
    let recv_cq = CompletionQueue::new(context, 16, Some((&channel, 1))).unwrap();
    let cap = a.qp.cap();
    let attr = QpInitAttr {
        recv_cq: &recv_cq,
        ..QpInitAttr::new(a.qp.qp_type(), &a.cq, cap)
    };
    let qp = QueuePair::new(pd, &attr).unwrap();
    connect(&qp, &qp, &Setup::default());

    recv_cq.req_notify(true).unwrap();
    qp.post_recv(&[1, 2].map(|id| RecvWr::new(id, Sge::new(&a.region, ..8))))
        .unwrap();
    qp.post_send(&[SendWr::send(3, Inline(b"quiet"))]).unwrap();
    assert_eq!(success(&recv_cq).wr_id, 1);
    assert_eq!(channel.get_event(), Ok(None));
    qp.post_send(&[SendWr::send(4, Inline(b"loud")).solicited()])
        .unwrap();
    assert_eq!(channel.wait_event(TIME_LIMIT), Ok(Some(1)));
    assert_eq!(success(&recv_cq).wr_id, 2);
    assert_none(&a.cq);
}

/// Waits for an event of type `event_type`. Skips events of other types, for instance port events.
fn expect(context: &Context, event_type: AsyncEventType) -> AsyncElement {
    let _watchdog = Watchdog::new(TIME_LIMIT.as_secs());
    loop {
        match context.poll_async_event().unwrap() {
            Some(event) if event.event_type() == event_type => return event.element(),
            Some(event) => eprintln!("skipped an event of another type: {event:?}"),
            None => thread::yield_now(),
        }
    }
}

#[test]
fn the_limit_of_a_shared_receive_queue_is_announced() {
    let context = open();
    assert_eq!(context.poll_async_event(), Ok(None));
    let pd = ProtectionDomain::new(&context).unwrap();
    let srq = SharedReceiveQueue::new(
        &pd,
        &SrqAttr {
            max_wr: 8,
            ..SrqAttr::default()
        },
        99,
    )
    .unwrap();
    let pair = Pair::with(Setup::default(), Some(&srq));
    srq.post_recv(&[1, 2, 3].map(|id| RecvWr::new(id, Sge::new(&pair.b.region, ..8))))
        .unwrap();
    srq.set_limit(3).unwrap();
    assert_eq!(srq.query().unwrap().srq_limit, 3);
    pair.a
        .qp
        .post_send(&[SendWr::send(4, Inline(b"x"))])
        .unwrap();
    assert_eq!(success(&pair.b.cq).wr_id, 1);
    let element = expect(&context, AsyncEventType::SRQ_LIMIT_REACHED);
    assert_eq!(element, AsyncElement::SharedReceiveQueue { cookie: 99 });
    assert_eq!(context.poll_async_event(), Ok(None));
}

#[test]
fn a_drained_send_queue_is_announced() {
    let Pair { a, b, context, .. } = &Pair::new();
    let sqd = QpAttr {
        qp_state: Some(QpState::SQD),
        en_sqd_async_notify: Some(true),
        ..QpAttr::default()
    };
    a.qp.modify(&sqd).unwrap();
    let element = expect(context, AsyncEventType::SQ_DRAINED);
    assert_eq!(
        element,
        AsyncElement::QueuePair {
            qp_num: a.qp.qp_num()
        }
    );
    assert_eq!(a.qp.state(), Ok(QpState::SQD));

    // Requests that are posted in this state are processed after the state has changed to RTS.
    // Software RoCE starts to process them only when another request is posted.
    b.qp.post_recv(&[1, 2].map(|id| RecvWr::new(id, Sge::new(&b.region, ..8))))
        .unwrap();
    a.qp.post_send(&[SendWr::send(3, Inline(b"first"))])
        .unwrap();
    assert_none(&b.cq);
    a.qp.modify(&QpAttr {
        qp_state: Some(QpState::RTS),
        ..QpAttr::default()
    })
    .unwrap();
    a.qp.post_send(&[SendWr::send(4, Inline(b"second"))])
        .unwrap();
    assert_eq!([success(&b.cq).byte_len, success(&b.cq).byte_len], [5, 6]);
}

#[test]
fn an_overrun_completion_queue_is_announced() {
    let pair = Pair::new();
    let Pair { pd, context, .. } = &pair;
    let channel = CompletionChannel::new(context).unwrap();
    let cq = CompletionQueue::new(context, 1, Some((&channel, 12))).unwrap();
    let cap = pair.a.qp.cap();
    let attr = QpInitAttr {
        recv_cq: &cq,
        ..QpInitAttr::new(pair.a.qp.qp_type(), &pair.a.cq, cap)
    };
    let qp = QueuePair::new(pd, &attr).unwrap();
    connect(&qp, &qp, &Setup::default());
    let count = cq.cqe() as usize + 1;
    assert!(
        count <= cap.max_recv_wr as usize,
        "the receive queue must be longer than the completion queue of {} entries",
        cq.cqe()
    );
    let recvs = vec![RecvWr::new(1, Sge::new(&pair.a.region, ..8)); count];
    qp.post_recv(&recvs).unwrap();
    for _ in 0..count {
        qp.post_send(&[SendWr::send(2, Inline(b"x"))]).unwrap();
    }
    assert_eq!(
        expect(context, AsyncEventType::CQ_ERR),
        AsyncElement::CompletionQueue { cookie: 12 }
    );
}
