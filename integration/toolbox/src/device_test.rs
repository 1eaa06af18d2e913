use std::{
    io::{self, Write},
    ops::Deref,
    panic::Location,
    process,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use crate::{Deadline, Lab, TIME_LIMIT, lock};

/// The time limit for a test in seconds, about ten times as long as a test takes. The [`Watchdog`]
/// extends it on a busy machine.
const SECONDS: u64 = 300;

/// The counters at the end of the previous test. `None` before the first test, and after a test
/// that failed. The tests of a program run one at a time.
static BEFORE: Mutex<Option<Counts>> = Mutex::new(None);

/// A guard that each device test creates first and drops last. The drop panics if objects of the
/// test remain on the device. The drop also panics if a message arrived at a receiver without a
/// posted receive (the device counted an RNR NAK), but not if
/// [`without_credits`](Self::without_credits) created the guard. If the test hangs, a watchdog
/// aborts the program.
#[derive(Debug)]
#[must_use]
pub struct DeviceTest {
    lab: Lab,
    before: Counts,
    has_credits: bool,
    _watchdog: Watchdog,
}

/// The counters that must be the same before and after a test.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    /// The numbers of queue pairs, completion queues, memory regions, shared receive queues and
    /// connection manager ids. Devices and protection domains are not counted, because librdmacm
    /// retains the device, and sometimes a protection domain, until the process ends.
    objects: Vec<String>,
    rnr_naks: u64,
}

/// If the device lacks a capability, prints that the running test does not apply. `able` states
/// whether the device has `capability`, and is also the return value. The function writes directly
/// to stderr, because the test harness captures the output of `println` and `eprintln`, and hides
/// the output of a test that passes.
///
/// # Panics
///
/// If the device is not an iWARP device, but lacks the capability. Then the library is wrong, or
/// the device is of an unknown kind. Also panics if stderr is closed.
#[must_use]
pub fn applies(able: bool, capability: &str) -> bool {
    if !able {
        assert!(
            Lab::get().is_iwarp(),
            "a device other than iWARP must have {capability}"
        );
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let line = format!("{test} does not apply: the device lacks {capability}\n");
        io::stderr().write_all(line.as_bytes()).unwrap();
    }
    able
}

impl DeviceTest {
    /// Starts a test whose connections use credits: whenever a message arrives, the receiver must
    /// have posted a receive for it.
    ///
    /// # Panics
    ///
    /// If there is no RDMA device.
    #[track_caller]
    pub fn start() -> Self {
        Self::within(SECONDS)
    }

    /// Like [`start`](Self::start), but with a time limit of `seconds` on an idle machine.
    ///
    /// # Panics
    ///
    /// If there is no RDMA device.
    #[track_caller]
    pub fn within(seconds: u64) -> Self {
        let watchdog = Watchdog::new(seconds);
        let lab = Lab::get();
        let known = lock(&BEFORE).take();
        let before = known.unwrap_or_else(|| Counts::now(&lab));
        Self {
            lab,
            before,
            has_credits: true,
            _watchdog: watchdog,
        }
    }

    /// Starts a test in which RNR NAKs are not an error, because senders may send without credit.
    ///
    /// # Panics
    ///
    /// If there is no RDMA device.
    #[track_caller]
    pub fn without_credits() -> Self {
        let mut this = Self::start();
        this.has_credits = false;
        this
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
        // The engine closes dropped connections in the background. Wait until their objects are
        // destroyed.
        while now.objects != self.before.objects && !deadline.is_over() {
            thread::sleep(Duration::from_millis(5));
            now = Counts::now(&self.lab);
        }
        // If the test has replaced the device, the new device's counter started at zero and can be
        // lower than before.
        if !self.has_credits || now.rnr_naks < self.before.rnr_naks {
            self.before.rnr_naks = now.rnr_naks;
        }
        assert_eq!(
            now, self.before,
            "the test must remove its objects from the device, and must cause no RNR NAK"
        );
        *lock(&BEFORE) = Some(now);
    }
}

/// Aborts the program if this value is not dropped within the time limit. A test that hangs
/// therefore fails, with a message that names the test.
#[derive(Debug)]
#[must_use]
pub struct Watchdog {
    _stop: Sender<()>,
}

impl Watchdog {
    /// Starts a watchdog for the running test. `seconds` is the limit on an idle machine. On a busy
    /// machine, a [`Deadline`] extends the limit. Choose a long limit, because the lab is slow. If
    /// the limit expires, the watchdog prints the caller's source line and aborts the process.
    #[track_caller]
    pub fn new(seconds: u64) -> Self {
        let (stop, stopped) = channel::<()>();
        let location = Location::caller();
        let test = thread::current().name().unwrap_or("a test").to_owned();
        thread::spawn(move || {
            let mut deadline = Deadline::after(Duration::from_secs(seconds));
            while !deadline.is_over() {
                if stopped.recv_timeout(deadline.left()) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
            // The test harness captures eprintln!, and loses the line at the abort.
            let line = format!("{test} ({location}) has exceeded its limit of {seconds} s\n");
            let _ = io::stderr().write_all(line.as_bytes());
            process::abort();
        });
        Self { _stop: stop }
    }
}

/// Sets the flag when dropped. If a test fails within [`thread::scope`], threads that loop until
/// the flag is set therefore end, and the failure is reported.
#[derive(Debug)]
#[must_use]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
