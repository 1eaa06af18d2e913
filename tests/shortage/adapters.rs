//! Tests of the values that connections request from a device, and of the device's refusals.

use std::sync::Mutex;

use log::{LevelFilter, Log, Metadata, Record};
use rdmsg::{Config, Error, RelaxedOrdering, Transport};

use crate::{
    Bystander,
    calls::{Calls, in_front},
    config, life, place, run_lifecycle,
};

/// Runs `body` with a preloaded library that records the requests of connections. Over TCP, does
/// nothing, because there is no device.
pub(crate) fn with_device(name: &str, body: impl FnOnce(&Calls)) {
    if place().1 == Transport::Rdma {
        in_front(name, || body(&Calls::loaded()));
    }
}

/// Does the same after the first connection, before which the library tests the memory windows
/// of the device.
fn with_tested_device(name: &str, body: impl FnOnce(&Calls)) {
    with_device(name, |calls| {
        run_lifecycle(&config()).unwrap();
        calls.clear_notes();
        body(calls);
    });
}

#[test]
fn connections_take_completion_vectors_in_turn() {
    with_tested_device(
        "adapters::connections_take_completion_vectors_in_turn",
        |calls| {
            let on = |vector| config().with(|c| c.rdma.completion_vector = vector);
            let text = run_lifecycle(&on(Some(u32::MAX))).unwrap_err().to_string();
            assert_eq!(calls.notes("ibv_create_cq"), [], "{text}");
            let allowed = text.strip_prefix(
                "invalid configuration: rdma.completion_vector is 4294967295, allowed is 0 to ",
            );
            let last = allowed.and_then(|text| text.strip_suffix(" on this device"));
            let last: i64 = last.expect(&text).parse().unwrap();
            if last == 0 {
                // The suite also runs this test with two processors, and so with two vectors.
                return;
            }
            for vector in 0..=last {
                run_lifecycle(&on(Some(vector as u32))).unwrap();
                assert_eq!(calls.notes("ibv_create_cq"), [vector; 2]);
            }
            for _ in 0..=last {
                run_lifecycle(&on(None)).unwrap();
            }
            let taken = calls.notes("ibv_create_cq");
            assert_eq!(taken.len() as i64, 2 * (last + 1));
            for pair in taken.windows(2) {
                assert_eq!(pair[1], (pair[0] + 1) % (last + 1), "{taken:?}");
            }
        },
    );
}

/// The log lines that contain a text.
pub(crate) struct LinesWith(&'static str, Mutex<Vec<String>>);

static INLINE_LOG: LinesWith = LinesWith::new("max_inline");

impl LinesWith {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self(text, Mutex::new(Vec::new()))
    }

    /// Returns the lines since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.1.lock().unwrap())
    }
}

impl Log for LinesWith {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = record.args().to_string();
        if line.contains(self.0) {
            self.1.lock().unwrap().push(line);
        }
    }

    fn flush(&self) {}
}

#[test]
fn refused_inline_size_is_followed_by_smaller_ones() {
    with_device(
        "adapters::refused_inline_size_is_followed_by_smaller_ones",
        |calls| {
            log::set_logger(&INLINE_LOG).unwrap();
            run_lifecycle(&config()).unwrap();
            // Software iWARP itself refuses 96 bytes and more.
            let grants_256 = calls.notes("rdma_create_qp") == [256, 256];
            log::set_max_level(LevelFilter::Info);
            for (wanted, most, tried) in [
                (256, 96, &[256, 128, 96][..]),
                (256, 95, &[256, 128, 96, 64]),
                (256, 63, &[256, 128, 96, 64, 0]),
                (100, 64, &[100, 96, 64]),
                (0, 0, &[0]),
                (256, 256, &[256]),
                (1024, 255, &[1024, 256, 128]),
            ] {
                if most > 95 && !grants_256 {
                    continue;
                }
                calls.limit_inline(most);
                run_lifecycle(&config().with(|c| c.rdma.max_inline = wanted)).unwrap();
                assert_eq!(calls.notes("rdma_create_qp"), [tried, tried].concat());
                let lines = INLINE_LOG.take();
                match tried {
                    [_] => assert_eq!(lines, [""; 0]),
                    [.., granted] => {
                        let ending = format!(
                            ": does not support rdma.max_inline {wanted} bytes; uses {granted} \
                             bytes"
                        );
                        assert!(lines[0].ends_with(&ending), "{lines:?}");
                        assert_eq!(lines.len(), 1, "one line for both connections: {lines:?}");
                    }
                    [] => unreachable!("each connection tries a size"),
                }
            }
        },
    );
}

/// Receive buffers and the targets of READs have relaxed ordering. Memory that the peer reads does
/// not.
#[test]
fn refused_relaxed_ordering_is_requested_once() {
    const REMOTE_READ: i64 = 1 << 2;
    const RELAXED: i64 = 1 << 20;
    with_tested_device(
        "adapters::refused_relaxed_ordering_is_requested_once",
        |calls| {
            let registered = |ordering| {
                run_lifecycle(&config().with(|c| c.rdma.relaxed_ordering = ordering)).unwrap();
                calls.notes("ibv_reg_mr")
            };
            let all = registered(RelaxedOrdering::On);
            let (read, filled): (Vec<i64>, Vec<i64>) =
                all.iter().partition(|access| *access & REMOTE_READ != 0);
            assert_eq!(read, [REMOTE_READ; 2], "a long message each way: {all:?}");
            // These regions are the receive buffers of both sides, and the targets of both READs.
            assert!(filled.len() >= 4, "{all:?}");
            assert!(filled.iter().all(|access| access & RELAXED != 0), "{all:?}");

            let all = registered(RelaxedOrdering::Off);
            assert!(all.iter().all(|access| access & RELAXED == 0), "{all:?}");

            calls.refuse_relaxed();
            let all = registered(RelaxedOrdering::On);
            let (asked, others) = all.split_first().unwrap();
            assert_eq!(others[0] | RELAXED, *asked, "the same without: {all:?}");
            assert!(others.iter().all(|access| access & RELAXED == 0), "{all:?}");
        },
    );
}

#[test]
fn connections_ask_for_the_reads_that_they_need() {
    with_device(
        "adapters::connections_ask_for_the_reads_that_they_need",
        |calls| {
            let of = |send_depth| {
                config().with(|c| {
                    c.send_depth = send_depth;
                    c.eager_size = Some(1024);
                })
            };
            // Each pair consists of `responder_resources` and `initiator_depth`.
            for (listening, connecting, asked, granted) in [
                (16, 16, [20, 20], [20, 20]),
                (16, 4, [8, 8], [8, 8]),
                (4, 16, [20, 20], [20, 8]),
                // 128 is the limit of both software devices.
                (1000, 1000, [128, 128], [128, 128]),
            ] {
                life(&of(listening), &of(connecting)).unwrap();
                let notes = calls.notes("rdma_conn_param").into_iter();
                let reads: Vec<_> = notes.map(|note| [note >> 8, note & 255]).collect();
                assert_eq!(reads, [asked, granted], "{listening}, {connecting}");
            }
        },
    );
}

#[test]
fn refused_traffic_class_is_named() {
    in_front("adapters::refused_traffic_class_is_named", || {
        let (call, refusal, sides) = match place().1 {
            Transport::Tcp => ("setsockopt", "Operation not permitted (os error 1)", 3),
            // On the accepting side, only the listener sets the traffic class.
            Transport::Rdma => ("rdma_set_option", "Invalid argument (os error 22)", 2),
            other => panic!("{other}"),
        };
        let calls = Calls::loaded();
        let bystander = Bystander::new();
        let classed = config().with(|c: &mut Config| c.traffic_class = Some(104));
        let mut texts = Vec::new();
        for number in 1..=sides {
            calls.fail(call, number);
            let error: Error = run_lifecycle(&classed).unwrap_err();
            assert!(calls.have_failed(), "{call} {number}");
            texts.push(error.to_string());
            bystander.assert_well();
        }
        let named = format!(
            "invalid configuration: traffic_class is 104, allowed is only None on this system: \
             {call}: {refusal}"
        );
        assert_eq!(texts[..2], [named.as_str(), &named]);
        if let Some(of_peer) = texts.get(2) {
            assert!(
                of_peer.contains("the peer ran out of resources"),
                "{of_peer}"
            );
        }
        calls.fail(call, sides + 1);
        run_lifecycle(&classed).unwrap();
        assert!(!calls.have_failed(), "{call} is called {sides} times");
    });
}
