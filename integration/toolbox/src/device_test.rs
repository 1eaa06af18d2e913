use std::{
    io::{self, Write},
    ops::Deref,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::{Deadline, Lab, TIME_LIMIT, Watchdog};

/// Limit for a test, in seconds of an idle machine. Tests take about a tenth of it.
const SECONDS: u64 = 300;

/// The counts at the end of the previous test, if it passed. The tests of a program run one after
/// the other.
static BEFORE: Mutex<Option<Counts>> = Mutex::new(None);

/// The guard of a device test. Its watchdog ends the program if the test hangs. A test drops the
/// guard after all its own objects; the drop fails the test if objects are left on the device, or
/// if a receiver had no receive posted (RNR NAK).
#[derive(Debug)]
pub struct DeviceTest {
    lab: Lab,
    before: Counts,
    has_credits: bool,
    _watchdog: Watchdog,
}

/// The counters of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counts {
    /// Queue pairs, completion queues, memory regions, shared receive queues and ids. librdmacm
    /// keeps the device, and sometimes a protection domain, until the process ends, so these do not
    /// count.
    objects: Vec<String>,
    rnr_naks: u64,
}

/// Returns whether a test, or the rest of it, applies to this device. If not, prints the missing
/// capability to stderr itself, because the harness hides the output of a test that passes.
///
/// # Panics
///
/// If a device other than iWARP lacks the capability: the library is wrong, or the device is of an
/// unknown kind. Also if stderr is closed.
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
    /// Starts a test of connections with credits, in which every receiver must have a receive
    /// posted.
    ///
    /// # Panics
    ///
    /// Without a device.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::new(SECONDS, true)
    }

    /// As [`start`](Self::start), with a limit in seconds of an idle machine.
    ///
    /// # Panics
    ///
    /// Without a device.
    #[must_use]
    #[track_caller]
    pub fn within(seconds: u64) -> Self {
        Self::new(seconds, true)
    }

    /// Starts a test that may send without credit.
    ///
    /// # Panics
    ///
    /// Without a device.
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
        // "0: rxe0: pd 1 cq 1 …"
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
        // Connections that were dropped are closed in the background.
        while now.objects != self.before.objects && !deadline.is_over() {
            thread::sleep(Duration::from_millis(5));
            now = Counts::now(&self.lab);
        }
        let rnr_naks = if self.has_credits {
            // A device that was created again counts from zero.
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
