use std::{
    io::{self, Write},
    ops::Deref,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::{Deadline, Lab, TIME_LIMIT, Watchdog};

/// The time limit for a test in seconds, on an idle machine. Tests take about a tenth of this
/// limit.
const SECONDS: u64 = 300;

/// The counters at the end of the previous test, or `None` if the previous test failed. The tests
/// of a program run one at a time.
static BEFORE: Mutex<Option<Counts>> = Mutex::new(None);

/// The guard of a device test. Its watchdog aborts the program if the test hangs. A test must drop
/// the guard after all objects of the device: the drop panics if objects are left on the device, or
/// if a receiver had no receive posted when a message arrived (the device counted an RNR NAK).
#[derive(Debug)]
pub struct DeviceTest {
    lab: Lab,
    before: Counts,
    has_credits: bool,
    _watchdog: Watchdog,
}

/// The counters that must be the same before and after a test.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counts {
    /// The numbers of queue pairs, completion queues, memory regions, shared receive queues and
    /// connection manager ids. Devices and protection domains are not counted, because librdmacm
    /// keeps the device, and sometimes a protection domain, until the process ends.
    objects: Vec<String>,
    rnr_naks: u64,
}

/// Returns `able`, which states whether the device has the capability that a test needs. If it is
/// false, prints the missing capability to stderr directly, because the test harness hides the
/// output of a test that passes.
///
/// # Panics
///
/// If the device lacks the capability and is not iWARP: then the library is wrong, or the device is
/// of an unknown kind. Also panics if stderr is closed.
#[must_use]
pub fn applies(able: bool, capability: &str) -> bool {
    if !able {
        assert!(Lab::get().is_iwarp(), "this device has {capability}");
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let line = format!("{test} does not apply: the device lacks {capability}\n");
        io::stderr().write_all(line.as_bytes()).unwrap();
    }
    able
}

impl DeviceTest {
    /// Starts a test whose connections use credits: every receiver must have a receive posted when
    /// a message arrives.
    ///
    /// # Panics
    ///
    /// If there is no RDMA device.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::new(SECONDS, true)
    }

    /// Like [`start`](Self::start), but with this time limit in seconds on an idle machine.
    ///
    /// # Panics
    ///
    /// If there is no RDMA device.
    #[must_use]
    #[track_caller]
    pub fn within(seconds: u64) -> Self {
        Self::new(seconds, true)
    }

    /// Starts a test in which senders may send without credit, so RNR NAKs are not an error.
    ///
    /// # Panics
    ///
    /// If there is no RDMA device.
    #[must_use]
    #[track_caller]
    pub fn without_credits() -> Self {
        Self::new(SECONDS, false)
    }

    #[track_caller]
    fn new(seconds: u64, has_credits: bool) -> Self {
        let watchdog = Watchdog::new(seconds);
        let lab = Lab::get();
        let known = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
        let before = known.unwrap_or_else(|| Counts::now(&lab));
        Self {
            lab,
            before,
            has_credits,
            _watchdog: watchdog,
        }
    }
}

impl Counts {
    fn now(lab: &Lab) -> Self {
        const OBJECTS: [&str; 5] = ["qp", "cq", "mr", "srq", "cm_id"];
        // The format is "pd 1 cq 1 …".
        let shown = lab.resources();
        let words: Vec<_> = shown.split_whitespace().collect();
        let counts = words.windows(2).filter(|pair| OBJECTS.contains(&pair[0]));
        Self {
            objects: counts.map(|pair| pair.join(" ")).collect(),
            rnr_naks: lab.rnr_naks(),
        }
    }
}

impl Deref for DeviceTest {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl Drop for DeviceTest {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let mut deadline = Deadline::after(TIME_LIMIT);
        let mut now = Counts::now(&self.lab);
        // The engine closes dropped connections in the background, so wait until their objects are
        // destroyed.
        while now.objects != self.before.objects && !deadline.is_over() {
            thread::sleep(Duration::from_millis(5));
            now = Counts::now(&self.lab);
        }
        let rnr_naks = if self.has_credits {
            // If the test has removed the device and created it again, the counter has restarted at
            // zero.
            self.before.rnr_naks.min(now.rnr_naks)
        } else {
            now.rnr_naks
        };
        let expected = Counts {
            rnr_naks,
            ..self.before.clone()
        };
        assert_eq!(
            now, expected,
            "something is left on the device, or a receiver was without a receive"
        );
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
}
