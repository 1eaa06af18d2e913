//! Tests each input in each state. The tables contain the expected states after the input.

use std::time::{Duration, Instant};

use rdma_status::{CmStatus, OsError, RejectReason, WcStatus};

use super::{params, started};
use crate::{
    CloseReason, CmCall, CmInput, CmOp, Connection, DrainSide, Event, Output, TransportTraits,
    Work,
    frame::{Control, Header, Kind},
    hello::{Hello, VERSION},
    testing::BOTH_WAYS,
};

const STATES: [&str; 12] = [
    "Waiting",
    "ResolvingAddr",
    "ResolvingRoute",
    "Connecting",
    "Backoff",
    "Requested",
    "Accepted",
    "Accepting",
    "Established",
    "Closing",
    "Draining",
    "Closed",
];

fn hello() -> Hello {
    Hello {
        version: VERSION,
        features: 0,
        window: 4,
        credits: 0,
        eager_size: 64,
        max_message: 64,
        keepalive_ms: 0,
        engine: 1,
    }
}

/// Returns a connection in the state with this name, without pending outputs.
fn in_state(name: &str, now: Instant) -> Connection {
    let active = || started(params(), 1, b"", now);
    let connecting = || {
        let mut conn = active();
        conn.handle_cm_event(CmInput::AddrResolved, now);
        conn.handle_cm_event(CmInput::RouteResolved, now);
        conn
    };
    let passive = || Connection::requested(params(), &hello().emit(b""), BOTH_WAYS, now).unwrap();
    let established = || {
        let mut conn = connecting();
        conn.handle_cm_event(
            CmInput::Established {
                private_data: &hello().emit(b""),
                reads: BOTH_WAYS,
            },
            now,
        );
        conn
    };
    let mut conn = match name {
        "Waiting" => Connection::connect(params(), 1, b"", now),
        "ResolvingAddr" => active(),
        "ResolvingRoute" => {
            let mut conn = active();
            conn.handle_cm_event(CmInput::AddrResolved, now);
            conn
        }
        "Connecting" => connecting(),
        "Backoff" => {
            let mut conn = active();
            conn.handle_cm_event(
                CmInput::AddrError(CmStatus::from_raw(-libc::ETIMEDOUT)),
                now,
            );
            conn
        }
        "Requested" => passive(),
        "Accepted" => {
            let mut conn = passive();
            conn.accept(b"", now);
            conn
        }
        "Accepting" => {
            let mut conn = passive();
            conn.accept(b"", now);
            conn.begin_setup(now);
            conn.handle_transport(TransportTraits::UNRESTRICTED);
            conn
        }
        "Established" => established(),
        "Closing" => {
            let mut conn = established();
            conn.close(now);
            conn
        }
        "Draining" => {
            let mut conn = established();
            conn.handle_work_error(Work::Send { slot: 0 }, WcStatus::FATAL_ERR, 0, now);
            conn
        }
        "Closed" => {
            let mut conn = active();
            conn.close(now);
            conn
        }
        other => panic!("{other}"),
    };
    while conn.poll_output().is_some() {}
    assert_eq!(conn.state.name(), name);
    conn
}

/// Passes one input to a connection in each state, and compares the resulting states with
/// `expected`. The entry `.` means that the state does not change.
fn expect(what: &str, input: impl Fn(&mut Connection, Instant), expected: [&str; 12]) {
    let now = Instant::now();
    for (from, to) in STATES.into_iter().zip(expected) {
        let to = if to == "." { from } else { to };
        let mut conn = in_state(from, now);
        input(&mut conn, now);
        assert_eq!(conn.state.name(), to, "{what} in {from}");
        let ends = std::iter::from_fn(|| conn.poll_output())
            .filter(|output| matches!(output, Output::Event(Event::Disconnected { .. })))
            .count();
        assert_eq!(
            ends,
            usize::from(to == "Closed" && from != "Closed"),
            "{what} in {from}: the connection ends once"
        );
        if to == "Closed" {
            assert_eq!(conn.next_timeout(), None, "{what} in {from}");
        } else if to != "Established" {
            assert!(
                conn.next_timeout().is_some(),
                "{what} in {from}: only Established and Closed may have no deadline"
            );
        }
    }
}

fn cm(event: CmInput<'static>) -> impl Fn(&mut Connection, Instant) {
    move |conn, now| conn.handle_cm_event(event, now)
}

const CLOSED: &str = "Closed";
const DRAINING: &str = "Draining";

#[test]
#[rustfmt::skip]
fn connection_manager_events() {
    let failed = CmStatus::from_raw(-libc::ETIMEDOUT);
    // The columns are the states before the input:
    //               Waiting   ResolvingAddr    ResolvingRoute Connecting    Backoff   Requested
    //               Accepted   Accepting     Established   Closing     Draining    Closed
    expect("ADDR_RESOLVED", cm(CmInput::AddrResolved),
                    [".",      "ResolvingRoute",".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("ADDR_ERROR", cm(CmInput::AddrError(failed)),
                    [".",      "Backoff",       ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("ADDR_ERROR without a device", cm(CmInput::AddrError(CmStatus::from_raw(-libc::ENODEV))),
                    [".",      CLOSED,          ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("ROUTE_RESOLVED", cm(CmInput::RouteResolved),
                    [".",      ".",             "Connecting",  ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("ROUTE_ERROR", cm(CmInput::RouteError(failed)),
                    [".",      ".",             "Backoff",     ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("CONNECT_RESPONSE", cm(CmInput::ConnectResponse),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("CONNECT_ERROR", cm(CmInput::ConnectError(failed)),
                    [".",      CLOSED,          CLOSED,        CLOSED,       ".",      CLOSED,     CLOSED,    CLOSED,       ".",          ".",        ".",        "."]);
    expect("UNREACHABLE", cm(CmInput::Unreachable(failed)),
                    [".",      CLOSED,          CLOSED,        CLOSED,       ".",      CLOSED,     CLOSED,    CLOSED,       ".",          ".",        ".",        "."]);
    expect("a failure over TCP", cm(CmInput::Failed(&CloseReason::NotRdmsg)),
                    [".",      CLOSED,          CLOSED,        CLOSED,       ".",      CLOSED,     CLOSED,    CLOSED,       ".",          ".",        ".",        "."]);
    expect("REJECTED", cm(CmInput::Rejected { reason: RejectReason::CONSUMER_DEFINED, private_data: &[] }),
                    [".",      ".",             ".",           CLOSED,       ".",      CLOSED,     CLOSED,    CLOSED,       ".",          ".",        ".",        "."]);
    expect("ESTABLISHED without a hello", cm(CmInput::Established { private_data: &[], reads: BOTH_WAYS }),
                    [".",      ".",             ".",           CLOSED,       ".",      ".",        ".",       "Established",".",          ".",        ".",        "."]);
    expect("ESTABLISHED", |conn, now| conn.handle_cm_event(CmInput::Established { private_data: &hello().emit(b""), reads: BOTH_WAYS }, now),
                    [".",      ".",             ".",           "Established",".",      ".",        ".",       "Established",".",          ".",        ".",        "."]);
    expect("DISCONNECTED", cm(CmInput::Disconnected),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       DRAINING,     DRAINING,   ".",        "."]);
    expect("DEVICE_REMOVAL", cm(CmInput::DeviceRemoval),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       DRAINING,     DRAINING,   ".",        "."]);
    expect("ADDR_CHANGE", cm(CmInput::AddrChange),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       DRAINING,     DRAINING,   ".",        "."]);
    expect("TIMEWAIT_EXIT", cm(CmInput::TimewaitExit),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("an unknown event", cm(CmInput::Other(77)),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
}

#[test]
#[rustfmt::skip]
fn commands() {
    // The columns are the states before the input:
    //               Waiting   ResolvingAddr    ResolvingRoute Connecting    Backoff   Requested
    //               Accepted   Accepting     Established   Closing     Draining    Closed
    expect("accept", |conn, now| conn.accept(b"", now),
                    [".",      ".",             ".",           ".",          ".",      "Accepted", ".",       ".",          ".",          ".",        ".",        "."]);
    expect("a turn", |conn, now| conn.begin_setup(now),
                    ["ResolvingAddr",".",       ".",           ".",          ".",      ".",        "Accepting",".",         ".",          ".",        ".",        "."]);
    expect("reject", |conn, now| _ = conn.reject(b"", now),
                    [".",      ".",             ".",           ".",          ".",      CLOSED,     CLOSED,    ".",          ".",          ".",        ".",        "."]);
    expect("reject untaken", |conn, now| conn.reject_untaken(now),
                    [".",      ".",             ".",           ".",          ".",      CLOSED,     CLOSED,    ".",          "Closing",    ".",        ".",        "."]);
    expect("reject unanswered", |conn, now| assert!(!conn.reject_unanswered(now) || conn.state.name() == CLOSED),
                    [".",      ".",             ".",           ".",          ".",      CLOSED,     CLOSED,    ".",          ".",          ".",        ".",        "."]);
    expect("close", |conn, now| conn.close(now),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       "Closing",    ".",        ".",        "."]);
    expect("abort", |conn, now| conn.abort(1, now),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       "Closing",    ".",        ".",        "."]);
    expect("send", |conn, _| drop(conn.send(4)),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
}

#[test]
#[rustfmt::skip]
fn completions_and_failures() {
    let frame = Header { kind: Kind::Control(Control::Grant), sequence: 0, grant: 4, len: 0, arg: 0 }.emit();
    let error = OsError::new("f", libc::EIO);
    // The columns are the states before the input:
    //               Waiting   ResolvingAddr    ResolvingRoute Connecting    Backoff   Requested
    //               Accepted   Accepting     Established   Closing     Draining    Closed
    expect("a frame", |conn, now| conn.handle_recv(0, &frame, now),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       "Established",".",          ".",        ".",        "."]);
    expect("a bad frame", |conn, now| conn.handle_recv(0, &[15; 16], now),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       DRAINING,     DRAINING,     DRAINING,   ".",        "."]);
    expect("a message, kept and released", |conn, now| {
        let data = Header { kind: Kind::Data, sequence: 0, grant: 4, len: 0, arg: 0 }.emit();
        conn.handle_recv(0, &data, now);
        let released = std::iter::from_fn(|| conn.poll_output()).any(|output| matches!(output, Output::Event(Event::Arrived(_))));
        if released {
            conn.release(now);
        }
    },
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       "Established",".",          ".",        ".",        "."]);
    expect("a send's completion", |conn, now| conn.handle_sent(0, now),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("a flushed receive", |conn, now| conn.handle_work_error(Work::Recv { buffer: 0 }, WcStatus::WR_FLUSH_ERR, 0, now),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          DRAINING,     DRAINING,   ".",        "."]);
    expect("a failed send", |conn, now| conn.handle_work_error(Work::Send { slot: 0 }, WcStatus::RETRY_EXC_ERR, 0, now),
                    [".",      ".",             ".",           CLOSED,       ".",      ".",        ".",       CLOSED,       DRAINING,     DRAINING,   ".",        "."]);
    expect("one marker", |conn, _| conn.handle_drained(DrainSide::Send),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("a failed post", |conn, now| conn.handle_post_failure(error, now),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       DRAINING,     DRAINING,   ".",        "."]);
    let no_memory = OsError::new("f", libc::ENOMEM);
    expect("memory that is missing for long", |conn, now| {
        conn.handle_out_of_memory(no_memory, now);
        conn.handle_out_of_memory(no_memory, now + Duration::from_secs(60));
    },
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          "Closing",    ".",        ".",        "."]);
    expect("a failed create_qp", |conn, now| conn.handle_cm_failure(CmCall::CreateTransport, error, now),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       DRAINING,     DRAINING,   ".",        "."]);
    expect("a failed resolve_addr", |conn, now| conn.handle_cm_failure(CmCall::ResolveAddr, error, now),
                    [".",      "Backoff",       ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    for call in [CmCall::ResolveRoute, CmCall::Connect, CmCall::Accept, CmCall::CreateId] {
        expect("a failed step", |conn, now| conn.handle_cm_failure(call, error, now),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       DRAINING,     DRAINING,   ".",        "."]);
    }
    for call in [CmCall::Discard, CmCall::Reject, CmCall::SetMinRnrTimer] {
        expect("a failed optional call", |conn, now| conn.handle_cm_failure(call, error, now),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    }
    expect("a failed disconnect", |conn, now| conn.handle_cm_failure(CmCall::Disconnect, error, now),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
}

#[test]
#[rustfmt::skip]
fn deadlines() {
    // The columns are the states before the input:
    //               Waiting   ResolvingAddr    ResolvingRoute Connecting    Backoff   Requested
    //               Accepted   Accepting     Established   Closing     Draining    Closed
    expect("before the deadline", |conn, now| conn.handle_timeout(now + Duration::from_millis(10)),
                    [".",      ".",             ".",           ".",          ".",      ".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("after the backoff", |conn, now| conn.handle_timeout(now + Duration::from_millis(50)),
                    [".",      ".",             ".",           ".",          "Waiting",".",        ".",       ".",          ".",          ".",        ".",        "."]);
    expect("after the deadline", |conn, now| conn.handle_timeout(now + Duration::from_secs(60)),
                    [CLOSED,   CLOSED,          CLOSED,        CLOSED,       CLOSED,   CLOSED,     CLOSED,    CLOSED,       ".",          DRAINING,   CLOSED,     "."]);
}

#[test]
fn draining_ends_after_three_events_in_any_order() {
    let now = Instant::now();
    let parts: [fn(&mut Connection, Instant); 3] = [
        |conn, _| conn.handle_drained(DrainSide::Send),
        |conn, _| conn.handle_drained(DrainSide::Recv),
        |conn, now| conn.handle_cm_event(CmInput::Disconnected, now),
    ];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut conn = in_state("Draining", now);
        for (i, part) in order.into_iter().enumerate() {
            assert_eq!(conn.state.name(), "Draining", "{order:?} before {i}");
            parts[part](&mut conn, now);
        }
        assert_eq!(conn.state.name(), "Closed", "{order:?}");
        let expected = CloseReason::WorkRequest {
            status: WcStatus::FATAL_ERR,
            vendor_err: 0,
        };
        assert_eq!(conn.close_reason(), Some(&expected));
    }
}

#[test]
fn draining_does_not_wait_for_a_gone_peer() {
    let now = Instant::now();
    let gone: [fn(&mut Connection, Instant); 2] = [
        |conn, now| conn.handle_cm_event(CmInput::DeviceRemoval, now),
        |conn, now| {
            conn.handle_work_error(Work::Send { slot: 0 }, WcStatus::RETRY_EXC_ERR, 0, now);
        },
    ];
    for go in gone {
        for state in ["Established", "Closing", "Draining"] {
            let mut conn = in_state(state, now);
            go(&mut conn, now);
            conn.handle_drained(DrainSide::Send);
            assert_eq!(conn.state.name(), "Draining", "from {state}");
            conn.handle_drained(DrainSide::Recv);
            assert_eq!(conn.state.name(), "Closed", "from {state}");
        }
    }
}

#[test]
fn connection_manager_calls_are_in_order() {
    let now = Instant::now();
    let ops = |conn: &mut Connection| -> Vec<CmCall> {
        std::iter::from_fn(|| conn.poll_output())
            .filter_map(|output| {
                if let Output::Cm(op) = output {
                    Some(CmOp::call(&op))
                } else {
                    None
                }
            })
            .collect()
    };
    let mut conn = Connection::connect(params(), 1, b"", now);
    assert_eq!(ops(&mut conn), [CmCall::AwaitSetupSlot]);
    conn.begin_setup(now);
    assert_eq!(ops(&mut conn), [CmCall::CreateId, CmCall::ResolveAddr]);
    conn.handle_cm_event(CmInput::AddrResolved, now);
    assert_eq!(
        ops(&mut conn),
        [CmCall::CreateTransport, CmCall::ResolveRoute]
    );
    conn.handle_cm_event(CmInput::RouteResolved, now);
    assert_eq!(ops(&mut conn), [CmCall::Connect]);
    conn.handle_cm_event(
        CmInput::Established {
            private_data: &hello().emit(b""),
            reads: BOTH_WAYS,
        },
        now,
    );
    assert_eq!(ops(&mut conn), [CmCall::SetMinRnrTimer]);
    let mut conn = Connection::requested(params(), &hello().emit(b""), BOTH_WAYS, now).unwrap();
    assert_eq!(ops(&mut conn), []);
    conn.accept(b"", now);
    assert_eq!(ops(&mut conn), [CmCall::AwaitSetupSlot]);
    conn.begin_setup(now);
    assert_eq!(ops(&mut conn), [CmCall::CreateTransport]);
    conn.handle_transport(TransportTraits::UNRESTRICTED);
    assert_eq!(ops(&mut conn), [CmCall::Accept]);
    conn.handle_cm_event(
        CmInput::Established {
            private_data: &[],
            reads: BOTH_WAYS,
        },
        now,
    );
    assert_eq!(ops(&mut conn), [CmCall::SetMinRnrTimer]);
    conn.handle_cm_event(CmInput::Disconnected, now);
    assert_eq!(ops(&mut conn), [CmCall::Disconnect]);
}
