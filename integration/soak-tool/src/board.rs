use std::{
    fmt::Write,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Longer than any step takes, even where each instruction is emulated: a thread that is not done
/// with one by then hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What every thread is doing. It ends the program when something is wrong, and then shows all of
/// it.
#[derive(Debug, Default)]
pub(crate) struct Board {
    entries: Mutex<Vec<Weak<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    who: String,
    step: Mutex<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    /// `None` where there is nothing to do, which may last.
    what: Option<&'static str>,
    /// Of a message, where the step is about one.
    number: Option<u64>,
    since: Instant,
}

/// A thread's line on the board. It goes with this.
#[derive(Debug)]
pub(crate) struct Work {
    entry: Arc<Entry>,
}

impl Board {
    /// A line for somebody who has nothing to do yet.
    pub(crate) fn entry(&self, who: String) -> Work {
        let step = Mutex::new(Step {
            what: None,
            number: None,
            since: Instant::now(),
        });
        let entry = Arc::new(Entry { who, step });
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.strong_count() > 0);
        entries.push(Arc::downgrade(&entry));
        Work { entry }
    }

    /// Ends the program when somebody has been at one step for longer than [`PATIENCE`].
    pub(crate) fn watch(&self) {
        let entries: Vec<_> = lock(&self.entries)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        if let Some(stuck) = entries.iter().find(|entry| lock(&entry.step).hangs()) {
            self.fail(&format!("{} hangs", stuck.who));
        }
    }

    /// Ends the program: says what is wrong, and what everybody was doing.
    pub(crate) fn fail(&self, problem: &str) -> ! {
        let mut text = format!("soak: FAILED: {problem}\n");
        for entry in lock(&self.entries).iter().filter_map(Weak::upgrade) {
            let step = *lock(&entry.step);
            let what = step.what.unwrap_or("nothing to do");
            let _ = write!(text, "    {}: {what}", entry.who);
            if let Some(number) = step.number {
                let _ = write!(text, " message {number}");
            }
            let _ = writeln!(text, ", for {:.1} s", step.since.elapsed().as_secs_f64());
        }
        eprint!("{text}");
        process::exit(1);
    }
}

impl Step {
    fn hangs(&self) -> bool {
        self.what.is_some() && self.since.elapsed() > PATIENCE
    }
}

impl Work {
    /// There is nothing to do.
    pub(crate) fn rest(&self) {
        self.set(None, None);
    }

    /// A new step begins.
    pub(crate) fn step(&self, what: &'static str) {
        self.set(Some(what), None);
    }

    /// A new step begins, about a message.
    pub(crate) fn message(&self, what: &'static str, number: u64) {
        self.set(Some(what), Some(number));
    }

    fn set(&self, what: Option<&'static str>, number: Option<u64>) {
        let since = Instant::now();
        *lock(&self.entry.step) = Step {
            what,
            number,
            since,
        };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
