//! The folder `src/poll`, but for what the system does.

#[path = "../../../src/poll/attended.rs"]
mod attended;
#[path = "../../../src/poll/completions.rs"]
mod completions;
#[path = "../../../src/poll/deadline.rs"]
mod deadline;
#[path = "../../../src/poll/event_loop.rs"]
mod event_loop;
#[path = "../../../src/poll/poller.rs"]
mod poller;
mod registration {
    pub(crate) use crate::system::{LoopFd, Registration};
}
#[path = "../../../src/poll/spin_record.rs"]
mod spin_record;
mod sys {
    pub(crate) use crate::system::{
        Alarm, AtomicU64, Condvar, Line, Mutex, Ordering, Woken, lock, park,
    };
}
#[path = "../../../src/poll/poll_task.rs"]
mod poll_task;
#[path = "../../../src/poll/tasks.rs"]
mod tasks;
#[path = "../../../src/poll/wait.rs"]
mod wait;
#[path = "../../../src/poll/word.rs"]
mod word;

pub(crate) use self::{
    attended::{Attended, Attendee},
    completions::{Answers, Completions, Progress},
    deadline::Deadline,
    poller::Poller,
    tasks::Awaited,
    word::{Owner, Reliance},
};
