//! Tests of the parameters that connections request from a device, and of requests that the device
//! refuses.

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    process,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use log::{LevelFilter, Log, Metadata, Record};
use rdmsg::{Config, Connector, Engine, Error, Listener, RelaxedOrdering, Transport};

use crate::{
    Bystander, TIME_LIMIT,
    calls::{Calls, with_preload},
    config, exchange, ip_and_transport, run_lifecycle, run_lifecycle_with,
};

/// Runs `body` with a preloaded library that records the requests of connections. Does nothing over
/// TCP, because TCP uses no device.
pub(crate) fn with_device(name: &str, body: impl FnOnce(&Calls)) {
    if ip_and_transport().1 == Transport::Rdma {
        with_preload(name, || body(&Calls::loaded()));
    }
}

/// Does the same as [`with_device`], but establishes a connection before `body` runs. For the first
/// connection, rdmsg opens the device and tests its memory windows. The requests recorded until
/// then are discarded before `body` runs.
fn with_tested_device(name: &str, body: impl FnOnce(&Calls)) {
    with_device(name, |calls| {
        run_lifecycle(&config()).unwrap();
        calls.clear_recorded();
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
            assert_eq!(calls.take_recorded("ibv_create_cq"), [], "{text}");
            let allowed = text.strip_prefix(
                "invalid configuration: rdma.completion_vector is 4294967295, allowed is 0 to ",
            );
            let last = allowed.and_then(|text| text.strip_suffix(" on this device"));
            let last: i64 = last.expect(&text).parse().unwrap();
            if last == 0 {
                // With one processor there is only one completion vector. The suite also runs this
                // test with two processors.
                return;
            }
            for vector in 0..=last {
                run_lifecycle(&on(Some(vector as u32))).unwrap();
                assert_eq!(calls.take_recorded("ibv_create_cq"), [vector; 2]);
            }
            for _ in 0..=last {
                run_lifecycle(&on(None)).unwrap();
            }
            let taken = calls.take_recorded("ibv_create_cq");
            assert_eq!(taken.len() as i64, 2 * (last + 1));
            for pair in taken.windows(2) {
                assert_eq!(pair[1], (pair[0] + 1) % (last + 1), "{taken:?}");
            }
        },
    );
}

/// A logger that records the lines that contain one of `texts`.
struct DeviceLog {
    texts: Mutex<&'static [&'static str]>,
    lines: Mutex<Vec<String>>,
}

static DEVICE_LOG: DeviceLog = DeviceLog {
    texts: Mutex::new(&[]),
    lines: Mutex::new(Vec::new()),
};

/// Starts recording lines that contain one of `texts` and have at least the level `level`.
pub(crate) fn start_log(level: LevelFilter, texts: &'static [&'static str]) {
    *DEVICE_LOG.texts.lock().unwrap() = texts;
    log::set_logger(&DEVICE_LOG).unwrap();
    log::set_max_level(level);
}

/// Returns the lines recorded since the last call.
pub(crate) fn logged() -> Vec<String> {
    std::mem::take(&mut *DEVICE_LOG.lines.lock().unwrap())
}

impl Log for DeviceLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = record.args().to_string();
        let texts = *self.texts.lock().unwrap();
        if texts.iter().any(|text| line.contains(text)) {
            self.lines.lock().unwrap().push(line);
        }
    }

    fn flush(&self) {}
}

#[test]
fn refused_inline_size_is_followed_by_smaller_ones() {
    with_device(
        "adapters::refused_inline_size_is_followed_by_smaller_ones",
        |calls| {
            run_lifecycle(&config()).unwrap();
            // Software iWARP itself refuses 96 bytes of inline data and more. With such a device,
            // skip the cases whose limit is above 95 bytes.
            let grants_256 = calls.take_recorded("rdma_create_qp") == [256, 256];
            start_log(LevelFilter::Info, &["max_inline"]);
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
                assert_eq!(
                    calls.take_recorded("rdma_create_qp"),
                    [tried, tried].concat()
                );
                let lines = logged();
                match tried {
                    [_] => assert_eq!(lines, [""; 0]),
                    [.., granted] => {
                        let ending = format!(
                            ": refuses {wanted} bytes of inline data (rdma.max_inline); uses \
                             {granted} bytes"
                        );
                        assert!(lines[0].ends_with(&ending), "{lines:?}");
                        assert_eq!(lines.len(), 1, "the two sides must log one line: {lines:?}");
                    }
                    [] => unreachable!("each connection tries at least one size"),
                }
            }
        },
    );
}

/// The library registers receive buffers and the targets of READs with relaxed ordering, but not
/// the memory that the peer reads.
#[test]
fn refused_relaxed_ordering_is_requested_once() {
    const REMOTE_READ: i64 = 1 << 2;
    const RELAXED: i64 = 1 << 20;
    with_tested_device(
        "adapters::refused_relaxed_ordering_is_requested_once",
        |calls| {
            let registered = |ordering| {
                run_lifecycle(&config().with(|c| c.rdma.relaxed_ordering = ordering)).unwrap();
                calls.take_recorded("ibv_reg_mr")
            };
            let all = registered(RelaxedOrdering::On);
            let (read, filled): (Vec<i64>, Vec<i64>) =
                all.iter().partition(|access| *access & REMOTE_READ != 0);
            assert_eq!(
                read, [REMOTE_READ; 2],
                "each side exposes one long message, without relaxed ordering: {all:?}"
            );
            // The regions are the receive buffers of both sides and the targets of both READs.
            assert!(filled.len() >= 4, "{all:?}");
            assert!(filled.iter().all(|access| access & RELAXED != 0), "{all:?}");

            let all = registered(RelaxedOrdering::Off);
            assert!(all.iter().all(|access| access & RELAXED == 0), "{all:?}");

            calls.refuse_relaxed();
            let all = registered(RelaxedOrdering::On);
            let (asked, others) = all.split_first().unwrap();
            assert_eq!(
                others[0] | RELAXED,
                *asked,
                "the second attempt must differ only in relaxed ordering: {all:?}"
            );
            assert!(others.iter().all(|access| access & RELAXED == 0), "{all:?}");
        },
    );
}

#[test]
fn connections_ask_for_the_reads_that_they_need() {
    with_device(
        "adapters::connections_ask_for_the_reads_that_they_need",
        |calls| {
            let config_with_depth = |send_depth| {
                config().with(|c| {
                    c.send_depth = Some(send_depth);
                    c.eager_size = Some(1024);
                })
            };
            // Each pair contains `responder_resources` and `initiator_depth`.
            for (listening, connecting, asked, granted) in [
                (16, 16, [20, 20], [20, 20]),
                (16, 4, [8, 8], [8, 8]),
                (4, 16, [20, 20], [20, 8]),
                // 128 is the limit of both software devices.
                (1000, 1000, [128, 128], [128, 128]),
            ] {
                run_lifecycle_with(
                    &config_with_depth(listening),
                    &config_with_depth(connecting),
                )
                .unwrap();
                let values = calls.take_recorded("rdma_conn_param").into_iter();
                let reads: Vec<_> = values.map(|value| [value >> 8, value & 255]).collect();
                assert_eq!(reads, [asked, granted], "{listening}, {connecting}");
            }
        },
    );
}

/// Removes and returns the first lengths in `lists`, up to and including the first length that is
/// not 8. A new connection posts its receives in lists of these lengths: each list contains 8
/// receives, except for the final one, which is shorter. `lists` contains the lengths of all posted
/// lists.
fn first_lists(lists: &mut Vec<i64>) -> Vec<i64> {
    let full = lists.iter().take_while(|count| **count == 8).count();
    lists.drain(..=full).collect()
}

#[test]
fn receives_of_a_connection_are_posted_in_lists() {
    with_device(
        "adapters::receives_of_a_connection_are_posted_in_lists",
        |calls| {
            // In addition to its window, a connection has 15 receives for control frames.
            for (window, expected) in [
                (2, &[8, 8, 1][..]),
                (32, &[8, 8, 8, 8, 8, 7]),
                (50, &[8, 8, 8, 8, 8, 8, 8, 8, 1]),
            ] {
                run_lifecycle(&config().with(|c| c.receive_window = Some(window))).unwrap();
                let mut lists = calls.take_recorded("post_recv");
                for _side in 0..2 {
                    assert_eq!(first_lists(&mut lists), expected, "{window}");
                }
                assert!(!lists.is_empty(), "used receives must be posted again");
                assert!(lists.iter().all(|count| *count == 1), "{lists:?}");
            }
            run_lifecycle(&config().with(|c| c.shared_receive = Some(260))).unwrap();
            let mut lists = calls.take_recorded("post_srq_recv");
            assert_eq!(first_lists(&mut lists), [&[8; 32][..], &[4]].concat());
        },
    );
}

#[test]
fn frames_of_one_message_are_posted_in_one_list() {
    with_device(
        "adapters::frames_of_one_message_are_posted_in_one_list",
        |calls| {
            // Each message of 300,000 bytes is sent in three frames.
            run_lifecycle(&config().with(|c| c.eager_size = Some(128 << 10))).unwrap();
            let mut lists = calls.take_recorded("post_send");
            // Ignore lists of two sends: they can be two control frames, such as a Close and a
            // CloseAck.
            lists.retain(|count| *count > 2);
            assert_eq!(lists, [3, 3]);
        },
    );
}

/// The steps in the lifetime of a thread domain, as the preloaded library records them:
///
/// 1. allocation of the thread domain
/// 2. allocation of the parent domain
/// 3. creation of the queue pair
/// 4. destruction of the queue pair
/// 5. release of the parent domain
/// 6. release of the thread domain
/// 7. release of the protection domain in which the memory is registered
const STEPS: [i64; 7] = [1, 2, 3, 4, 5, 6, 7];

#[test]
fn each_queue_pair_has_a_thread_domain_if_granted() {
    with_device(
        "adapters::each_queue_pair_has_a_thread_domain_if_granted",
        |calls| {
            calls.set_domain_replies(0, 0);
            for config in [config(), config().with(|c| c.shared_receive = Some(256))] {
                run_lifecycle(&config).unwrap();
                let mut steps: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
                let end = Instant::now() + TIME_LIMIT;
                // Wait for step 7 of both thread domains, because the library drops the final
                // handles of the memory with a delay. With shared receives, both connections use
                // the same protection domain. Its release is then recorded for both thread domains.
                while steps.len() < 2 || steps.values().any(|steps| !steps.contains(&7)) {
                    for value in calls.take_recorded("thread_domain") {
                        assert!(value > 0, "refused: {value}");
                        steps.entry(value / 10).or_default().push(value % 10);
                    }
                    assert!(Instant::now() < end, "{steps:?}");
                    thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(steps.len(), 2, "{steps:?}");
                for steps in steps.values_mut() {
                    // Software iWARP refuses the first inline sizes, so the library creates the
                    // queue pair several times.
                    steps.dedup();
                    assert_eq!(*steps, STEPS);
                }
            }
            run_lifecycle(&config().with(|c| c.rdma.thread_domain = false)).unwrap();
            assert_eq!(calls.take_recorded("thread_domain"), []);
        },
    );
}

#[test]
fn connection_without_a_thread_domain_works() {
    with_device(
        "adapters::connection_without_a_thread_domain_works",
        |calls| {
            const NO: i32 = libc::EOPNOTSUPP;
            const FULL: i32 = libc::ENOMEM;
            let (no, full) = (i64::from(-NO), i64::from(-FULL));
            start_log(LevelFilter::Debug, &["thread domain"]);
            // Software devices have no thread domains.
            run_lifecycle(&config()).unwrap();
            let refusal = "cannot allocate a thread domain: ibv_alloc_td";
            let lines = logged();
            assert_eq!(lines.len(), 1, "the two sides must log one line: {lines:?}");
            assert!(lines[0].contains(refusal), "{lines:?}");
            for (thread_domain, parent_domain, expected) in [
                // If the driver does not support thread domains, the library asks only once.
                (NO, 0, &[no][..]),
                // If the device has no free thread domain, the library asks again for each
                // connection.
                (FULL, 0, &[full, full]),
                // If the device refuses the parent domain, the library releases the thread domain.
                (0, NO, &[1, no, 6]),
                (0, FULL, &[1, full, 6, 1, full, 6]),
            ] {
                calls.set_domain_replies(thread_domain, parent_domain);
                run_lifecycle(&config()).unwrap();
                let values = calls.take_recorded("thread_domain");
                let steps: Vec<i64> = values
                    .iter()
                    .map(|value| if *value > 0 { value % 10 } else { *value })
                    .collect();
                assert_eq!(steps, expected, "{thread_domain} {parent_domain}");
                assert_eq!(logged().len(), 1);
            }
        },
    );
}

/// Returns the start addresses of this process's mappings for which `is_wanted` returns true.
/// `file` is the name of a file in `/proc/self`, such as `smaps`. `is_wanted` is called with each
/// line of the file.
fn mappings(file: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<i64> {
    let text = fs::read_to_string(Path::new("/proc/self").join(file)).unwrap();
    let mut start = 0;
    let mut found = Vec::new();
    for line in text.lines() {
        let word = line.split([' ', '-']).next().unwrap_or_default();
        if let Ok(address) = i64::from_str_radix(word, 16) {
            start = address;
        }
        if is_wanted(line) {
            found.push(start);
        }
    }
    found
}

/// Returns true if this line of `smaps` contains the flag that requests huge pages.
fn is_huge(line: &str) -> bool {
    let flags = line.strip_prefix("VmFlags:").unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "hg")
}

#[test]
fn buffers_of_two_mib_request_huge_pages() {
    const HUGE: i64 = 2 << 20;
    with_device("adapters::buffers_of_two_mib_request_huge_pages", |calls| {
        if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            // This kernel has no huge pages. Unit tests check the alignment of the buffers.
            return;
        }
        let long = config().with(|c| c.receive_window = Some(128));
        let shared = config().with(|c| c.shared_receive = Some(256));
        for (config, count) in [(config(), 0), (long, 2), (shared, 1)] {
            let engine = Engine::new().unwrap();
            let listener = Listener::builder().config(&config).engine(&engine);
            let listener = listener.bind((ip_and_transport().0, 0)).unwrap();
            let connector = Connector::new().config(&config).engine(&engine);
            let client = connector.connect(listener.local_addr()).unwrap();
            let server = listener.accept_timeout(TIME_LIMIT).unwrap();
            exchange(&client, &server).unwrap();
            let starts = calls.take_recorded("long_mr");
            assert_eq!(starts.len(), count, "{starts:?}");
            let huge = mappings("smaps", is_huge);
            for start in starts {
                assert_eq!(start % HUGE, 0);
                // The kernel may have merged the buffer's mapping with the preceding mapping. So
                // search for the nearest mapping that starts at or below `start`.
                let own = huge.iter().rfind(|other| **other <= start);
                assert!(own.is_some(), "{start:x} {huge:x?}");
            }
            client.close().unwrap();
        }
    });
}

#[test]
fn buffers_are_on_the_node_of_the_device() {
    with_device("adapters::buffers_are_on_the_node_of_the_device", |calls| {
        let file = env::temp_dir().join(format!("rdmsg-node-{}", process::id()));
        calls.set_node_file(&file);
        start_log(LevelFilter::Debug, &["NUMA node"]);
        for (node, is_placed) in [("-1\n", false), ("1000\n", false), ("0\n", true)] {
            fs::write(&file, node).unwrap();
            let engine = Engine::new().unwrap();
            let listener = Listener::builder().config(&config()).engine(&engine);
            let listener = listener.bind((ip_and_transport().0, 0)).unwrap();
            let connector = Connector::new().config(&config()).engine(&engine);
            let client = connector.connect(listener.local_addr()).unwrap();
            let server = listener.accept_timeout(TIME_LIMIT).unwrap();
            exchange(&client, &server).unwrap();
            let is_refused = logged().iter().any(|line| line.contains("NUMA node"));
            if Path::new("/proc/self/numa_maps").exists() {
                let placed = mappings("numa_maps", |line| line.contains(" prefer:0 "));
                assert_eq!(!placed.is_empty(), is_placed, "{node}: {placed:x?}");
            }
            // The kernel refuses node 1000, because it does not exist. A kernel without NUMA also
            // refuses node 0, but the library logs only the first refusal.
            assert_eq!(is_refused, node == "1000\n");
            client.close().unwrap();
        }
        fs::remove_file(file).unwrap();
    });
}

#[test]
fn refused_traffic_class_is_named() {
    with_preload("adapters::refused_traffic_class_is_named", || {
        let (call, refusal, sides) = match ip_and_transport().1 {
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
            assert!(calls.take_failed(), "{call} {number}");
            texts.push(error.to_string());
            bystander.assert_unaffected();
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
        assert!(
            !calls.take_failed(),
            "{call} must be called only {sides} times"
        );
    });
}
