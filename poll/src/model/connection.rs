//! Models one connection, its device, the engine's thread, and the application's threads.

use std::{
    ops::Deref,
    task::{Context, Wake, Waker},
    time::Duration,
};

use loom::{
    sync::{Arc, Condvar, Mutex},
    thread::{self, JoinHandle},
};

use super::system::{
    self, AtomicU64, CompletionEvents, GroupEvents, Input, NoticeSender, Ordering, Registration,
    lock,
};
use crate::{
    Answers, Attended, AttendedConnection, Awaited, Completions, Deadline, Due, Events, NoticeKind,
    Owner, Poller, Polling, Progress, Reliance,
};

pub(super) const KEY: u64 = 16;

/// A bug that a test inserts into the model to check that loom finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A thread that becomes the owner does not notify the engine's thread.
    LostRenewal,
    /// No thread requests an event from the device.
    MissedArm,
    /// The engine's thread becomes the owner of the connection but does not poll the connection.
    UncheckedExpiry,
    /// A thread that delivers a message to a group does not wake the group's leader.
    UnwokenGroup,
}

pub(crate) struct Connection {
    pub poller: Poller,
    device: Mutex<Device>,
    /// The number of messages that have arrived and have not been taken. Waiting threads read this
    /// counter without a lock.
    messages: AtomicU64,
    /// Whether a message is held back. The next poll sends the message.
    held_back: Mutex<bool>,
    group: Option<Group>,
    mistake: Option<Mistake>,
}

/// The group of the connection.
struct Group {
    poller: Poller,
    events: std::sync::Arc<GroupEvents>,
}

#[derive(Default)]
struct Device {
    completions: u64,
    armed: bool,
}

impl Connection {
    pub(crate) fn new(mistake: Option<Mistake>) -> Arc<Self> {
        Self::with(None, mistake)
    }

    /// Creates a group and its only member.
    pub(crate) fn in_group(mistake: Option<Mistake>) -> Arc<Self> {
        let poller = Poller::new(Polling::Event, NoticeSender(mistake));
        let events = poller.watch_members().unwrap();
        let connection = Self::with(Some(Group { poller, events }), mistake);
        connection.poller.rely(Reliance::Group);
        connection
    }

    fn with(group: Option<Group>, mistake: Option<Mistake>) -> Arc<Self> {
        let poller = Poller::new(Polling::Event, NoticeSender(mistake));
        poller.prepare(None).unwrap();
        let mut registration = Registration;
        registration
            .set(Owner::Engine, &Default::default(), None)
            .unwrap();
        poller.register(registration);
        let connection = Arc::new(Self {
            poller,
            device: Mutex::default(),
            messages: AtomicU64::new(0),
            held_back: Mutex::default(),
            group,
            mistake,
        });
        connection.arm();
        connection
    }

    // The device calls the following method.

    /// Adds one completion to the queue, as a device does when a message arrives. Raises an event
    /// if a thread has requested one.
    pub(crate) fn complete(&self) {
        let mut device = lock(&self.device);
        device.completions += 1;
        if std::mem::take(&mut device.armed) {
            CompletionEvents.raise();
        }
    }

    // The application's threads call the following methods.

    /// Takes a message. Returns `None` if no message has arrived.
    pub(crate) fn take(&self) -> Option<()> {
        let less = |messages: u64| messages.checked_sub(1);
        if self.messages.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let taken = self
            .messages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.ok().map(drop)
    }

    /// Delivers a message as a thread does after polling the queue: increments the counter, and
    /// wakes waiting threads, waiting tasks and the group's leader.
    pub(crate) fn deliver(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.poller.wake();
        let _ = self.poller.tasks.wake(u8::MAX);
        if let Some(group) = &self.group
            && self.mistake != Some(Mistake::UnwokenGroup)
        {
            group.poller.wake();
        }
    }

    /// Waits for a message.
    pub(crate) fn recv(&self) {
        let taken = self
            .poller
            .wait_until(&self, &Deadline::never(), || self.take());
        taken.unwrap();
    }

    /// Waits for a message of the group.
    pub(crate) fn recv_in_group(&self) {
        let group = self.group.as_ref().unwrap();
        let members = Members {
            connection: self,
            group,
        };
        let taken = group
            .poller
            .wait_until(&members, &Deadline::never(), || self.take());
        taken.unwrap();
    }

    /// Waits for a message as a task does: the executor polls the task again after each wake-up.
    pub(crate) fn recv_in_task(&self) {
        let executor = std::sync::Arc::new(Executor::default());
        let waker = Waker::from(std::sync::Arc::clone(&executor));
        let mut cx = Context::from_waker(&waker);
        let waiter = (Awaited::Arrival.common(), Awaited::Arrival);
        while self
            .poller
            .poll_task(&self, &mut cx, waiter, || self.take())
            .is_pending()
        {
            executor.wait();
        }
    }

    /// Takes a message if there is one.
    pub(crate) fn try_recv(&self) -> Option<()> {
        self.poller.try_once(&self, || false, || self.take())
    }

    /// Holds a message back until the next poll.
    pub(crate) fn hold_back(&self) {
        *lock(&self.held_back) = true;
        self.poller.note_held_back();
    }

    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    // The engine calls the following methods.

    /// Starts the engine's thread. Once [`stop`](Self::stop) has been called, the thread handles
    /// all remaining input and then ends.
    pub(crate) fn engine(connection: &Arc<Self>) -> JoinHandle<()> {
        let connection = Arc::clone(connection);
        thread::spawn(move || connection.run_engine())
    }

    /// Stops the engine's thread, and joins it.
    pub(crate) fn stop(&self, engine: JoinHandle<()>) {
        system::stop();
        engine.join().unwrap();
    }

    fn run_engine(&self) {
        let mut attended = Attended::default();
        loop {
            match system::next_input(attended.expects_loops(), attended.next().is_some()) {
                Input::Notices(notices) => {
                    for notice in notices {
                        self.handle_notice(notice, &mut attended);
                    }
                }
                Input::Event => {
                    CompletionEvents.clear();
                    self.take_over();
                }
                Input::LoopEvent => attended.expect_loops(),
                Input::Time => self.check_attended(&mut attended),
                Input::Stop => return,
            }
        }
    }

    fn handle_notice(&self, notice: NoticeKind, attended: &mut Attended) {
        match notice {
            NoticeKind::Acquired | NoticeKind::HeldBack => attended.attend(KEY, self),
            NoticeKind::TakeOver => {
                attended.forget(KEY);
                self.poller.expire();
                self.take_over();
            }
            NoticeKind::Drive | NoticeKind::RetryMemory | NoticeKind::Poll => {
                unreachable!("a poller must not send {notice:?}")
            }
        }
    }

    fn check_attended(&self, attended: &mut Attended) {
        let pending = || match system::is_pending() {
            true => vec![KEY],
            false => Vec::new(),
        };
        let Some(next) = attended.next() else { return };
        // A model must be deterministic. The value of `now` makes all scheduled checks due. If only
        // the earliest check were due, the order of the checks would depend on the machine's load.
        let now = next + Duration::from_secs(60);
        for due in attended.check_due(now, |_| Some(self), pending) {
            match due {
                Due::Overdue(_) => _ = self.poll(1, Answers::AtOnce),
                Due::Expired(_) if self.mistake == Some(Mistake::UncheckedExpiry) => {}
                Due::Expired(_) => self.take_over(),
            }
        }
    }

    fn take_over(&self) {
        (&self).arm_and_poll(Answers::AtOnce);
    }

    fn arm(&self) {
        if self.mistake != Some(Mistake::MissedArm) {
            lock(&self.device).armed = true;
        }
    }
}

/// An executor that runs one task.
#[derive(Default)]
struct Executor {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Executor {
    /// Blocks the calling thread until the task is woken.
    fn wait(&self) {
        let mut woken = lock(&self.woken);
        while !std::mem::take(&mut *woken) {
            woken = self.changed.wait(woken).unwrap();
        }
    }
}

impl Wake for Executor {
    fn wake(self: std::sync::Arc<Self>) {
        *lock(&self.woken) = true;
        self.changed.notify_one();
    }
}

impl Completions for &Connection {
    type Events = CompletionEvents;

    fn poll(&self, _budget: u32, _answers: Answers) -> Progress {
        let completions = std::mem::take(&mut lock(&self.device).completions);
        *lock(&self.held_back) = false;
        if completions == 0 {
            return Progress::Nothing;
        }
        for _ in 0..completions {
            self.deliver();
        }
        Progress::Some
    }

    fn arm_and_poll(&self, answers: Answers) -> Progress {
        self.arm();
        self.poll(1, answers)
    }

    fn events(&self) -> Option<(impl Deref<Target = CompletionEvents>, bool)> {
        Some((&CompletionEvents, false))
    }

    fn is_level_triggered(&self) -> bool {
        false
    }

    fn delivering_to_channel(&self) -> Self {
        self
    }

    fn was_polled(&self) -> bool {
        false
    }

    fn awaits_large(&self) -> bool {
        false
    }

    fn receive(&self, _: &CompletionEvents, _: &Deadline, _: impl Fn() -> bool) -> bool {
        false
    }
}

/// The queue that a thread polls while it waits for the group.
struct Members<'a> {
    connection: &'a Connection,
    group: &'a Group,
}

impl Completions for Members<'_> {
    type Events = GroupEvents;

    fn poll(&self, _budget: u32, _answers: Answers) -> Progress {
        if !self.group.events.next_ready() {
            return Progress::Nothing;
        }
        self.connection.poller.poll_member(&self.connection);
        Progress::Some
    }

    fn arm_and_poll(&self, answers: Answers) -> Progress {
        self.poll(1, answers)
    }

    fn events(&self) -> Option<(impl Deref<Target = GroupEvents>, bool)> {
        let (poller, events) = (&self.connection.poller, &self.group.events);
        if events.take_absent() {
            poller.enter_group(events);
            if poller.take_for_group() {
                poller.poll_member(&self.connection);
            }
        }
        Some((&**events, false))
    }

    fn is_level_triggered(&self) -> bool {
        true
    }

    fn delivering_to_channel(&self) -> Self {
        Self { ..*self }
    }

    fn was_polled(&self) -> bool {
        false
    }

    fn awaits_large(&self) -> bool {
        false
    }

    fn receive(&self, _: &GroupEvents, _: &Deadline, _: impl Fn() -> bool) -> bool {
        false
    }
}

impl AttendedConnection for Connection {
    fn poller(&self) -> &Poller {
        &self.poller
    }

    fn holds_back(&self) -> bool {
        *lock(&self.held_back)
    }
}
