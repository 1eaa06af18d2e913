use std::{
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

thread_local! {
    /// Its address is different in each thread that is alive.
    static HERE: u8 = const { 0 };
}

/// The thread that took completions last, or tried to.
///
/// A blocking call that needs a place for its completion may wait for that thread. If it is the
/// calling thread, or no thread has asked so far, waiting would never end.
#[derive(Debug, Default)]
pub(crate) struct Taker(AtomicUsize);

impl Taker {
    /// The calling thread asks for completions.
    pub(crate) fn is_here(&self) {
        self.0.store(here(), Ordering::Relaxed);
    }

    /// Returns whether a thread other than the calling one has asked last.
    pub(super) fn is_elsewhere(&self) -> bool {
        ![0, here()].contains(&self.0.load(Ordering::Relaxed))
    }
}

fn here() -> usize {
    // A thread without its variables is about to end.
    HERE.try_with(|here| ptr::from_ref(here).addr())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_another_thread_is_elsewhere() {
        let taker = Taker::default();
        assert!(!taker.is_elsewhere(), "no thread has asked");
        taker.is_here();
        assert!(!taker.is_elsewhere());
        thread::scope(|scope| {
            let elsewhere = scope.spawn(|| taker.is_elsewhere());
            assert!(elsewhere.join().unwrap());
        });
    }
}
